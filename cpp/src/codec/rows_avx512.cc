// The AVX-512 row (F, BW, DQ, VL, VBMI): 16 floats at a time.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics headers
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include "base/cpu_features.h"
#include "codec/row_pipeline.h"

namespace kvcache::codec {
namespace {

constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

KVCACHE_INLINE __mmask16 first16(std::size_t count) {
  return static_cast<__mmask16>((1U << count) - 1);
}

// Byte indices. Joined registers hold in dword i the codes of lane i of four parts; the order puts
// them in a row, for parts that are 16 elements each or the even and odd of 32 elements each.
struct Order {
  std::uint8_t spread[64];  // the low byte of each dword to all four
  std::uint8_t in_turn[64];
  std::uint8_t paired[64];
};
alignas(64) constexpr Order kOrder = [] {
  Order order{};
  for (unsigned i = 0; i < 64; ++i) {
    order.spread[i] = static_cast<std::uint8_t>(i % 16 / 4 * 4);
    order.in_turn[i] = static_cast<std::uint8_t>(i % 16 * 4 + i / 16);
    order.paired[i] = static_cast<std::uint8_t>(i % 32 / 2 * 4 + i / 32 * 2 + i % 2);
  }
  return order;
}();

struct Avx512 {
  // bfloat16 is inexact in F16 only below 2^-17: codes of 0 in a row of 2^-8 or more. float32 is
  // rounded to 11 significant bits, which is F16 from 2^-14 up: codes of 0 in a row of 2^-6.
  template <typename In>
  static constexpr std::uint32_t kDirectMin = kSame<In, Bf16>  ? 0x3b80
                                              : kSame<In, F32> ? 0x3c800000
                                                               : 0;

  using Partial = __m512i;  // 16 bytes of candidates for each of four rows

  template <typename In>
  KVCACHE_INLINE static __m512i max(__m512i a, __m512i b) {
    return kSame<In, F32> ? _mm512_max_epi32(a, b) : _mm512_max_epu16(a, b);
  }

  template <typename In>
  KVCACHE_INLINE static __m512i row_maxima(const char* row, std::size_t width) {
    const __m512i magnitude =
        kSame<In, F32> ? _mm512_set1_epi32(0x7fffffff) : _mm512_set1_epi16(0x7fff);
    const std::size_t bytes = width * In::kBytes;
    __m512i largest = _mm512_setzero_si512();
    std::size_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
      largest = max<In>(largest, _mm512_and_si512(_mm512_loadu_si512(row + at), magnitude));
    }
    if (at < bytes) {
      const __mmask64 left = (__mmask64{1} << (bytes - at)) - 1;
      const __m512i tail = _mm512_maskz_loadu_epi8(left, row + at);
      largest = max<In>(largest, _mm512_and_si512(tail, magnitude));
    }
    return largest;
  }

  template <typename In>
  KVCACHE_INLINE static Partial magnitudes(const char* const* rows, std::size_t width) {
    const __m512i a = row_maxima<In>(rows[0], width);
    const __m512i b = row_maxima<In>(rows[1], width);
    const __m512i c = row_maxima<In>(rows[2], width);
    const __m512i d = row_maxima<In>(rows[3], width);
    const __m512i ab = max<In>(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
    const __m512i cd = max<In>(_mm512_shuffle_i64x2(c, d, 0x44), _mm512_shuffle_i64x2(c, d, 0xee));
    return max<In>(_mm512_shuffle_i64x2(ab, cd, 0x88), _mm512_shuffle_i64x2(ab, cd, 0xdd));
  }

  template <typename In>
  KVCACHE_INLINE static __m512i merge32(__m512i a, __m512i b) {
    return max<In>(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  }

  template <typename In>
  KVCACHE_INLINE static bool reduce(const Partial* four, std::uint32_t* magnitude) {
    const __m512i ab = merge32<In>(four[0], four[1]);
    const __m512i cd = merge32<In>(four[2], four[3]);
    __m512i all = max<In>(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    if constexpr (!kSame<In, F32>) {
      all = _mm512_max_epu16(all, _mm512_srli_epi32(all, 16));
      all = _mm512_and_si512(all, _mm512_set1_epi32(0xffff));
    }
    // Lane l, dword g holds row 4 g + l.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_store_si512(magnitude, _mm512_permutexvar_epi32(order, all));
    return _mm512_cmpge_epi32_mask(all, _mm512_set1_epi32(In::kOverflow)) != 0;
  }

  KVCACHE_INLINE static __m512 bf16_to_f32(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  KVCACHE_INLINE static __m512 through_f16(__m512 values) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(values, kNearest));
  }

  // To 11 significant bits, ties to even: adding 1.5 * 2^(e + 13) drops the others. Conversions to
  // F16 and back would take four operations, tied to one port each.
  KVCACHE_INLINE static __m512 round_to_11_bits(__m512 values) {
    const __m512 shift = _mm512_set1_ps(0x1.8p13F);
    const __m512 power = _mm512_and_ps(values, _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000)));
    return _mm512_fnmadd_ps(power, shift, _mm512_fmadd_ps(power, shift, values));
  }

