// What the processor (and the operating system's saved registers) can run, asked once per process.
#pragma once

namespace kvcache::base {

struct CpuFeatures {
  bool avx2 = false;    // AVX2, FMA and F16C
  bool avx512 = false;  // AVX-512 F, BW, DQ, VL and VBMI
  bool neon = false;    // Advanced SIMD; part of every AArch64
};

const CpuFeatures& cpu_features();

}  // namespace kvcache::base
