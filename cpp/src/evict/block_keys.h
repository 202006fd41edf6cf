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
class RollingHash {
 public:
  explicit RollingHash(std::uint64_t seed) {
    for (int i = 0; i < 4; ++i) chain_[i] = seed ^ kOdd[i];
  }

  // Of all bytes from the first on: those of the call before, and what follows them.
  std::uint64_t of(std::span<const std::byte> bytes) {
    for (; bytes.size() - done_ >= 64; done_ += 64) {
      const std::byte* at = bytes.data() + done_;
      for (int i = 0; i < 4; ++i) {
        chain_[i] = fold(load(at + 16 * i, 8) ^ kOdd[i], load(at + 16 * i + 8, 8) ^ chain_[i]);
      }
    }
    std::uint64_t first = chain_[0];
    for (std::size_t at = done_; at < bytes.size(); at += 8) {
      const std::size_t step = bytes.size() - at < 8 ? bytes.size() - at : 8;
      first = fold(load(bytes.data() + at, step) ^ kOdd[1], first ^ kOdd[2]);
    }
    const std::uint64_t low = fold(first ^ kOdd[2], chain_[1] ^ bytes.size() ^ kOdd[0]);
    return fold(low ^ chain_[2], chain_[3] ^ kOdd[1]);
  }

 private:
  static constexpr std::uint64_t kOdd[] = {0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F,
                                           0x165667B19E3779F9, 0xD6E8FEB86659FD93};
  std::uint64_t chain_[4];
  std::size_t done_ = 0;  // a multiple of 64
};

inline std::uint64_t hash(std::uint64_t seed, std::span<const std::byte> bytes) {
  return RollingHash(seed).of(bytes);
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
