// Element formats as types, for code that is compiled once for each. Included only by files of one
// instruction set: all in an anonymous namespace.
#pragma once

#include <cstddef>
#include <cstdint>

#define KVCACHE_INLINE inline __attribute__((always_inline))

namespace kvcache::codec {
namespace {

// kOverflow: the smallest magnitude that is not finite in F16.
struct F32 {
  static constexpr std::size_t kBytes = 4;
  static constexpr std::uint32_t kOverflow = 0x477ff000;
};
struct F16 {
  static constexpr std::size_t kBytes = 2;
  static constexpr std::uint32_t kOverflow = 0x7c00;
};
struct Bf16 {
  static constexpr std::size_t kBytes = 2;
  static constexpr std::uint32_t kOverflow = 0x4780;
};

// Only written: bfloat16 values of which none is NaN.
struct Bf16NoNan {
  static constexpr std::size_t kBytes = 2;
};

template <typename A, typename B>
inline constexpr bool kSame = false;
template <typename A>
inline constexpr bool kSame<A, A> = true;

}  // namespace
}  // namespace kvcache::codec
