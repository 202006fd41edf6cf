// Conversions between float32, float16 and bfloat16 by bits: round to nearest even, subnormals
// kept.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace kvcache::codec {

KVCACHE_HOST_DEVICE inline std::uint16_t f16_from_f32(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {  // NaN: quiet, the payload cut, as the hardware does
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  }
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // >= 65520
  if (magnitude < 0x38800000U) {  // below 2^-14: a subnormal, in steps of 2^-24
    if (magnitude < 0x33000000U) return static_cast<std::uint16_t>(sign);  // below 2^-25
    const std::uint32_t exponent = magnitude >> 23;
    const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
    const std::uint32_t shift = 126 - exponent;  // 14..24
    const std::uint32_t half = 1U << (shift - 1);
    const std::uint32_t rest = mantissa & ((1U << shift) - 1);
    std::uint32_t result = mantissa >> shift;
    if (rest > half || (rest == half && (result & 1))) ++result;
    return static_cast<std::uint16_t>(sign | result);
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

KVCACHE_HOST_DEVICE inline float f32_from_f16(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000U} << 16;
  const std::uint32_t exponent = (half >> 10) & 31U;
  const std::uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  if (exponent == 31) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | mantissa << 13);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

KVCACHE_HOST_DEVICE inline float f32_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

KVCACHE_HOST_DEVICE inline std::uint16_t bf16_from_f32(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace kvcache::codec
