// The AArch64 row: Advanced SIMD of ARMv8.0, 4 floats at a time.
#include <arm_neon.h>

#include "base/cpu_features.h"
#include "codec/row_pipeline.h"

namespace kvcache::codec {
namespace {

struct Floats16 {
  float32x4_t part[4];
};

struct Neon {
  // bfloat16 is inexact in F16 only below 2^-17: codes of 0 in a row of 2^-8 or more.
  template <typename In>
  static constexpr std::uint32_t kDirectMin = kSame<In, Bf16> ? 0x3b80 : 0;

  struct Partial {
    std::uint32_t largest[kGroupRows];
  };

  template <typename In>
  KVCACHE_INLINE static std::uint32_t row_maximum(const char* row, std::size_t width) {
    const std::size_t bytes = width * In::kBytes;
    uint32x4_t largest = vdupq_n_u32(0);
    const auto take = [&](const char* at) {
      const uint8x16_t v = vld1q_u8(reinterpret_cast<const std::uint8_t*>(at));
      if constexpr (kSame<In, F32>) {
        const uint32x4_t magnitude = vbicq_u32(vreinterpretq_u32_u8(v), vdupq_n_u32(1U << 31));
        largest = vmaxq_u32(largest, magnitude);
      } else {
        const uint16x8_t magnitude = vbicq_u16(vreinterpretq_u16_u8(v), vdupq_n_u16(1U << 15));
        largest = vreinterpretq_u32_u16(vmaxq_u16(vreinterpretq_u16_u32(largest), magnitude));
      }
    };
    std::size_t at = 0;
    for (; at + 16 <= bytes; at += 16) take(row + at);
    if (at < bytes) {
      char tail[16] = {};
      __builtin_memcpy(tail, row + at, bytes - at);
      take(tail);
    }
    if constexpr (kSame<In, F32>) return vmaxvq_u32(largest);
    return vmaxvq_u16(vreinterpretq_u16_u32(largest));
  }

  template <typename In>
  KVCACHE_INLINE static Partial magnitudes(const char* const* rows, std::size_t width) {
    return {{row_maximum<In>(rows[0], width), row_maximum<In>(rows[1], width),
             row_maximum<In>(rows[2], width), row_maximum<In>(rows[3], width)}};
  }

  template <typename In>
  KVCACHE_INLINE static bool reduce(const Partial* four, std::uint32_t* magnitude) {
    __builtin_memcpy(magnitude, four, kGroups * sizeof(Partial));
    std::uint32_t overflow = 0;
    for (std::size_t i = 0; i < kBlockRows; ++i) {
      overflow |= magnitude[i] >= In::kOverflow ? 1U : 0U;
    }
    return overflow != 0;
  }

  KVCACHE_INLINE static float32x4_t through_f16(float32x4_t values) {
    return vcvt_f32_f16(vcvt_f16_f32(values));
  }

  // 16 elements, widened; exact.
  template <typename In>
  KVCACHE_INLINE static Floats16 load(const char* at) {
    Floats16 out;
    for (std::size_t i = 0; i < 4; ++i) {
      const char* four = at + i * 4 * In::kBytes;
      if constexpr (kSame<In, F32>) {
        out.part[i] = vreinterpretq_f32_u8(vld1q_u8(reinterpret_cast<const std::uint8_t*>(four)));
      } else {
        const uint8x8_t raw = vld1_u8(reinterpret_cast<const std::uint8_t*>(four));
        if constexpr (kSame<In, F16>) {
          out.part[i] = vcvt_f32_f16(vreinterpret_f16_u8(raw));
        } else {
          out.part[i] = vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(raw), 16));
        }
      }
    }
    return out;
  }
  template <typename In>
  KVCACHE_INLINE static Floats16 load_tail(const char* at, std::size_t count) {
    char tail[64] = {};
    __builtin_memcpy(tail, at, count * In::kBytes);
    return load<In>(tail);
  }

  KVCACHE_INLINE static int8x16_t low_bytes(const int32x4_t* q) {
    const int16x8_t low = vuzp1q_s16(vreinterpretq_s16_s32(q[0]), vreinterpretq_s16_s32(q[1]));
    const int16x8_t high = vuzp1q_s16(vreinterpretq_s16_s32(q[2]), vreinterpretq_s16_s32(q[3]));
    return vuzp1q_s8(vreinterpretq_s8_s16(low), vreinterpretq_s8_s16(high));
  }

  // Adding 1.5 * 2^23 rounds to even at the units and leaves the code in the low byte.
  template <typename In>
  KVCACHE_INLINE static int8x16_t quantise16(const Floats16& elements, float inverse) {
    int32x4_t q[4];
    for (std::size_t i = 0; i < 4; ++i) {
      float32x4_t h = elements.part[i];
      if constexpr (kSame<In, F32>) h = through_f16(h);
      q[i] = vreinterpretq_s32_f32(vfmaq_f32(vdupq_n_f32(0x1.8p23F), h, vdupq_n_f32(inverse)));
    }
    return low_bytes(q);
  }

  template <typename In>
  KVCACHE_INLINE static void quantise(const char* row, std::size_t width, float inverse,
                                      std::int8_t* codes) {
    std::size_t i = 0;
    for (; i + 16 <= width; i += 16) {
      vst1q_s8(codes + i, quantise16<In>(load<In>(row + i * In::kBytes), inverse));
    }
    if (i < width) {
      const Floats16 tail = load_tail<In>(row + i * In::kBytes, width - i);
      store_codes(codes + i, quantise16<In>(tail, inverse), width - i);
    }
  }
  KVCACHE_INLINE static void store_codes(std::int8_t* codes, int8x16_t q, std::size_t count) {
    std::int8_t all[16];
    vst1q_s8(all, q);
    __builtin_memcpy(codes, all, count);
  }

