// N-grams of one growing history and where they were seen: lookup of the longest end of the history
// that occurred before. The history is the caller's; every match is checked against it, so entries
// of tokens that are no longer there, and hashes that collide, cost a match at most.
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache/status.h"
#include "speculate/ngram_table.h"

namespace kvcache::speculate {

class NgramIndex {
 public:
  using Tokens = std::span<const std::int32_t>;
  static constexpr std::uint64_t kMaxLength = 64;   // tokens of an n-gram
  static constexpr std::uint64_t kMaxLengths = 16;  // that are indexed at once

  // n-grams of min_length..max_length tokens, of `capacity` tokens at once. Hashes are cut to
  // `hash_mask`, for tests. REQUIRES: the limits above; capacity * lengths() < 2^60.
  NgramIndex(std::uint64_t min_length, std::uint64_t max_length, std::uint64_t capacity,
             std::uint64_t hash_mask = ~std::uint64_t{0})
      : min_(min_length), max_(max_length), capacity_(capacity), hash_mask_(hash_mask) {}

  std::uint64_t lengths() const { return max_ - min_ + 1; }
  std::uint64_t observed() const { return next_; }  // tokens of the history that are indexed
  std::uint64_t entries() const { return table_.entries(); }
  std::uint64_t bytes() const { return table_.bytes(); }

  // Takes the memory of the longest history at once. kOutOfCapacity: there is none.
  Status reserve();
  // Indexes what is new in `history`: every n-gram that has a token behind it.
  // kInvalidArgument: more than 2^32 - 1 tokens. kOutOfCapacity: no memory; nothing was changed.
  Status observe(Tokens history);
  // Tokens from `length` on will be others.
  void truncate(std::uint64_t length);

  struct Match {
    std::uint64_t end = 0;     // position of the token behind it
    std::uint64_t length = 0;  // 0: none
  };
  // The longest end of `history` that was indexed before, itself left out.
  Match find(Tokens history, bool earliest) const;

 private:
  static constexpr std::uint64_t kStride = 16;  // positions that are hashed before any is looked up

  // Hashes of the n-grams before `end`, ascending; returns how many there are.
  std::uint64_t hash_before(Tokens history, std::uint64_t end, std::uint64_t* hashes) const;
  void index(Tokens history, std::uint64_t begin, std::uint64_t end);
  void record(Tokens history, std::uint64_t end, std::uint64_t length, std::uint64_t hash);

  std::uint64_t min_;
  std::uint64_t max_;
  std::uint64_t capacity_;
  std::uint64_t hash_mask_;
  NgramTable table_;
  std::uint64_t next_ = 0;
  // Entries of positions from here on may be of tokens that are gone.
  std::uint64_t trusted_ = ~std::uint64_t{0};
};

}  // namespace kvcache::speculate
