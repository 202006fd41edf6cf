#include "base/cpu_features.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvcache::base {
namespace {

#if defined(__x86_64__)
// The register sets that the operating system saves: a bit may be set in CPUID and still be
// unusable.
std::uint64_t saved_state() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

CpuFeatures detect() {
  constexpr std::uint32_t kLeaf1Ecx =
      1U << 12 | 1U << 27 | 1U << 28 | 1U << 29;  // FMA XSAVE AVX F16C
  constexpr std::uint32_t kAvx2 = 1U << 5;
  constexpr std::uint32_t kAvx512Ebx = 1U << 16 | 1U << 17 | 1U << 30 | 1U << 31;  // F DQ BW VL
  constexpr std::uint32_t kVbmiEcx = 1U << 1;
  constexpr std::uint64_t kYmm = 0x06;
  constexpr std::uint64_t kZmm = 0xe6;
  CpuFeatures features;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t c = 0;
  std::uint32_t d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kLeaf1Ecx) != kLeaf1Ecx) return features;
  const std::uint64_t saved = saved_state();
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return features;
  features.avx2 = (saved & kYmm) == kYmm && (b & kAvx2) != 0;
  features.avx512 = features.avx2 && (saved & kZmm) == kZmm && (b & kAvx512Ebx) == kAvx512Ebx &&
                    (c & kVbmiEcx) != 0;
  return features;
}
#elif defined(__aarch64__)
CpuFeatures detect() { return {.neon = true}; }
#else
CpuFeatures detect() { return {}; }
#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace kvcache::base
