#include "kvcache/codec.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <limits>
#include <random>

#include "codec_rows.h"

namespace kvcache::codec::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Encoded encode_f32(const Kernels& kernels, const std::vector<float>& row, std::size_t rows = 1) {
  return encode(kernels, kElementF32, dense_job(row.data(), kElementF32, rows, row.size() / rows));
}

Encoded encode_bits(const Kernels& kernels, const std::vector<std::uint16_t>& row) {
  return encode(kernels, kElementF16, dense_job(row.data(), kElementF16, 1, row.size()));
}

struct Golden {
  std::vector<float> row;
  std::uint32_t scale_bits;
  std::vector<int> codes;
};

TEST(Codec, GoldenRowsOnEveryInstructionSet) {
  const Golden golden[] = {
      {{127, -127, .5, -.5, 1.5, -1.5, 2.5, -2.5}, 0x3f800000, {127, -127, 0, 0, 2, -2, 2, -2}},
      {{127, .5, 1.5, -.5, -1.5, -127}, 0x3f800000, {127, 0, 2, 0, -2, -127}},
      {{0, -0.0F, 0, 0}, 0x3f800000, {0, 0, 0, 0}},
      {{0x1p-24F, -0x1p-24F}, 0x30010204, {127, -127}},
      {{65504, 0.625, -65504, 257.9F, 258}, 0x4400f1e4, {127, 0, -127, 1, 1}},
      {{65519.996F, 1}, 0x4400f1e4, {127, 0}},
      {{-0.0F, 1}, 0x3c010204, {0, 127}},
      {{0x1p-25F, 1e-3F, 1}, 0x3c010204, {0, 0, 127}},
      {{0x1p-25F, -0x1p-26F}, 0x3f800000, {0, 0}},
      {{0.1F, 0.2F, 0.3F, -0.4F, 1 / 3.0F}, 0x3b4e5cb9, {32, 64, 95, -127, 106}},
  };
  for (const Kernels* kernels : runnable_kernels()) {
    for (const Golden& g : golden) {
      const Encoded out = encode_f32(*kernels, g.row);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(out.scales[0]), g.scale_bits) << kernels->name;
      EXPECT_EQ(std::vector<int>(out.codes.begin(), out.codes.end()), g.codes) << kernels->name;
    }
  }
}

TEST(Codec, RowsThatShortcutsGetWrong) {
  for (const Kernels* kernels : runnable_kernels()) {
    SCOPED_TRACE(kernels->name);
    // A multiplication by the reciprocal gives 64; half away from zero gives odd codes; a scale of
    // largest * (1 / 127) is one bit lower.
    const Encoded reciprocal = encode_bits(*kernels, {0x3c03, 0x3803, 0xb803});
    EXPECT_EQ(std::bit_cast<std::uint32_t>(reciprocal.scales[0]), 0x3c0162c6U);
    EXPECT_EQ(reciprocal.codes, (std::vector<std::int8_t>{127, 63, -63}));
    const Encoded ties = encode_bits(*kernels, {0x3c77, 0x1c80, 0x25a0, 0x2910, 0x2b50});
    EXPECT_EQ(std::bit_cast<std::uint32_t>(ties.scales[0]), 0x3c100000U);
    EXPECT_EQ(ties.codes, (std::vector<std::int8_t>{127, 0, 2, 4, 6}));
    const Encoded scale = encode_bits(*kernels, {0x3c78, 0x3800});
    EXPECT_EQ(std::bit_cast<std::uint32_t>(scale.scales[0]), 0x3c102041U);
    EXPECT_EQ(scale.codes, (std::vector<std::int8_t>{127, 57}));
  }
}