  // 16 elements, widened; exact.
  template <typename In>
  KVCACHE_INLINE static __m512 load(const char* at) {
    if constexpr (kSame<In, F32>) {
      return _mm512_loadu_ps(at);
    } else {
      const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      return kSame<In, F16> ? _mm512_cvtph_ps(half) : bf16_to_f32(half);
    }
  }
  template <typename In>
  KVCACHE_INLINE static __m512 load_tail(const char* at, std::size_t count) {
    if constexpr (kSame<In, F32>) {
      return _mm512_maskz_loadu_ps(first16(count), at);
    } else {
      const __m256i half = _mm256_maskz_loadu_epi16(first16(count), at);
      return kSame<In, F16> ? _mm512_cvtph_ps(half) : bf16_to_f32(half);
    }
  }

  // The low byte of each lane is the code: adding 1.5 * 2^23 rounds to even at the units.
  template <typename In>
  KVCACHE_INLINE static __m512i scale_and_round(__m512 elements, __m512 inverse) {
    if constexpr (kSame<In, F32>) elements = round_to_11_bits(elements);
    return _mm512_castps_si512(_mm512_fmadd_ps(elements, inverse, _mm512_set1_ps(0x1.8p23F)));
  }

  // The low bytes of four registers. A masked byte shuffle is one operation; the two-register byte
  // permutation, vpermt2b, would be three.
  KVCACHE_INLINE static __m512i join(__m512i a, __m512i b, __m512i c, __m512i d,
                                     const std::uint8_t* order) {
    const __m512i spread = _mm512_load_si512(kOrder.spread);
    __m512i all = _mm512_mask_shuffle_epi8(a, 0x2222222222222222, b, spread);
    all = _mm512_mask_shuffle_epi8(all, 0x4444444444444444, c, spread);
    all = _mm512_mask_shuffle_epi8(all, 0x8888888888888888, d, spread);
    return _mm512_permutexvar_epi8(_mm512_load_si512(order), all);
  }

  template <typename In>
  KVCACHE_INLINE static __m512i quantise64(const char* row, __m512 inverse) {
    if constexpr (kSame<In, Bf16>) {
      const __m512i v = _mm512_loadu_si512(row);
      const __m512i w = _mm512_loadu_si512(row + 64);
      const auto even = [&](__m512i x) {
        return scale_and_round<In>(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), inverse);
      };
      const auto odd = [&](__m512i x) {
        const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
        return scale_and_round<In>(_mm512_castsi512_ps(_mm512_and_si512(x, upper)), inverse);
      };
      return join(even(v), odd(v), even(w), odd(w), kOrder.paired);
    } else {
      const auto part = [&](std::size_t i) {
        return scale_and_round<In>(load<In>(row + 16 * i * In::kBytes), inverse);
      };
      return join(part(0), part(1), part(2), part(3), kOrder.in_turn);
    }
  }

