// Names of blocks that outlive the blocks: a 64-bit hash of all tokens up to a block's end. Two
// paths that share a block share its key; a collision costs a wrong guess, never wrong state.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace kvcache::evict {

namespace block_keys_internal {

__extension__ using U128 = unsigned __int128;

inline std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const U128 product = static_cast<U128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t load(const std::byte* bytes, std::size_t count) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, count);
  return word;
}

inline std::uint64_t hash(std::uint64_t seed, std::span<const std::byte> bytes) {
  constexpr std::uint64_t kOdd[] = {0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9};
  std::uint64_t even = seed ^ kOdd[0];
  std::uint64_t odd = seed ^ kOdd[1];
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 32; left -= 32, at += 32) {
    even = fold(load(at, 8) ^ kOdd[1], load(at + 8, 8) ^ even);
    odd = fold(load(at + 16, 8) ^ kOdd[2], load(at + 24, 8) ^ odd);
  }
  for (; left > 0;) {
    const std::size_t step = left < 8 ? left : 8;
    even = fold(load(at, step) ^ kOdd[1], even ^ kOdd[2]);
    left -= step;
    at += step;
  }
  return fold(even ^ kOdd[2], odd ^ bytes.size() ^ kOdd[0]);
}

}  // namespace block_keys_internal

// Of the block of `tokens` that follows the block named `before`.
inline std::uint64_t block_key(std::uint64_t before, std::span<const std::int32_t> tokens) {
  return block_keys_internal::hash(before, std::as_bytes(tokens));
}

// What comes before the first block of a path.
inline std::uint64_t space_seed(std::string_view space) {
  return block_keys_internal::hash(0, std::as_bytes(std::span(space.data(), space.size())));
}

}  // namespace kvcache::evict