TEST(Codec, NonFiniteAfterRoundingNamesTheFirstRow) {
  for (const Kernels* kernels : runnable_kernels()) {
    SCOPED_TRACE(kernels->name);
    for (float bad : {kNan, -kNan, kInfinity, -kInfinity, 65520.0F, -1e30F}) {
      for (std::size_t width : {1U, 3U, 16U, 40U, 128U}) {
        for (std::size_t row : {0U, 7U, 16U, 40U}) {
          std::vector<float> rows(48 * width, 1.0F);
          rows[row * width + width - 1] = bad;
          rows[47 * width] = kNan;
          EXPECT_EQ(encode_f32(*kernels, rows, 48).good_rows, row);
          std::vector<std::uint16_t> half = f16_of(rows);
          EXPECT_EQ(encode(*kernels, kElementF16, dense_job(half.data(), kElementF16, 48, width))
                        .good_rows,
                    row);
          for (std::size_t i = 0; i < half.size(); ++i) half[i] = bf16_from_f32(rows[i]);
          EXPECT_EQ(encode(*kernels, kElementBf16, dense_job(half.data(), kElementBf16, 48, width))
                        .good_rows,
                    row);
        }
      }
    }
  }
}

// Elements whose rows have maxima of every size: subnormal, tiny for bfloat16, powers of two.
std::vector<char> random_elements(std::mt19937& random, Element element, std::size_t rows,
                                  std::size_t width) {
  std::vector<char> out(rows * width * bytes_of(element));
  std::uniform_int_distribution<int> exponent(-30, 15);
  std::normal_distribution<float> normal;
  for (std::size_t row = 0; row < rows; ++row) {
    const float size = std::ldexp(0.25F, exponent(random));
    const float largest = random() % 4 == 0 ? 127.0F * (1 + random() % 16) : 0;
    for (std::size_t i = 0; i < width; ++i) {
      float value = std::max(-7.9F, std::min(7.9F, normal(random))) * size;
      if (largest != 0) value = i == 0 ? largest : (random() % 255 - 127.0F) * largest / 254;
      const std::uint16_t half =
          element == kElementF16 ? f16_from_f32(value) : bf16_from_f32(value);
      if (element == kElementF32) {
        std::memcpy(out.data() + (row * width + i) * 4, &value, 4);
      } else {
        std::memcpy(out.data() + (row * width + i) * 2, &half, 2);
      }
    }
  }
  return out;
}

TEST(Codec, EveryRowEqualsScalarOnRandomShapes) {
  std::mt19937 random(20240501);
  for (int round = 0; round < 600; ++round) {
    const std::size_t heads = 1 + random() % 5;
    const std::size_t rows = heads * (1 + random() % 19);
    const std::size_t common[] = {64, 80, 96, 128, 256};
    const std::size_t width = round % 3 == 0 ? common[random() % 5] : 1 + random() % 200;
    for (Element element : {kElementF32, kElementF16, kElementBf16}) {
      const std::size_t gap = random() % 3;  // elements between heads, rows between tokens
      const std::size_t padded = width + gap;
      const auto elements = random_elements(random, element, rows * 3, padded);
      EncodeJob job = dense_job(elements.data(), element, rows, width);
      job.heads = heads;
      job.head_stride = static_cast<std::ptrdiff_t>(padded * bytes_of(element));
      job.token_stride = job.head_stride * static_cast<std::ptrdiff_t>(heads + gap);
      const Encoded expected = encode(scalar(), element, job);
      for (const Kernels* kernels : runnable_kernels()) {
        for (bool stream : {false, true}) {
          job.stream = stream;
          job.prefetch = stream;
          ASSERT_TRUE(encode(*kernels, element, job) == expected)
              << kernels->name << " element " << int{element} << " rows " << rows << " width "
              << width << " stream " << stream << " round " << round;
        }
      }
    }
  }
}

constexpr int kStoredInt8 = kElementCount;  // beside the plain storages

