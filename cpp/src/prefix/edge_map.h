// The runs that go on from a run, by their first token: a hash table without lists, for a tree of a
// million runs spends most of its time on memory that is not near.
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/prefetch.h"

namespace kvcache::prefix {

// Linear probing, at most two thirds full. A key that goes pulls later ones back, so no marks of
// what was erased slow down what is searched.
class EdgeMap {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  // kNone: there is none.
  std::uint32_t find(std::uint32_t parent, std::int32_t token) const {
    if (slots_.empty()) return kNone;
    return slots_[locate(parent, token)].child;
  }
  void set(std::uint32_t parent, std::int32_t token, std::uint32_t child) {
    if (3 * (count_ + 1) > 2 * slots_.size()) grow();
    Slot& slot = slots_[locate(parent, token)];
    if (slot.child == kNone) ++count_;
    slot = {parent, token, child};
  }
  void erase(std::uint32_t parent, std::int32_t token) {
    if (slots_.empty()) return;
    std::size_t hole = locate(parent, token);
    if (slots_[hole].child == kNone) return;
    --count_;
    for (std::size_t at = next(hole); slots_[at].child != kNone; at = next(at)) {
      // What would be found from before the hole may fill it.
      const std::size_t home = home_of(slots_[at].parent, slots_[at].token);
      if (((at - home) & mask()) < ((at - hole) & mask())) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = {};
  }
  // Where find() and erase() will look first.
  void prefetch(std::uint32_t parent, std::int32_t token) const {
    if (!slots_.empty()) base::prefetch(&slots_[home_of(parent, token)]);
  }
  std::size_t size() const { return count_; }
  void clear() noexcept {
    slots_.clear();
    count_ = 0;
    shift_ = 64;
  }

 private:
  struct Slot {
    std::uint32_t parent = 0;
    std::int32_t token = 0;
    std::uint32_t child = kNone;
  };

  std::size_t mask() const { return slots_.size() - 1; }
  std::size_t next(std::size_t at) const { return (at + 1) & mask(); }
  std::size_t home_of(std::uint32_t parent, std::int32_t token) const {
    std::uint64_t key = std::uint64_t{parent} << 32 | static_cast<std::uint32_t>(token);
    key *= 0x9E3779B97F4A7C15;
    key ^= key >> 32;
    return (key * 0xD6E8FEB86659FD93) >> shift_;
  }
  // Its slot, or the empty one where it would be.
  std::size_t locate(std::uint32_t parent, std::int32_t token) const {
    std::size_t at = home_of(parent, token);
    while (slots_[at].child != kNone &&
           (slots_[at].parent != parent || slots_[at].token != token)) {
      at = next(at);
    }
    return at;
  }
  void grow() {
    std::vector<Slot> larger(slots_.empty() ? 16 : slots_.size() * 2);
    larger.swap(slots_);
    shift_ = slots_.size() == 16 ? 60 : shift_ - 1;
    for (const Slot& slot : larger) {
      if (slot.child != kNone) slots_[locate(slot.parent, slot.token)] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two
  std::size_t count_ = 0;
  int shift_ = 64;
};

}  // namespace kvcache::prefix
