// A growing set of small integers that gives its smallest member in O(log64 n): free items are
// handed out lowest first, so that the spans at the end of a pool empty and can be given back.
// Thread safety: thread-compatible.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvcache::arena {

class FreeBitmap {
 public:
  // Makes room for members below `size`; never shrinks.
  void grow(std::size_t size) {
    for (std::size_t level = 0;; ++level) {
      const std::size_t words = (size + 63) / 64;
      if (level == levels_.size()) {
        levels_.emplace_back(words, 0);
        // A new top level must know what the level below already holds.
        if (level > 0) rebuild(level);
      } else if (levels_[level].size() < words) {
        levels_[level].resize(words, 0);
      }
      if (words <= 1) break;
      size = words;
    }
  }

  // REQUIRES for both: grow(id + 1) was called.
  void insert(std::size_t id) {
    for (auto& level : levels_) {
      level[id / 64] |= std::uint64_t{1} << (id % 64);
      id /= 64;
    }
  }
  void erase(std::size_t id) {
    for (auto& level : levels_) {
      level[id / 64] &= ~(std::uint64_t{1} << (id % 64));
      if (level[id / 64] != 0) break;
      id /= 64;
    }
  }

  std::optional<std::size_t> first() const {
    if (levels_.empty() || levels_.back().empty() || levels_.back()[0] == 0) return std::nullopt;
    std::size_t id = 0;
    for (std::size_t level = levels_.size(); level-- > 0;) {
      id = id * 64 + static_cast<std::size_t>(std::countr_zero(levels_[level][id]));
    }
    return id;
  }

 private:
  void rebuild(std::size_t level) {
    for (std::size_t word = 0; word < levels_[level - 1].size(); ++word) {
      if (levels_[level - 1][word] != 0) {
        levels_[level][word / 64] |= std::uint64_t{1} << (word % 64);
      }
    }
  }

  std::vector<std::vector<std::uint64_t>> levels_;  // [0] has one bit for each member
};

}  // namespace kvcache::arena