TEST(Codec, EveryRowDecodesAsScalarOnRandomShapesAndWritesNothingElse) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    const std::size_t runs = 1 + random() % kDecodeRunsMax;
    const std::size_t heads = 1 + random() % 4;
    const std::size_t rows = heads * (1 + random() % 9);
    const std::size_t width = round % 2 == 0 ? 64 + 64 * (random() % 3) : 1 + random() % 200;
    const std::size_t gap = round % 4 == 0 ? 0 : random() % 3;
    std::vector<std::uint32_t> packed(runs * rows * width);  // enough for any storage
    for (auto& bits : packed) bits = static_cast<std::uint32_t>(random());
    std::vector<float> scales(runs * rows);
    for (float& scale : scales) scale = std::ldexp(1.0F + random() % 100, int(random() % 60) - 40);
    if (round % 5 == 0) scales[random() % scales.size()] = round % 2 == 0 ? kNan : -kInfinity;
    if (round % 5 == 1) scales[random() % scales.size()] = 3e38F;  // products overflow
    for (Element element : {kElementF32, kElementF16, kElementBf16}) {
      const std::size_t head_stride = (width + gap) * bytes_of(element);
      const std::size_t token_stride = head_stride * (heads + gap);
      const std::size_t run_bytes = token_stride * (rows / heads);
      for (int stored : {int{kElementF32}, int{kElementF16}, int{kElementBf16}, kStoredInt8}) {
        if (stored == int{element}) continue;
        const std::size_t stored_bytes =
            stored == kStoredInt8 ? 1 : bytes_of(static_cast<Element>(stored));
        const auto decode = [&](const Kernels& kernels, bool far) {
          std::vector<char> out(runs * run_bytes + 1, 0x55);
          std::vector<DecodeRun> list;
          for (std::size_t i = 0; i < runs; ++i) {
            const char* from = reinterpret_cast<const char*>(packed.data());
            list.push_back({from + i * rows * width * stored_bytes, scales.data() + i * rows,
                            out.data() + 1 + i * run_bytes});
          }
          const DecodeJob job{.runs = list.data(),
                              .run_count = runs,
                              .token_stride = static_cast<std::ptrdiff_t>(token_stride),
                              .head_stride = static_cast<std::ptrdiff_t>(head_stride),
                              .heads = heads,
                              .rows = rows,
                              .width = width,
                              .prefetch = far,
                              .stream = far && gap == 0};
          (stored == kStoredInt8 ? kernels.decode_int8
                                 : kernels.decode_plain[stored])[element](job);
          return out;
        };
        const auto expected = decode(scalar(), false);
        for (const Kernels* kernels : runnable_kernels()) {
          for (bool far : {false, true}) {
            ASSERT_EQ(decode(*kernels, far), expected)
                << kernels->name << " element " << int{element} << " stored " << stored << " far "
                << far << " round " << round;
          }
        }
      }
    }
  }
}

TEST(Codec, ScatterAndGatherEqualOnePassOverContiguousRows) {
  constexpr std::size_t kTokens = 333;
  constexpr std::size_t kHeads = 3;
  constexpr std::size_t kHeadDim = 80;
  constexpr std::size_t kPageTokens = 16;
  constexpr std::size_t kFirst = 5;
  constexpr std::size_t kPageRows = kPageTokens * kHeads;
  constexpr std::size_t kPages = (kFirst + kTokens + kPageTokens - 1) / kPageTokens;
  std::mt19937 random(3);
  const auto elements = random_elements(random, kElementF32, kTokens * kHeads, kHeadDim);
  const RowsView in{elements.data(), DType::kF32,           kTokens,     kHeads,
                    kHeadDim,        kHeads * kHeadDim * 4, kHeadDim * 4};
  std::vector<std::int8_t> codes(kTokens * kHeads * kHeadDim);
  std::vector<float> scales(kTokens * kHeads);
  ASSERT_TRUE(encode_int8(in, codes.data(), scales.data()));
  // A page: its scales, then its codes; the pages lie in another order than their positions.
  constexpr std::size_t kPageBytes = kPageRows * (4 + kHeadDim);
  std::vector<float> pool(kPages * kPageBytes / 4);
  std::vector<std::byte*> pages;
  for (std::size_t i = 0; i < kPages; ++i) {  // 7 does not divide the count
    pages.push_back(reinterpret_cast<std::byte*>(pool.data()) + (i * 7 % kPages) * kPageBytes);
  }
  PagedRows paged{pages, DType::kI8, kPageRows * 4, 0, kPageTokens, kFirst};
  for (unsigned threads : {1U, 3U}) {
    ASSERT_TRUE(scatter(in, paged, threads));
    std::vector<float> gathered(codes.size());
    std::vector<float> expected(codes.size());
    MutableRowsView out{gathered.data(), DType::kF32,           kTokens,     kHeads,
                        kHeadDim,        kHeads * kHeadDim * 4, kHeadDim * 4};
    ASSERT_TRUE(gather(paged, out, threads));
    out.data = expected.data();
    decode_int8(codes.data(), scales.data(), out, threads);
    EXPECT_EQ(gathered, expected);
  }
  paged.pages = paged.pages.first(kPages - 1);
  EXPECT_EQ(gather(paged, {nullptr, DType::kF32, kTokens, kHeads, kHeadDim, 0, 0}).code(),
            StatusCode::kInvalidArgument);
}

