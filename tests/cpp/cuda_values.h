// Elements and tensors that the tests of kernels are fed.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "codec/float_bits.h"
#include "kvcache/cuda.h"

namespace kvcache::cuda::testing {

using Random = std::mt19937;

inline constexpr DType kElements[] = {DType::kF32, DType::kF16, DType::kBf16};

inline std::size_t below(Random& random, std::size_t limit) { return random() % limit; }
inline std::size_t between(Random& random, std::size_t low, std::size_t high) {
  return low + random() % (high - low + 1);
}

inline void put_element(char* at, DType dtype, float value) {
  const std::uint16_t bits =
      dtype == DType::kF16 ? codec::f16_from_f32(value) : codec::bf16_from_f32(value);
  std::memcpy(at, dtype == DType::kF32 ? static_cast<const void*>(&value) : &bits,
              dtype_bytes(dtype));
}

inline float element_at(const char* at, DType dtype) {
  float value = 0;
  std::uint16_t bits = 0;
  std::memcpy(dtype == DType::kF32 ? static_cast<void*>(&value) : &bits, at, dtype_bytes(dtype));
  if (dtype == DType::kF16) return codec::f32_from_f16(bits);
  return dtype == DType::kBf16 ? codec::f32_from_bf16(bits) : value;
}

// Equal bytes, but that a NaN may have any sign and payload.
inline ::testing::AssertionResult same_elements(const std::vector<char>& a,
                                                const std::vector<char>& b, DType dtype) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " " << b.size();
  for (std::size_t at = 0; at + dtype_bytes(dtype) <= a.size(); at += dtype_bytes(dtype)) {
    if (std::memcmp(&a[at], &b[at], dtype_bytes(dtype)) == 0) continue;
    const float p = element_at(&a[at], dtype);
    const float q = element_at(&b[at], dtype);
    if (std::isnan(p) && std::isnan(q)) continue;
    return ::testing::AssertionFailure() << "at byte " << at << ": " << p << " is not " << q;
  }
  return ::testing::AssertionSuccess();
}

inline float special(Random& random) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kSpecial[] = {
      0.0F,     -0.0F,    0x1p-149F, -0x1p-130F, 0x1p-24F, -0x1p-25F,
      65504.0F, 65520.0F, -3e38F,    kInf,       -kInf,    std::numeric_limits<float>::quiet_NaN()};
  return kSpecial[below(random, std::size(kSpecial))];
}

// How the elements of a row are chosen.
enum class RowKind { kNormal, kTies, kSubnormal, kZero, kWild, kKinds };

// A row that codec::encode_int8() takes, unless it is kWild.
inline void fill_row(Random& random, RowKind kind, DType dtype, char* row, std::size_t width) {
  std::normal_distribution<float> normal;
  const float unit = std::ldexp(1.0F, static_cast<int>(below(random, 12)) - 8);
  for (std::size_t i = 0; i < width; ++i) {
    float value = normal(random);
    if (kind == RowKind::kTies) {  // the scale is a power of two, codes lie half-way
      value = i == 0 ? 127 * unit : (static_cast<float>(below(random, 253)) / 2 - 63) * unit;
    } else if (kind == RowKind::kSubnormal) {
      value = std::ldexp(value, -16 - static_cast<int>(below(random, 10)));
    } else if (kind == RowKind::kZero) {
      value = below(random, 2) == 0 ? 0.0F : -0.0F;
    } else if (kind == RowKind::kWild && below(random, 4) == 0) {
      value = special(random);
    }
    put_element(row + i * dtype_bytes(dtype), dtype, value);
    if (kind == RowKind::kWild && below(random, 4) == 0) {  // any bits, among them all NaNs
      const auto bits = static_cast<std::uint32_t>(random());
      std::memcpy(row + i * dtype_bytes(dtype), &bits, dtype_bytes(dtype));
      row[(i + 1) * dtype_bytes(dtype) - 1] |= static_cast<char>(0x7f * below(random, 2));
    }
  }
}

// Elements [tokens, heads, width] at some strides in memory of their own. Gaps hold other bytes.
struct Tensor {
  DType dtype = DType::kF32;
  std::size_t tokens = 0;
  std::size_t heads = 0;
  std::size_t width = 0;
  std::ptrdiff_t token_stride = 0;
  std::ptrdiff_t head_stride = 0;
  std::ptrdiff_t start = 0;
  std::vector<char> memory;

  Tensor(Random& random, DType element, std::size_t tokens_, std::size_t heads_, std::size_t width_)
      : dtype(element), tokens(tokens_), heads(heads_), width(width_) {
    const std::size_t bytes = dtype_bytes(dtype);
    const std::size_t gap = below(random, 3) == 0 ? between(random, 1, 5) : 0;
    const auto row = static_cast<std::ptrdiff_t>((width + gap) * bytes);
    if (below(random, 2) == 0) {  // heads outermost
      token_stride = row;
      head_stride = row * static_cast<std::ptrdiff_t>(tokens);
    } else {
      head_stride = row;
      token_stride = row * static_cast<std::ptrdiff_t>(heads);
    }
    start = static_cast<std::ptrdiff_t>(below(random, 2) * bytes);  // off the quad
    memory.resize(static_cast<std::size_t>(start) + tokens * heads * static_cast<std::size_t>(row));
    for (char& byte : memory) byte = static_cast<char>(random());
    if (below(random, 4) == 0 && tokens > 0) {  // backwards
      start += token_stride * static_cast<std::ptrdiff_t>(tokens - 1);
      token_stride = -token_stride;
    }
  }

  std::ptrdiff_t offset(std::size_t token, std::size_t head) const {
    return start + static_cast<std::ptrdiff_t>(token) * token_stride +
           static_cast<std::ptrdiff_t>(head) * head_stride;
  }
  char* row(std::size_t token, std::size_t head) { return memory.data() + offset(token, head); }

  void fill(Random& random, bool wild) {
    for (std::size_t i = 0; i < tokens * heads; ++i) {
      auto kind = static_cast<RowKind>(below(random, static_cast<std::size_t>(RowKind::kWild)));
      if (wild && below(random, 6) == 0) kind = RowKind::kWild;
      fill_row(random, kind, dtype, row(i / heads, i % heads), width);
    }
  }

  template <typename View>
  View view(char* at) const {
    return {at + start, dtype, tokens, heads, width, token_stride, head_stride};
  }
};

}  // namespace kvcache::cuda::testing
