#include "codec/transpose.h"

namespace kvcache::codec {
namespace {

typedef std::uint16_t Half8 __attribute__((vector_size(16)));
typedef std::uint32_t Word4 __attribute__((vector_size(16)));

template <typename Vector>
Vector load(const char* from) {
  Vector value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <typename Vector>
void store(char* to, Vector value) {
  __builtin_memcpy(to, &value, sizeof value);
}

template <typename Vector>
Vector low(Vector a, Vector b) {
  if constexpr (sizeof(a[0]) == 2) return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  if constexpr (sizeof(a[0]) == 4) return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}

template <typename Vector>
Vector high(Vector a, Vector b) {
  if constexpr (sizeof(a[0]) == 2) return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  if constexpr (sizeof(a[0]) == 4) return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}

// N x N, N a power of two: log2(N) rounds, each of which interleaves rows N / 2 apart.
template <typename Vector, std::size_t kSize>
void transpose_square(const char* from, std::ptrdiff_t from_stride, char* to,
                      std::ptrdiff_t to_stride) {
  Vector rows[kSize];
  for (std::size_t i = 0; i < kSize; ++i) {
    rows[i] = load<Vector>(from + static_cast<std::ptrdiff_t>(i) * from_stride);
  }
  for (std::size_t round = kSize; round > 1; round /= 2) {
    Vector next[kSize];
    for (std::size_t i = 0; i < kSize / 2; ++i) {
      next[2 * i] = low(rows[i], rows[i + kSize / 2]);
      next[2 * i + 1] = high(rows[i], rows[i + kSize / 2]);
    }
    for (std::size_t i = 0; i < kSize; ++i) rows[i] = next[i];
  }
  for (std::size_t i = 0; i < kSize; ++i) {
    store(to + static_cast<std::ptrdiff_t>(i) * to_stride, rows[i]);
  }
}

template <typename T>
void transpose_plain(const char* from, std::ptrdiff_t from_stride, char* to,
                     std::ptrdiff_t to_stride, std::size_t rows, std::size_t columns) {
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      __builtin_memcpy(to + static_cast<std::ptrdiff_t>(j) * to_stride + i * sizeof(T),
                       from + static_cast<std::ptrdiff_t>(i) * from_stride + j * sizeof(T),
                       sizeof(T));
    }
  }
}

}  // namespace

template <typename T>
void transpose(const char* from, std::ptrdiff_t from_stride, char* to, std::ptrdiff_t to_stride,
               std::size_t rows, std::size_t columns) {
  constexpr std::size_t kSize = 16 / sizeof(T);
  const std::size_t whole_rows = rows / kSize * kSize;
  const std::size_t whole_columns = columns / kSize * kSize;
  const auto from_at = [&](std::size_t i, std::size_t j) {
    return from + static_cast<std::ptrdiff_t>(i) * from_stride + j * sizeof(T);
  };
  const auto to_at = [&](std::size_t i, std::size_t j) {
    return to + static_cast<std::ptrdiff_t>(j) * to_stride + i * sizeof(T);
  };
  for (std::size_t i = 0; i < whole_rows; i += kSize) {
    for (std::size_t j = 0; j < whole_columns; j += kSize) {
      if constexpr (sizeof(T) == 2) {
        transpose_square<Half8, kSize>(from_at(i, j), from_stride, to_at(i, j), to_stride);
      } else {
        transpose_square<Word4, kSize>(from_at(i, j), from_stride, to_at(i, j), to_stride);
      }
    }
  }
  transpose_plain<T>(from_at(0, whole_columns), from_stride, to_at(0, whole_columns), to_stride,
                     whole_rows, columns - whole_columns);
  transpose_plain<T>(from_at(whole_rows, 0), from_stride, to_at(whole_rows, 0), to_stride,
                     rows - whole_rows, columns);
}

template void transpose<std::uint16_t>(const char*, std::ptrdiff_t, char*, std::ptrdiff_t,
                                       std::size_t, std::size_t);
template void transpose<std::uint32_t>(const char*, std::ptrdiff_t, char*, std::ptrdiff_t,
                                       std::size_t, std::size_t);

}  // namespace kvcache::codec
