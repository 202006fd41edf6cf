// Elements and their arithmetic as kernels use them, the same on host and device: every operation
// is one IEEE float32 operation, rounded to nearest even, and none is fused with another.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "base/host_device.h"
#include "codec/float_bits.h"
#include "kvcache/types.h"

namespace kvcache::cuda {

// The host's side relies on -ffp-contract=off.
KVCACHE_HOST_DEVICE inline float product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

KVCACHE_HOST_DEVICE inline float sum(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

KVCACHE_HOST_DEVICE inline float quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

// Stored bits of an element.
template <DType kDType>
using Raw =
    std::conditional_t<kDType == DType::kF32, std::uint32_t,
                       std::conditional_t<kDType == DType::kI8, std::int8_t, std::uint16_t>>;

template <DType kDType>
KVCACHE_HOST_DEVICE float widened(Raw<kDType> bits) {
  if constexpr (kDType == DType::kF32) return std::bit_cast<float>(bits);
  if constexpr (kDType == DType::kF16) return codec::f32_from_f16(bits);
  if constexpr (kDType == DType::kBf16) return codec::f32_from_bf16(bits);
}

template <DType kDType>
KVCACHE_HOST_DEVICE Raw<kDType> narrowed(float value) {
  if constexpr (kDType == DType::kF32) return std::bit_cast<std::uint32_t>(value);
  if constexpr (kDType == DType::kF16) return codec::f16_from_f32(value);
  if constexpr (kDType == DType::kBf16) return codec::bf16_from_f32(value);
}

// Bits are kept where the types agree, those of a NaN too.
template <DType kFrom, DType kTo>
KVCACHE_HOST_DEVICE Raw<kTo> converted(Raw<kFrom> bits) {
  if constexpr (kFrom == kTo) {
    return bits;
  } else {
    return narrowed<kTo>(widened<kFrom>(bits));
  }
}

// ---- Memory -----------------------------------------------------------------------------------

// One access on a device, which is why the host checks what a device requires.
// REQUIRES: `at` is aligned to T.
template <typename T>
KVCACHE_HOST_DEVICE T load_as(const char* at) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const T*>(at);
#else
  KVCACHE_CHECK(reinterpret_cast<std::uintptr_t>(at) % alignof(T) == 0);
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
#endif
}

template <typename T>
KVCACHE_HOST_DEVICE void store_as(char* at, const T& value) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<T*>(at) = value;
#else
  KVCACHE_CHECK(reinterpret_cast<std::uintptr_t>(at) % alignof(T) == 0);
  std::memcpy(at, &value, sizeof value);
#endif
}

inline constexpr std::uint32_t kQuad = 4;

template <typename T>
struct alignas(kQuad * sizeof(T)) Quad {
  T at[kQuad] = {};
};

// The first `count` elements of a quad. `whole`: all four are one aligned access.
template <typename T>
KVCACHE_HOST_DEVICE Quad<T> load_quad(const char* at, std::uint32_t count, bool whole) {
  if (whole) return load_as<Quad<T>>(at);
  Quad<T> quad;
  for (std::uint32_t i = 0; i < kQuad; ++i) {  // to its end, so that it stays in registers
    if (i < count) quad.at[i] = load_as<T>(at + i * sizeof(T));
  }
  return quad;
}

template <typename T>
KVCACHE_HOST_DEVICE void store_quad(char* at, const Quad<T>& quad, std::uint32_t count,
                                    bool whole) {
  if (whole) return store_as(at, quad);
  for (std::uint32_t i = 0; i < kQuad; ++i) {
    if (i < count) store_as(at + i * sizeof(T), quad.at[i]);
  }
}

}  // namespace kvcache::cuda
