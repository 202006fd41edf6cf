// The AVX2 row (with FMA and F16C): 8 floats at a time.
#include <immintrin.h>

#include "base/cpu_features.h"
#include "codec/row_pipeline.h"

namespace kvcache::codec {
namespace {

constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

KVCACHE_INLINE __m128i load128(const void* at) {
  return _mm_loadu_si128(static_cast<const __m128i*>(at));
}
KVCACHE_INLINE __m256i load256(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
KVCACHE_INLINE __m256i dwords(int a, int b, int c, int d, int e, int f, int g, int h) {
  return _mm256_setr_epi32(a, b, c, d, e, f, g, h);
}

struct Avx2 {
  // bfloat16 is inexact in F16 only below 2^-17: codes of 0 in a row of 2^-8 or more. float32 is
  // rounded to 11 significant bits, which is F16 from 2^-14 up: codes of 0 in a row of 2^-6.
  template <typename In>
  static constexpr std::uint32_t kDirectMin = kSame<In, Bf16>  ? 0x3b80
                                              : kSame<In, F32> ? 0x3c800000
                                                               : 0;

  struct Partial {  // 16 bytes of candidates for each of four rows
    __m256i ab;
    __m256i cd;
  };

  template <typename In>
  KVCACHE_INLINE static __m256i max(__m256i a, __m256i b) {
    return kSame<In, F32> ? _mm256_max_epi32(a, b) : _mm256_max_epu16(a, b);
  }

  template <typename In>
  KVCACHE_INLINE static __m256i row_maxima(const char* row, std::size_t width) {
    const __m256i magnitude =
        kSame<In, F32> ? _mm256_set1_epi32(0x7fffffff) : _mm256_set1_epi16(0x7fff);
    const std::size_t bytes = width * In::kBytes;
    __m256i largest = _mm256_setzero_si256();
    std::size_t at = 0;
    for (; at + 32 <= bytes; at += 32) {
      largest = max<In>(largest, _mm256_and_si256(load256(row + at), magnitude));
    }
    if (at < bytes) {
      char tail[32] = {};
      __builtin_memcpy(tail, row + at, bytes - at);
      largest = max<In>(largest, _mm256_and_si256(load256(tail), magnitude));
    }
    return largest;
  }

  template <typename In>
  KVCACHE_INLINE static __m256i pair(__m256i a, __m256i b) {
    return max<In>(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
  }

  template <typename In>
  KVCACHE_INLINE static Partial magnitudes(const char* const* rows, std::size_t width) {
    return {pair<In>(row_maxima<In>(rows[0], width), row_maxima<In>(rows[1], width)),
            pair<In>(row_maxima<In>(rows[2], width), row_maxima<In>(rows[3], width))};
  }

  template <typename In>
  KVCACHE_INLINE static __m256i merge32(__m256i a, __m256i b) {
    return max<In>(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  }

  template <typename In>
  KVCACHE_INLINE static __m256i reduce8(const Partial& low, const Partial& high) {
    const __m256i a = merge32<In>(low.ab, low.cd);
    const __m256i b = merge32<In>(high.ab, high.cd);
    __m256i all = max<In>(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    if constexpr (!kSame<In, F32>) {
      all = _mm256_max_epu16(all, _mm256_srli_epi32(all, 16));
      all = _mm256_and_si256(all, _mm256_set1_epi32(0xffff));
    }
    // Lane l, dword d holds row 2 d + l.
    return _mm256_permutevar8x32_epi32(all, dwords(0, 4, 1, 5, 2, 6, 3, 7));
  }

  template <typename In>
  KVCACHE_INLINE static bool reduce(const Partial* four, std::uint32_t* magnitude) {
    auto* out = reinterpret_cast<__m256i*>(magnitude);
    const __m256i low = reduce8<In>(four[0], four[1]);
    const __m256i high = reduce8<In>(four[2], four[3]);
    _mm256_store_si256(out, low);
    _mm256_store_si256(out + 1, high);
    const __m256i limit = _mm256_set1_epi32(static_cast<int>(In::kOverflow) - 1);
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(_mm256_max_epi32(low, high), limit)) != 0;
  }

  KVCACHE_INLINE static __m256 bf16_to_f32(__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  KVCACHE_INLINE static __m256 through_f16(__m256 values) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(values, kNearest));
  }

  // To 11 significant bits, ties to even: adding 1.5 * 2^(e + 13) drops the others. F16C's
  // conversions would take four operations and wait for the one port that also packs.
  KVCACHE_INLINE static __m256 round_to_11_bits(__m256 values) {
    const __m256 shift = _mm256_set1_ps(0x1.8p13F);
    const __m256 power = _mm256_and_ps(values, _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000)));
    return _mm256_fnmadd_ps(power, shift, _mm256_fmadd_ps(power, shift, values));
  }

  // 8 elements, widened; exact.
  template <typename In>
  KVCACHE_INLINE static __m256 load(const char* at) {
    if constexpr (kSame<In, F32>) return _mm256_castsi256_ps(load256(at));
    if constexpr (kSame<In, F16>) return _mm256_cvtph_ps(load128(at));
    return bf16_to_f32(load128(at));
  }
  template <typename In>
  KVCACHE_INLINE static __m256 load_tail(const char* at, std::size_t count) {
    char tail[32] = {};
    __builtin_memcpy(tail, at, count * In::kBytes);
    return load<In>(tail);
  }

  // The low 16 bits of each lane are the code: adding 1.5 * 2^23 rounds to even at the units.
  template <typename In>
  KVCACHE_INLINE static __m256i scale_and_round(__m256 elements, __m256 inverse) {
    if constexpr (kSame<In, F32>) elements = round_to_11_bits(elements);
    return _mm256_castps_si256(_mm256_fmadd_ps(elements, inverse, _mm256_set1_ps(0x1.8p23F)));
  }

  KVCACHE_INLINE static __m256i interleave16(__m256i even, __m256i odd) {
    return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
  }

  template <typename In>
  KVCACHE_INLINE static __m256i quantise32(const char* row, __m256 inverse) {
    if constexpr (kSame<In, Bf16>) {
      const auto half = [&](__m256i v) {
        const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
        const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
        const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(v, upper));
        return interleave16(scale_and_round<In>(even, inverse), scale_and_round<In>(odd, inverse));
      };
      const __m256i packed = _mm256_packs_epi16(half(load256(row)), half(load256(row + 32)));
      return _mm256_permute4x64_epi64(packed, 0xd8);
    } else {
      const auto part = [&](std::size_t i) {
        return scale_and_round<In>(load<In>(row + 8 * i * In::kBytes), inverse);
      };
      const __m256i ab = interleave16(part(0), part(1));
      const __m256i cd = interleave16(part(2), part(3));
      // In each lane: a b a b ... c d c d ..., four of each; sort, then join the lanes' dwords.
      const __m256i sort = _mm256_broadcastsi128_si256(
          _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
      const __m256i sorted = _mm256_shuffle_epi8(_mm256_packs_epi16(ab, cd), sort);
      return _mm256_permutevar8x32_epi32(sorted, dwords(0, 4, 1, 5, 2, 6, 3, 7));
    }
  }

  KVCACHE_INLINE static std::int64_t low_bytes(__m256i lanes) {
    const __m256i pick = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m256i picked = _mm256_shuffle_epi8(lanes, pick);
    return _mm_cvtsi128_si64(
        _mm_unpacklo_epi32(_mm256_castsi256_si128(picked), _mm256_extracti128_si256(picked, 1)));
  }

  template <typename In>
  KVCACHE_INLINE static void quantise(const char* row, std::size_t width, float inverse,
                                      std::int8_t* codes) {
    const __m256 by = _mm256_set1_ps(inverse);
    std::size_t i = 0;
    for (; i + 32 <= width; i += 32) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i),
                          quantise32<In>(row + i * In::kBytes, by));
    }
    for (; i + 8 <= width; i += 8) {
      const std::int64_t q = low_bytes(scale_and_round<In>(load<In>(row + i * In::kBytes), by));
      __builtin_memcpy(codes + i, &q, 8);
    }
    if (i < width) {
      const __m256 tail = load_tail<In>(row + i * In::kBytes, width - i);
      const std::int64_t q = low_bytes(scale_and_round<In>(tail, by));
      __builtin_memcpy(codes + i, &q, width - i);
    }
  }

  template <typename In>
  __attribute__((noinline)) static void quantise_by_division(const char* row, std::size_t width,
                                                             float scale, std::int8_t* codes) {
    const auto divide = [&](__m256 elements) {
      const __m256 quotients = _mm256_div_ps(through_f16(elements), _mm256_set1_ps(scale));
      return low_bytes(_mm256_cvtps_epi32(quotients));
    };
    std::size_t i = 0;
    for (; i + 8 <= width; i += 8) {
      const std::int64_t q = divide(load<In>(row + i * In::kBytes));
      __builtin_memcpy(codes + i, &q, 8);
    }
    if (i < width) {
      const std::int64_t q = divide(load_tail<In>(row + i * In::kBytes, width - i));
      __builtin_memcpy(codes + i, &q, width - i);
    }
  }

  // The bfloat16 nearest to each float; NaN stays NaN, quiet.
  template <typename Out>
  KVCACHE_INLINE static __m128i to_bf16(__m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i out = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    if constexpr (kSame<Out, Bf16>) {
      const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
      const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
      out = _mm256_blendv_epi8(out, quiet, nan);
    }
    return _mm_packus_epi32(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
  }

  template <typename Out>
  KVCACHE_INLINE static void store(char* at, __m256 values) {
    if constexpr (kSame<Out, F32>) {
      _mm256_storeu_ps(reinterpret_cast<float*>(at), values);
    } else {
      const __m128i half = [&] {
        if constexpr (kSame<Out, F16>) return _mm256_cvtps_ph(values, kNearest);
        return to_bf16<Out>(values);
      }();
      _mm_storeu_si128(reinterpret_cast<__m128i*>(at), half);
    }
  }
  template <typename Out>
  KVCACHE_INLINE static void store_tail(char* at, __m256 values, std::size_t count) {
    char tail[32];
    store<Out>(tail, values);
    __builtin_memcpy(at, tail, count * Out::kBytes);
  }

  template <typename Out>
  KVCACHE_INLINE static void decode(const std::int8_t* codes, std::size_t width, float scale,
                                    char* out) {
    const __m256 by = _mm256_set1_ps(scale);
    const auto dequantise = [&](__m128i q) {
      return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)), by);
    };
    std::size_t i = 0;
    for (; i + 8 <= width; i += 8) {
      const auto* at = reinterpret_cast<const __m128i*>(codes + i);
      store<Out>(out + i * Out::kBytes, dequantise(_mm_loadl_epi64(at)));
    }
    if (i < width) {
      std::int64_t tail = 0;
      __builtin_memcpy(&tail, codes + i, width - i);
      store_tail<Out>(out + i * Out::kBytes, dequantise(_mm_cvtsi64_si128(tail)), width - i);
    }
  }

  template <typename From, typename To>
  KVCACHE_INLINE static void convert(const char* from, std::size_t width, char* to) {
    std::size_t i = 0;
    for (; i + 8 <= width; i += 8) {
      store<To>(to + i * To::kBytes, load<From>(from + i * From::kBytes));
    }
    if (i < width) {
      store_tail<To>(to + i * To::kBytes, load_tail<From>(from + i * From::kBytes, width - i),
                     width - i);
    }
  }

  // For folds: see fold_pipeline.h.
  using Floats = __m256;
  static constexpr std::size_t kLanes = 8;
  static constexpr std::size_t kFoldVectors = 8;
  KVCACHE_INLINE static __m256 splat(float value) { return _mm256_set1_ps(value); }
  KVCACHE_INLINE static __m256 multiply(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  KVCACHE_INLINE static __m256 add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  template <typename Stored>
  KVCACHE_INLINE static __m256 rounded(__m256 values) {
    if constexpr (kSame<Stored, F16>) return through_f16(values);
    // A NaN is quiet, being a result, so that its upper half is one.
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_add_epi32(bits, _mm256_andnot_si256(nan, bias)), upper));
  }

  KVCACHE_INLINE static void prefetch(const char* at) { _mm_prefetch(at, _MM_HINT_T1); }
  KVCACHE_INLINE static void stream_line(char* to, const char* from) {
    auto* line = reinterpret_cast<__m256i*>(to);
    _mm256_stream_si256(line, load256(from));
    _mm256_stream_si256(line + 1, load256(from + 32));
  }
  KVCACHE_INLINE static void stream_fence() { _mm_sfence(); }
};

bool supported() { return base::cpu_features().avx2; }

}  // namespace

extern const Kernels kKernelsAvx2;
const Kernels kKernelsAvx2 = kernels<Avx2>("avx2", supported);

}  // namespace kvcache::codec
