// Token runs in a ring, the newest over the oldest, and the latest place of each n-gram in them: a
// fixed number of slots, in sets that n-grams share by hash. What a slot points to is checked
// against the ring, so a slot that is stale costs a match at most. Thread safety:
// thread-compatible.
#pragma once

#include <cstdint>
#include <span>

#include "base/malloced.h"

namespace kvcache::speculate {

class NgramRing {
 public:
  static constexpr std::uint64_t kMinBytes = 8192;  // 1024 tokens and as many slots

  // n-grams of `length` tokens, in `bytes` or a little less. REQUIRES: kMinBytes..2^33 bytes.
  NgramRing(std::uint64_t bytes, std::uint64_t length);
  // False when the system has no memory; then nothing else may be called.
  bool has_memory() const { return tokens_ != nullptr; }

  // A new run, without the parts that are predicted already. REQUIRES: no id is negative.
  void insert(std::span<const std::int32_t> tokens);
  // Copies what followed the end of `history`, up to the end of its run; returns how much.
  std::uint64_t find(std::span<const std::int32_t> history, std::span<std::int32_t> drafts) const;

  std::uint64_t tokens() const { return filled_; }  // in the ring, ends of runs included
  std::uint64_t bytes() const { return (slots_ + ring_) * sizeof(std::int32_t); }

 private:
  using Tokens = std::span<const std::int32_t>;

  // The slots of the n-gram that ends before tokens[end].
  std::uint32_t* set_of(Tokens tokens, std::uint64_t end) const;
  // Whether it lies before `place`.
  bool ends_before(std::uint64_t place, Tokens tokens, std::uint64_t end) const;
  // Its latest place, or ring_ when none is known.
  std::uint64_t place_after(Tokens tokens, std::uint64_t end) const;
  void record(Tokens tokens, std::uint64_t end, std::uint64_t place);
  void push(std::int32_t token);
  std::uint64_t before(std::uint64_t place) const { return place == 0 ? ring_ - 1 : place - 1; }
  std::uint64_t after(std::uint64_t place) const { return place + 1 == ring_ ? 0 : place + 1; }

  std::uint64_t length_;
  std::uint64_t slots_;            // a power of two
  std::uint64_t ring_;             // tokens
  Malloced<std::uint32_t> table_;  // place + 1; 0: none
  Malloced<std::int32_t> tokens_;  // kSeparator between runs, and at head_
  std::uint64_t head_ = 0;
  std::uint64_t filled_ = 0;
};

}  // namespace kvcache::speculate