  template <typename In>
  KVCACHE_INLINE static void quantise(const char* row, std::size_t width, float inverse,
                                      std::int8_t* codes) {
    const __m512 by = _mm512_set1_ps(inverse);
    std::size_t i = 0;
    for (; i + 64 <= width; i += 64) {
      _mm512_storeu_si512(codes + i, quantise64<In>(row + i * In::kBytes, by));
    }
    for (; i + 16 <= width; i += 16) {
      const __m512i q = scale_and_round<In>(load<In>(row + i * In::kBytes), by);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(q));
    }
    if (i < width) {
      const __m512 tail = load_tail<In>(row + i * In::kBytes, width - i);
      _mm512_mask_cvtepi32_storeu_epi8(codes + i, first16(width - i),
                                       scale_and_round<In>(tail, by));
    }
  }

  template <typename In>
  __attribute__((noinline)) static void quantise_by_division(const char* row, std::size_t width,
                                                             float scale, std::int8_t* codes) {
    for (std::size_t i = 0; i < width; i += 16) {
      const std::size_t count = width - i < 16 ? width - i : 16;
      const __m512 h = through_f16(load_tail<In>(row + i * In::kBytes, count));
      const __m512i q = _mm512_cvt_roundps_epi32(_mm512_div_ps(h, _mm512_set1_ps(scale)), kNearest);
      _mm512_mask_cvtepi32_storeu_epi8(codes + i, first16(count), q);
    }
  }

  // The bfloat16 nearest to each float; NaN stays NaN, quiet.
  template <typename Out>
  KVCACHE_INLINE static __m256i to_bf16(__m512 values) {
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i out = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    if constexpr (kSame<Out, Bf16>) {
      const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
      out = _mm512_mask_or_epi32(out, nan, upper, _mm512_set1_epi32(0x40));
    }
    return _mm512_cvtepi32_epi16(out);
  }
  template <typename Out>
  KVCACHE_INLINE static __m256i to_half(__m512 values) {
    if constexpr (kSame<Out, F16>) return _mm512_cvtps_ph(values, kNearest);
    return to_bf16<Out>(values);
  }

  template <typename Out>
  KVCACHE_INLINE static void store(char* at, __m512 values) {
    if constexpr (kSame<Out, F32>) {
      _mm512_storeu_ps(at, values);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), to_half<Out>(values));
    }
  }
  template <typename Out>
  KVCACHE_INLINE static void store_tail(char* at, __m512 values, std::size_t count) {
    if constexpr (kSame<Out, F32>) {
      _mm512_mask_storeu_ps(at, first16(count), values);
    } else {
      _mm256_mask_storeu_epi16(at, first16(count), to_half<Out>(values));
    }
  }

  template <typename Out>
  KVCACHE_INLINE static void decode(const std::int8_t* codes, std::size_t width, float scale,
                                    char* out) {
    const __m512 by = _mm512_set1_ps(scale);
    const auto dequantise = [&](__m128i q) {
      return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)), by);
    };
    std::size_t i = 0;
    for (; i + 16 <= width; i += 16) {
      const auto* at = reinterpret_cast<const __m128i*>(codes + i);
      store<Out>(out + i * Out::kBytes, dequantise(_mm_loadu_si128(at)));
    }
    if (i < width) {
      const __m128i q = _mm_maskz_loadu_epi8(first16(width - i), codes + i);
      store_tail<Out>(out + i * Out::kBytes, dequantise(q), width - i);
    }
  }

  template <typename From, typename To>
  KVCACHE_INLINE static void convert(const char* from, std::size_t width, char* to) {
    std::size_t i = 0;
    for (; i + 16 <= width; i += 16) {
      store<To>(to + i * To::kBytes, load<From>(from + i * From::kBytes));
    }
    if (i < width) {
      const __m512 tail = load_tail<From>(from + i * From::kBytes, width - i);
      store_tail<To>(to + i * To::kBytes, tail, width - i);
    }
  }

  // For folds: see fold_pipeline.h.
  using Floats = __m512;
  static constexpr std::size_t kLanes = 16;
  static constexpr std::size_t kFoldVectors = 8;
  KVCACHE_INLINE static __m512 splat(float value) { return _mm512_set1_ps(value); }
  KVCACHE_INLINE static __m512 multiply(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
  KVCACHE_INLINE static __m512 add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  template <typename Stored>
  KVCACHE_INLINE static __m512 rounded(__m512 values) {
    if constexpr (kSame<Stored, F16>) return through_f16(values);
    // A NaN is quiet, being a result, so that its upper half is one.
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __mmask16 number = _mm512_cmp_ps_mask(values, values, _CMP_ORD_Q);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_mask_add_epi32(bits, number, bits, bias), upper));
  }

  KVCACHE_INLINE static void prefetch(const char* at) { _mm_prefetch(at, _MM_HINT_T1); }
  KVCACHE_INLINE static void stream_line(char* to, const char* from) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_load_si512(from));
  }
  KVCACHE_INLINE static void stream_fence() { _mm_sfence(); }
};

bool supported() { return base::cpu_features().avx512; }

}  // namespace

extern const Kernels kKernelsAvx512;
const Kernels kKernelsAvx512 = kernels<Avx512>("avx512", supported);

}  // namespace kvcache::codec