  template <typename In>
  __attribute__((noinline)) static void quantise_by_division(const char* row, std::size_t width,
                                                             float scale, std::int8_t* codes) {
    for (std::size_t i = 0; i < width; i += 16) {
      const std::size_t count = width - i < 16 ? width - i : 16;
      const Floats16 elements = load_tail<In>(row + i * In::kBytes, count);
      int32x4_t q[4];
      for (std::size_t k = 0; k < 4; ++k) {
        const float32x4_t h = through_f16(elements.part[k]);
        q[k] = vcvtnq_s32_f32(vdivq_f32(h, vdupq_n_f32(scale)));
      }
      store_codes(codes + i, low_bytes(q), count);
    }
  }

  // The bfloat16 nearest to each float; NaN stays NaN, quiet.
  KVCACHE_INLINE static uint16x4_t to_bf16(float32x4_t values) {
    const uint32x4_t bits = vreinterpretq_u32_f32(values);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(values, values), rounded, quiet), 16);
  }

  template <typename Out>
  KVCACHE_INLINE static void store(char* at, const Floats16& values) {
    for (std::size_t i = 0; i < 4; ++i) {
      auto* four = reinterpret_cast<std::uint8_t*>(at + i * 4 * Out::kBytes);
      if constexpr (kSame<Out, F32>) {
        vst1q_u8(four, vreinterpretq_u8_f32(values.part[i]));
      } else if constexpr (kSame<Out, F16>) {
        vst1_u8(four, vreinterpret_u8_f16(vcvt_f16_f32(values.part[i])));
      } else {
        vst1_u8(four, vreinterpret_u8_u16(to_bf16(values.part[i])));
      }
    }
  }
  template <typename Out>
  KVCACHE_INLINE static void store_tail(char* at, const Floats16& values, std::size_t count) {
    char tail[64];
    store<Out>(tail, values);
    __builtin_memcpy(at, tail, count * Out::kBytes);
  }

  KVCACHE_INLINE static Floats16 dequantise(int8x16_t q, float scale) {
    const int16x8_t low = vmovl_s8(vget_low_s8(q));
    const int16x8_t high = vmovl_s8(vget_high_s8(q));
    const auto part = [&](int16x4_t four) {
      return vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(four)), scale);
    };
    return {{part(vget_low_s16(low)), part(vget_high_s16(low)), part(vget_low_s16(high)),
             part(vget_high_s16(high))}};
  }

  template <typename Out>
  KVCACHE_INLINE static void decode(const std::int8_t* codes, std::size_t width, float scale,
                                    char* out) {
    std::size_t i = 0;
    for (; i + 16 <= width; i += 16) {
      store<Out>(out + i * Out::kBytes, dequantise(vld1q_s8(codes + i), scale));
    }
    if (i < width) {
      std::int8_t tail[16] = {};
      __builtin_memcpy(tail, codes + i, width - i);
      store_tail<Out>(out + i * Out::kBytes, dequantise(vld1q_s8(tail), scale), width - i);
    }
  }

  template <typename From, typename To>
  KVCACHE_INLINE static void convert(const char* from, std::size_t width, char* to) {
    std::size_t i = 0;
    for (; i + 16 <= width; i += 16) {
      store<To>(to + i * To::kBytes, load<From>(from + i * From::kBytes));
    }
    if (i < width) {
      store_tail<To>(to + i * To::kBytes, load_tail<From>(from + i * From::kBytes, width - i),
                     width - i);
    }
  }

  // For folds: see fold_pipeline.h.
  using Floats = Floats16;
  static constexpr std::size_t kLanes = 16;
  static constexpr std::size_t kFoldVectors = 2;
  KVCACHE_INLINE static Floats16 splat(float value) {
    const float32x4_t four = vdupq_n_f32(value);
    return {{four, four, four, four}};
  }
  KVCACHE_INLINE static Floats16 multiply(const Floats16& a, const Floats16& b) {
    return {{vmulq_f32(a.part[0], b.part[0]), vmulq_f32(a.part[1], b.part[1]),
             vmulq_f32(a.part[2], b.part[2]), vmulq_f32(a.part[3], b.part[3])}};
  }
  KVCACHE_INLINE static Floats16 add(const Floats16& a, const Floats16& b) {
    return {{vaddq_f32(a.part[0], b.part[0]), vaddq_f32(a.part[1], b.part[1]),
             vaddq_f32(a.part[2], b.part[2]), vaddq_f32(a.part[3], b.part[3])}};
  }
  template <typename Stored>
  KVCACHE_INLINE static Floats16 rounded(const Floats16& values) {
    char stored[16 * Stored::kBytes];
    store<Stored>(stored, values);
    return load<Stored>(stored);
  }

  KVCACHE_INLINE static void prefetch(const char* at) { __builtin_prefetch(at, 0, 2); }
  KVCACHE_INLINE static void stream_line(char* to, const char* from) {
    __builtin_memcpy(to, from, kLine);
  }
  KVCACHE_INLINE static void stream_fence() {}
};

bool supported() { return base::cpu_features().neon; }

}  // namespace

extern const Kernels kKernelsNeon;
const Kernels kKernelsNeon = kernels<Neon>("neon", supported);

}  // namespace kvcache::codec
