// Where n-grams of a token history were seen, by their hash: open addressing in groups of 16 with a
// byte of the hash for each bucket, after hashbrown. Nothing is removed one by one: a table that is
// full, or whose groups are, gives up the entry of a group that was seen longest ago, so every call
// takes bounded time whatever the hashes are.
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/malloced.h"

namespace kvcache::speculate {

class NgramTable {
 public:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t first;  // position after its earliest occurrence
    std::uint32_t last;   // after the latest; 0 in an entry that was just claimed
  };
  static_assert(sizeof(Entry) == 16);

  // Buckets that `entries` take at a load of at most 7/8; 0 for none. REQUIRES: entries < 2^60.
  static std::uint64_t buckets_for(std::uint64_t entries);

  NgramTable() = default;  // no buckets, for find() only
  // Empty, of buckets_for() some entries. False when the system has no memory; then as before.
  bool allocate(std::uint64_t buckets);

  std::uint64_t buckets() const { return buckets_; }
  std::uint64_t entries() const { return used_; }
  std::uint64_t bytes() const { return buckets_ == 0 ? 0 : buckets_ * sizeof(Entry) + controls(); }

  // Null when there is none.
  const Entry* find(std::uint64_t hash) const;
  // The entry of `hash`, made or taken over when there is none. REQUIRES: buckets() > 0.
  Entry& claim(std::uint64_t hash);
  // Brings what the calls above look at closer.
  void prefetch(std::uint64_t hash) const {
    __builtin_prefetch(control_ + home(hash) * kGroup);
    __builtin_prefetch(entries_ + home(hash) * kGroup);
  }

 private:
  static constexpr std::uint64_t kGroup = 16;
  static constexpr std::uint64_t kProbes = 8;  // groups that are looked at

  std::uint64_t controls() const { return buckets_ + kGroup; }  // a group is read whole
  std::uint64_t home(std::uint64_t hash) const { return hash & group_mask_; }
  Entry* find_in(std::uint64_t group, std::uint64_t hash) const;
  // Bucket of the first empty one of a group; kGroup without.
  std::uint64_t empty_in(std::uint64_t group) const;
  Entry& place(std::uint64_t bucket, std::uint64_t hash);
  Entry& take_over(std::uint64_t group, std::uint64_t hash);

  Malloced<std::byte> memory_;
  Entry* entries_ = nullptr;
  std::uint8_t* control_ = nullptr;  // 0: empty
  std::uint64_t buckets_ = 0;
  std::uint64_t group_mask_ = 0;
  std::uint64_t limit_ = 0;  // entries beyond which no empty bucket is taken
  std::uint64_t used_ = 0;
};

// One more token, to the left, in the hash of an n-gram that begins with 0 and its last token.
inline std::uint64_t hash_token(std::uint64_t hash, std::int32_t token) {
  hash = (hash + static_cast<std::uint32_t>(token) + 0x9E3779B97F4A7C15U) * 0xD6E8FEB86659FD93U;
  return hash ^ (hash >> 32);
}

}  // namespace kvcache::speculate
