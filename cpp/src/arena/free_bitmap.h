// A growing set of small integers that gives its smallest member in O(log64 n): free items are
// handed out lowest first, so that the spans at the end of a pool empty and can be given back.
// Thread safety: thread-compatible.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvcache::arena {

class FreeBitmap {
 public:
  // Makes room for members below `size`, at most 64^6; never shrinks.
  void grow(std::size_t size) {
    for (std::size_t level = 0;; ++level) {
      const std::size_t words = (size + 63) / 64;
      if (level == height_) {
        levels_[level].assign(words, 0);
        ++height_;
        // A new top level must know what the level below already holds.
        if (level > 0) rebuild(level);
      } else if (levels_[level].size() < words) {
        levels_[level].resize(words, 0);
      }
      if (words <= 1) break;
      size = words;
    }
  }

  // REQUIRES for these: grow(id + 1) was called.
  void insert(std::size_t id) {
    for (std::size_t level = 0; level < height_; ++level) {
      std::uint64_t& word = levels_[level][id / 64];
      const bool known = word != 0;  // then the levels above know of it
      word |= std::uint64_t{1} << (id % 64);
      if (known) break;
      id /= 64;
    }
  }
  void erase(std::size_t id) { clear_from(0, id); }
  bool contains(std::size_t id) const { return (levels_[0][id / 64] >> (id % 64) & 1) != 0; }

  std::optional<std::size_t> first() const {
    if (empty()) return std::nullopt;
    std::size_t id = 0;
    for (std::size_t level = height_; level-- > 0;) {
      id = id * 64 + static_cast<std::size_t>(std::countr_zero(levels_[level][id]));
    }
    return id;
  }
  std::optional<std::size_t> last() const {
    if (empty()) return std::nullopt;
    std::size_t id = 0;
    for (std::size_t level = height_; level-- > 0;) {
      id = id * 64 + 63 - static_cast<std::size_t>(std::countl_zero(levels_[level][id]));
    }
    return id;
  }

  // Removes the smallest members, ascending into `out`, as many as it takes or as there are: a
  // word of 64 at a time. Returns their number.
  std::size_t take(std::span<std::int32_t> out) {
    std::size_t taken = 0;
    while (taken < out.size()) {
      const auto at = first();
      if (!at) break;
      const std::size_t index = *at / 64;
      std::uint64_t word = levels_[0][index];
      for (; word != 0 && taken < out.size(); word &= word - 1) {
        const std::size_t bit = static_cast<std::size_t>(std::countr_zero(word));
        out[taken++] = static_cast<std::int32_t>(index * 64 + bit);
      }
      levels_[0][index] = word;
      if (word == 0) clear_from(1, index);
    }
    return taken;
  }

  std::size_t memory_bytes() const {
    std::size_t bytes = 0;
    for (const auto& level : levels_) bytes += level.capacity() * sizeof(std::uint64_t);
    return bytes;
  }

 private:
  bool empty() const {
    return height_ == 0 || levels_[height_ - 1].empty() || levels_[height_ - 1][0] == 0;
  }

  void clear_from(std::size_t level, std::size_t id) {
    for (; level < height_; ++level) {
      std::uint64_t& word = levels_[level][id / 64];
      word &= ~(std::uint64_t{1} << (id % 64));
      if (word != 0) break;
      id /= 64;
    }
  }

  void rebuild(std::size_t level) {
    for (std::size_t word = 0; word < levels_[level - 1].size(); ++word) {
      if (levels_[level - 1][word] != 0) {
        levels_[level][word / 64] |= std::uint64_t{1} << (word % 64);
      }
    }
  }

  std::array<std::vector<std::uint64_t>, 6> levels_;  // [0] has one bit for each member
  std::size_t height_ = 0;                            // levels in use
};

}  // namespace kvcache::arena
