// Arithmetic on u64 that cannot overflow silently.
#pragma once

#include <cstdint>
#include <optional>

namespace kvcache {

inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0); }

constexpr std::uint64_t round_up(std::uint64_t a, std::uint64_t unit) {
  return ceil_div(a, unit) * unit;
}

}  // namespace kvcache
