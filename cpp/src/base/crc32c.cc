#include "base/crc32c.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvcache {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected

// tables[k][b]: the effect of byte b when k more bytes follow it.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    for (std::size_t k = 1; k < 8; ++k) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t load_u64(const unsigned char* p) {
  std::uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// A linear map of 32 bits: what becomes of each of them.
using Matrix = std::array<std::uint32_t, 32>;

constexpr std::uint32_t apply(const Matrix& matrix, std::uint32_t vector) {
  std::uint32_t image = 0;
  for (std::size_t bit = 0; vector != 0; ++bit, vector >>= 1) {
    if ((vector & 1) != 0) image ^= matrix[bit];
  }
  return image;
}

constexpr Matrix squared(const Matrix& matrix) {
  Matrix twice{};
  for (std::size_t bit = 0; bit < 32; ++bit) twice[bit] = apply(matrix, matrix[bit]);
  return twice;
}

// What a byte of zero does to the state.
constexpr Matrix make_zero_byte() {
  Matrix matrix{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    const std::uint32_t state = std::uint32_t{1} << bit;
    matrix[bit] = (state >> 8) ^ kTables[0][state & 0xff];
  }
  return matrix;
}

constexpr Matrix kZeroByte = make_zero_byte();

#if defined(__x86_64__)
// The state after `bytes` zero bytes, a power of two, by the bytes of the state before.
using Shift = std::array<std::array<std::uint32_t, 256>, 4>;

constexpr Shift make_shift(std::size_t bytes) {
  Matrix matrix = kZeroByte;
  for (; bytes > 1; bytes /= 2) matrix = squared(matrix);
  Shift shift{};
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) shift[k][byte] = apply(matrix, byte << 8 * k);
  }
  return shift;
}

std::uint32_t shifted(const Shift& shift, std::uint32_t state) {
  return shift[0][state & 0xff] ^ shift[1][state >> 8 & 0xff] ^ shift[2][state >> 16 & 0xff] ^
         shift[3][state >> 24];
}

// The instruction takes three cycles and starts every cycle, so three parts run side by side.
template <std::size_t Part>
__attribute__((target("sse4.2"))) std::uint64_t three_parts(std::uint64_t state,
                                                            const unsigned char*& p,
                                                            std::size_t& bytes) {
  static constexpr Shift kShift = make_shift(Part);
  for (; bytes >= 3 * Part; bytes -= 3 * Part, p += 3 * Part) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t at = 0; at < Part; at += 8) {
      state = __builtin_ia32_crc32di(state, load_u64(p + at));
      second = __builtin_ia32_crc32di(second, load_u64(p + Part + at));
      third = __builtin_ia32_crc32di(third, load_u64(p + 2 * Part + at));
    }
    state = shifted(kShift, static_cast<std::uint32_t>(state)) ^ second;
    state = shifted(kShift, static_cast<std::uint32_t>(state)) ^ third;
  }
  return state;
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::uint32_t crc, const void* data,
                                                             std::size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t state = ~crc;
  state = three_parts<4096>(state, p, bytes);
  state = three_parts<256>(state, p, bytes);
  for (; bytes >= 8; bytes -= 8, p += 8) state = __builtin_ia32_crc32di(state, load_u64(p));
  auto last = static_cast<std::uint32_t>(state);
  for (; bytes > 0; --bytes, ++p) last = __builtin_ia32_crc32qi(last, *p);
  return ~last;
}

// x^n modulo the polynomial, as a factor of a carry-less product of reflected numbers.
constexpr long long power(std::size_t n) {
  std::uint32_t state = 0x80000000;
  for (; n > 0; --n) state = (state >> 1) ^ ((state & 1) != 0 ? kPolynomial : 0);
  return static_cast<long long>(std::uint64_t{state} << 1);
}

// Folds 256 bytes at a time onto the next 256 by carry-less products, as in Intel's "Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ"; what is left has the checksum of all.
__attribute__((target("avx512f,vpclmulqdq"))) std::uint32_t crc32c_avx512(std::uint32_t crc,
                                                                          const void* data,
                                                                          std::size_t bytes) {
  constexpr std::size_t kStep = 256;
  if (bytes < 4 * kStep) return crc32c_sse42(crc, data, bytes);
  static constexpr long long kLow = power(8 * kStep + 32);
  static constexpr long long kHigh = power(8 * kStep - 32);
  const __m512i factors = _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
  const auto* p = static_cast<const unsigned char*>(data);
  __m512i sums[4];
  for (std::size_t i = 0; i < 4; ++i) sums[i] = _mm512_loadu_si512(p + 64 * i);
  sums[0] = _mm512_xor_si512(sums[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, ~crc));
  for (p += kStep, bytes -= kStep; bytes >= kStep; p += kStep, bytes -= kStep) {
    for (std::size_t i = 0; i < 4; ++i) {
      const __m512i low = _mm512_clmulepi64_epi128(sums[i], factors, 0x00);
      const __m512i high = _mm512_clmulepi64_epi128(sums[i], factors, 0x11);
      const __m512i next = _mm512_loadu_si512(p + 64 * i);
      sums[i] = _mm512_xor_si512(_mm512_xor_si512(low, high), next);
    }
  }
  unsigned char rest[kStep];
  for (std::size_t i = 0; i < 4; ++i) _mm512_storeu_si512(rest + 64 * i, sums[i]);
  // A checksum so far of ~0 is a state of zero.
  return crc32c_sse42(crc32c_sse42(~0U, rest, kStep), p, bytes);
}
#endif

using Function = std::uint32_t (*)(std::uint32_t, const void*, std::size_t);

Function choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq")) {
    return crc32c_avx512;
  }
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42;
#endif
  return crc32c_portable;
}

}  // namespace

std::uint32_t crc32c_portable(std::uint32_t crc, const void* data, std::size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    std::uint64_t word = load_u64(p) ^ crc;
    crc = 0;
    for (std::size_t k = 8; k-- > 0; word >>= 8) crc ^= kTables[k][word & 0xff];
  }
  for (; bytes > 0; --bytes, ++p) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xff];
  return ~crc;
}

std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) {
  // The inversions at both ends cancel out.
  Matrix zeros = kZeroByte;
  for (; second_bytes > 0; second_bytes /= 2, zeros = squared(zeros)) {
    if (second_bytes % 2 != 0) first = apply(zeros, first);
  }
  return first ^ second;
}

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) {
  static const Function function = choose();
  return function(crc, data, bytes);
}

}  // namespace kvcache
