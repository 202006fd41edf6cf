// Every instruction set against the scalar row, over every pair of a largest magnitude and an
// element that F16 can hold: 503,856,639 pairs, both signs. KVCACHE_SWEEP_STRIDE=n takes every n-th
// largest magnitude: an emulator is slow, and so is a checked build (64 unless told).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "codec_rows.h"

namespace kvcache::codec::testing {
namespace {

constexpr std::size_t kWidth = 128;
constexpr std::uint16_t kLargest = 0x7bff;

#if !defined(NDEBUG) || defined(_GLIBCXX_ASSERTIONS)
constexpr long kDefaultStride = 64;
#else
constexpr long kDefaultStride = 1;
#endif

std::size_t stride_from_environment() {
  const char* text = std::getenv("KVCACHE_SWEEP_STRIDE");
  const long stride = text == nullptr ? kDefaultStride : std::strtol(text, nullptr, 10);
  return static_cast<std::size_t>(std::max(1L, stride));
}

// All magnitudes 0..largest in rows of 128 that each begin with `largest`.
std::vector<std::uint16_t> rows_of(std::uint16_t largest, std::uint16_t sign) {
  std::vector<std::uint16_t> out;
  out.reserve((std::size_t{largest} / (kWidth - 1) + 2) * kWidth);
  std::uint32_t next = 0;
  while (next <= largest) {
    out.push_back(largest | sign);
    for (std::size_t i = 1; i < kWidth; ++i) {
      out.push_back(static_cast<std::uint16_t>(std::min<std::uint32_t>(next, largest)) | sign);
      next += next <= largest ? 1 : 0;
    }
  }
  return out;
}

TEST(CodecSweep, EveryRowEqualsScalarOverAllPairsOfLargestAndElement) {
  const std::size_t stride = stride_from_environment();
  std::uint64_t pairs = 0;
  for (std::size_t largest = 1; largest <= kLargest; largest += stride) {
    const auto magnitude = static_cast<std::uint16_t>(largest);
    const auto positive = rows_of(magnitude, 0);
    const auto negative = rows_of(magnitude, 0x8000);
    const std::size_t rows = positive.size() / kWidth;
    Encoded expected =
        encode(scalar(), kElementF16, dense_job(positive.data(), kElementF16, rows, kWidth));
    Encoded mirrored = expected;
    for (std::int8_t& code : mirrored.codes) code = static_cast<std::int8_t>(-code);
    for (const Kernels* kernels : runnable_kernels()) {
      if (kernels == &scalar()) continue;
      const auto run = [&](const std::vector<std::uint16_t>& elements) {
        return encode(*kernels, kElementF16, dense_job(elements.data(), kElementF16, rows, kWidth));
      };
      ASSERT_TRUE(run(positive) == expected) << kernels->name << ", largest bits " << largest;
      ASSERT_TRUE(run(negative) == mirrored) << kernels->name << ", largest bits " << largest;
    }
    pairs += largest + 1;
  }
  EXPECT_TRUE(stride != 1 || pairs == 503'856'639U) << pairs;
}

// bfloat16: all 167,527,359 pairs, whose rows below 2^-8 go another way than the larger ones.
TEST(CodecSweep, EveryRowEqualsScalarOverAllPairsOfBfloat16) {
  constexpr std::size_t kLargestBf16 = 0x477f;
  for (std::size_t largest = 1; largest <= kLargestBf16; largest += stride_from_environment()) {
    const auto elements =
        rows_of(static_cast<std::uint16_t>(largest), largest % 2 == 0 ? 0x8000 : 0);
    const EncodeJob job =
        dense_job(elements.data(), kElementBf16, elements.size() / kWidth, kWidth);
    const Encoded expected = encode(scalar(), kElementBf16, job);
    for (const Kernels* kernels : runnable_kernels()) {
      ASSERT_TRUE(encode(*kernels, kElementBf16, job) == expected)
          << kernels->name << ", largest bits " << largest;
    }
  }
}

// float32 elements are rounded to F16 first. That shows where two neighbours in F16 have different
// codes: at the float halfway between them, and the floats beside it.
TEST(CodecSweep, EveryRowRoundsFloat32ToF16BeforeItQuantises) {
  for (std::size_t largest = 1; largest <= kLargest; largest += stride_from_environment()) {
    std::vector<std::uint16_t> magnitudes(largest + 1);
    for (std::size_t i = 0; i <= largest; ++i) magnitudes[i] = static_cast<std::uint16_t>(i);
    const Encoded codes = encode(*runnable_kernels().front(), kElementF16,
                                 dense_job(magnitudes.data(), kElementF16, 1, largest + 1));
    std::vector<float> row{f32_from_f16(static_cast<std::uint16_t>(largest))};
    for (std::size_t i = 0; i < largest; ++i) {
      if (codes.codes[i] == codes.codes[i + 1]) continue;
      const float below = f32_from_f16(magnitudes[i]);
      const auto halfway =
          std::bit_cast<std::uint32_t>((below + f32_from_f16(magnitudes[i + 1])) / 2);
      for (std::uint32_t bits : {halfway - 1, halfway, halfway + 1}) {
        row.push_back(std::bit_cast<float>(bits));
        row.push_back(-std::bit_cast<float>(bits));
      }
    }
    const EncodeJob job = dense_job(row.data(), kElementF32, 1, row.size());
    const Encoded expected = encode(scalar(), kElementF32, job);
    for (const Kernels* kernels : runnable_kernels()) {
      ASSERT_TRUE(encode(*kernels, kElementF32, job) == expected)
          << kernels->name << ", largest bits " << largest;
    }
  }
}

TEST(CodecSweep, EveryRowDecodesEveryScaleAndCodeAsScalarDoes) {
  const std::size_t stride = stride_from_environment();
  std::vector<std::int8_t> codes(256);
  for (int code = -128; code < 128; ++code) codes[code + 128] = static_cast<std::int8_t>(code);
  for (std::size_t largest = 1; largest <= kLargest; largest += stride) {
    const float scale = f32_from_f16(static_cast<std::uint16_t>(largest)) / 127.0F;
    for (Element element : {kElementF32, kElementF16, kElementBf16}) {
      const auto decode = [&](const Kernels& kernels) {
        std::vector<char> out(codes.size() * bytes_of(element));
        const DecodeRun run{reinterpret_cast<const char*>(codes.data()), &scale, out.data()};
        kernels.decode_int8[element]({.runs = &run,
                                      .run_count = 1,
                                      .token_stride = 0,
                                      .head_stride = 0,
                                      .heads = 1,
                                      .rows = 1,
                                      .width = codes.size(),
                                      .prefetch = false,
                                      .stream = false});
        return out;
      };
      const auto expected = decode(scalar());
      for (const Kernels* kernels : runnable_kernels()) {
        ASSERT_EQ(decode(*kernels), expected) << kernels->name << ", largest bits " << largest;
      }
    }
  }
}

// 2^32 float patterns would take minutes; every F16 and bfloat16 pattern, and floats around each
// rounding boundary of both, cover each case of the conversions.
std::vector<float> floats_near_boundaries() {
  std::vector<float> floats;
  for (std::uint32_t half = 0; half < 65536; ++half) {
    const auto bits = std::bit_cast<std::uint32_t>(f32_from_f16(static_cast<std::uint16_t>(half)));
    for (std::uint32_t near : {0U, 1U, 0xfffU, 0x1000U, 0x1001U, 0x1fffU, 0xffffffffU}) {
      floats.push_back(std::bit_cast<float>(bits + near));
    }
    for (std::uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      floats.push_back(std::bit_cast<float>(half << 16 | low));
    }
  }
  for (std::uint32_t bits = 0; bits < 0x34000000U; bits += 0x3001U) {  // F16's subnormals
    floats.push_back(std::bit_cast<float>(bits));
  }
  return floats;
}

TEST(CodecSweep, EveryRowConvertsPlainElementsAsScalarDoes) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  const std::vector<float> floats = floats_near_boundaries();
  const auto data = [&](Element element) {
    return reinterpret_cast<const char*>(
        element == kElementF32 ? static_cast<const void*>(floats.data()) : halves.data());
  };
  const auto count = [&](Element element) {
    return element == kElementF32 ? floats.size() : halves.size();
  };
  for (Element from : {kElementF32, kElementF16, kElementBf16}) {
    for (Element to : {kElementF32, kElementF16, kElementBf16}) {
      if (from == to) continue;
      const auto encode = [&](const Kernels& row) {
        std::vector<char> packed(count(from) * bytes_of(to));
        EncodeJob job = dense_job(data(from), from, 1, count(from));
        job.packed = packed.data();
        row.encode_plain[to][from](job);
        return packed;
      };
      const auto decode = [&](const Kernels& row) {
        std::vector<char> out(count(from) * bytes_of(to));
        const DecodeRun run{data(from), nullptr, out.data()};
        row.decode_plain[from][to]({.runs = &run,
                                    .run_count = 1,
                                    .token_stride = 0,
                                    .head_stride = 0,
                                    .heads = 1,
                                    .rows = 1,
                                    .width = count(from),
                                    .prefetch = false,
                                    .stream = false});
        return out;
      };
      const auto expected = encode(scalar());
      for (const Kernels* kernels : runnable_kernels()) {
        EXPECT_TRUE(encode(*kernels) == expected) << kernels->name << ' ' << from << ' ' << to;
        EXPECT_TRUE(decode(*kernels) == expected) << kernels->name << ' ' << from << ' ' << to;
      }
    }
  }
}

// By arithmetic instead of by bits: no neighbour is nearer, and of two as near the even one is it.
TEST(CodecSweep, Bfloat16IsTheNearestAndEvenAmongTwo) {
  const std::vector<float> floats = floats_near_boundaries();
  for (const float value : floats) {
    const std::uint16_t got = bf16_from_f32(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(f32_from_bf16(got)));
      continue;
    }
    if (std::abs(value) >= 0x1.fep127F) continue;  // to infinity from half a step beyond: below
    const auto distance = [&](std::uint16_t bits) {
      return std::abs(static_cast<double>(f32_from_bf16(bits)) - static_cast<double>(value));
    };
    ASSERT_EQ(got >> 15, std::bit_cast<std::uint32_t>(value) >> 31) << value;
    for (const int step : {-1, 1}) {
      const int other = (got & 0x7fff) + step;
      if (other < 0 || other > 0x7f7f) continue;
      const auto bits = static_cast<std::uint16_t>((got & 0x8000) | other);
      ASSERT_LE(distance(got), distance(bits)) << value;
      if (distance(got) == distance(bits)) {
        ASSERT_EQ(got & 1, 0) << value;
      }
    }
  }
  EXPECT_EQ(bf16_from_f32(0x1.fefffep127F), 0x7f7f);
  EXPECT_EQ(bf16_from_f32(0x1.ffp127F), 0x7f80);
}

}  // namespace
}  // namespace kvcache::codec::testing
