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

// Four chains of multiplications side by side, one for each 16 bytes of 64.
inline std::uint64_t hash(std::uint64_t seed, std::span<const std::byte> bytes) {
  constexpr std::uint64_t kOdd[] = {0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                                    0xD6E8FEB86659FD93};
  std::uint64_t chain[4];
  for (int i = 0; i < 4; ++i) chain[i] = seed ^ kOdd[i];
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 64; left -= 64, at += 64) {
    for (int i = 0; i < 4; ++i) {
      chain[i] = fold(load(at + 16 * i, 8) ^ kOdd[i], load(at + 16 * i + 8, 8) ^ chain[i]);
    }
  }
  while (left > 0) {
    const std::size_t step = left < 8 ? left : 8;
    chain[0] = fold(load(at, step) ^ kOdd[1], chain[0] ^ kOdd[2]);
    left -= step;
    at += step;
  }
  const std::uint64_t low = fold(chain[0] ^ kOdd[2], chain[1] ^ bytes.size() ^ kOdd[0]);
  return fold(low ^ chain[2], chain[3] ^ kOdd[1]);
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