TEST(Codec, PlainRowsAreRoundedOnceOrKeptBitForBit) {
  constexpr std::size_t kTokens = 100;
  constexpr std::size_t kHeads = 3;
  constexpr std::size_t kWidth = 20;
  constexpr std::size_t kPageTokens = 8;
  std::mt19937 random(4);
  for (DType element : {DType::kF32, DType::kF16, DType::kBf16}) {
    std::vector<std::uint32_t> elements(kTokens * (kHeads + 1) * kWidth);
    for (std::uint32_t& bits : elements) bits = static_cast<std::uint32_t>(random());
    const auto row = static_cast<std::ptrdiff_t>(kWidth * dtype_bytes(element));
    for (DType stored : {DType::kF32, DType::kF16, DType::kBf16}) {
      for (std::ptrdiff_t heads_apart : {kHeads, kHeads + 1}) {
        const RowsView in{elements.data(), element,           kTokens, kHeads,
                          kWidth,          row * heads_apart, row};
        const std::size_t bytes = kTokens * kHeads * kWidth * dtype_bytes(stored);
        std::vector<char> contiguous(bytes);
        encode_plain(in, stored, contiguous.data(), 1 + random() % 3);
        std::vector<char> pool(13 * kPageTokens * kHeads * kWidth * dtype_bytes(stored));
        std::vector<std::byte*> pages;
        for (std::size_t i = 0; i < 13; ++i) {
          pages.push_back(reinterpret_cast<std::byte*>(pool.data()) + i * (pool.size() / 13));
        }
        const PagedRows paged{pages, stored, 0, 0, kPageTokens, 0};
        ASSERT_TRUE(scatter(in, paged));
        EXPECT_TRUE(std::equal(contiguous.begin(), contiguous.end(), pool.begin()));
        std::vector<char> back(elements.size() * 4, 0x5a);
        std::vector<char> whole = back;
        MutableRowsView out{back.data(), element, kTokens, kHeads, kWidth, row * heads_apart, row};
        ASSERT_TRUE(gather(paged, out, 2));
        out.data = whole.data();
        decode_plain(contiguous.data(), stored, out);
        EXPECT_EQ(back, whole);
        // What lies between the rows is not touched; what is stored as it came comes back so.
        const auto* original = reinterpret_cast<const char*>(elements.data());
        for (std::size_t token = 0; token < kTokens; ++token) {
          const auto at = static_cast<std::ptrdiff_t>(token) * row * heads_apart;
          const auto end = at + row * static_cast<std::ptrdiff_t>(kHeads);
          if (stored == element) {
            EXPECT_TRUE(std::equal(original + at, original + end, back.begin() + at));
          }
          for (std::ptrdiff_t i = end; i < at + row * heads_apart; ++i) ASSERT_EQ(back[i], 0x5a);
        }
      }
    }
  }
}

TEST(Codec, OnlyFloatsAreConverted) {
  for (DType stored : {DType::kF32, DType::kF16, DType::kBf16, DType::kI8}) {
    for (DType element : {DType::kF32, DType::kF16, DType::kBf16}) {
      EXPECT_TRUE(converts(stored, element));
    }
    EXPECT_FALSE(converts(stored, DType::kI32));
    EXPECT_FALSE(converts(stored, DType::kI8));
  }
  EXPECT_TRUE(converts(DType::kU8, DType::kU8));
  EXPECT_FALSE(converts(DType::kI32, DType::kU32));
  EXPECT_FALSE(converts(DType::kFp8, DType::kFp8));
  std::byte page[64] = {};
  std::byte* pages[] = {page};
  const std::uint64_t number = 1;
  EXPECT_EQ(scatter({&number, DType::kU64, 1, 1, 1, 8, 8}, {pages, DType::kF16, 0, 0, 1, 0}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(scatter({&number, DType::kU64, 1, 1, 1, 8, 8}, {pages, DType::kU64, 0, 0, 1, 0}));
  EXPECT_EQ(std::memcmp(page, &number, 8), 0);
}

TEST(Codec, ThreadsGiveTheSameBytesAndTheSameFirstBadRow) {
  constexpr std::size_t kRows = 9000;
  std::mt19937 random(11);
  auto elements = random_elements(random, kElementF32, kRows, 128);
  const RowsView in{elements.data(), DType::kF32, kRows / 9, 9, 128, 9 * 512, 512};
  std::vector<std::int8_t> one(kRows * 128);
  std::vector<std::int8_t> many(kRows * 128);
  std::vector<float> one_scales(kRows);
  std::vector<float> many_scales(kRows);
  ASSERT_TRUE(encode_int8(in, one.data(), one_scales.data(), 1));
  ASSERT_TRUE(encode_int8(in, many.data(), many_scales.data(), 4));
  EXPECT_EQ(one, many);
  EXPECT_EQ(one_scales, many_scales);
  for (std::size_t row : {8000U, 5001U, 5000U}) {
    std::memcpy(elements.data() + row * 512 + 4, &kInfinity, 4);
    const Status status = encode_int8(in, many.data(), many_scales.data(), 4);
    EXPECT_EQ(status.code(), StatusCode::kNonFinite);
    EXPECT_NE(status.message().find("row " + std::to_string(row) + ":"), std::string::npos);
  }
}

TEST(Codec, AHostsRoundingModeChangesNothingAndIsRestored) {
  std::mt19937 random(5);
  const auto elements = random_elements(random, kElementF32, 50, 100);
  const RowsView in{elements.data(), DType::kF32, 50, 1, 100, 400, 400};
  std::vector<std::int8_t> expected(5000);
  std::vector<std::int8_t> codes(5000);
  std::vector<float> expected_scales(50);
  std::vector<float> scales(50);
  ASSERT_TRUE(encode_int8(in, expected.data(), expected_scales.data()));
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const bool ok = encode_int8(in, codes.data(), scales.data()).is_ok();
  const int mode = std::fegetround();
  std::fesetround(FE_TONEAREST);
  EXPECT_TRUE(ok);
  EXPECT_EQ(mode, FE_UPWARD);
  EXPECT_EQ(codes, expected);
  EXPECT_EQ(scales, expected_scales);
}

TEST(CodecRegistry, AnUnknownOrAbsentInstructionSetIsAnErrorNotAFallback) {
  EXPECT_EQ(choose_kernels("sse9").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(choose_kernels("AVX2").status().code(), StatusCode::kInvalidArgument);
#if defined(__x86_64__)
  EXPECT_EQ(choose_kernels("neon").status().code(), StatusCode::kUnsupported);
#else
  EXPECT_EQ(choose_kernels("avx2").status().code(), StatusCode::kUnsupported);
#endif
  EXPECT_EQ(choose_kernels("").value(), runnable_kernels().front());
  for (const Kernels* kernels : runnable_kernels()) {
    EXPECT_EQ(choose_kernels(kernels->name).value(), kernels);
  }
}

}  // namespace
}  // namespace kvcache::codec::testing
