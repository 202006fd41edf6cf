// What is known of every run of blocks that requests have used, whether it is stored or not. The
// runs form a tree like the index's, with hashes for tokens; each has one past: its blocks were
// used by the same requests. A run's blocks are stored from its first one on; what is stored of
// none is a ghost, kept until the metadata budget is spent.
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/chunked_vector.h"
#include "evict/policy.h"

namespace kvcache::evict {

using RecordId = std::uint32_t;
inline constexpr RecordId kNoRecord = UINT32_MAX;

struct Links {
  RecordId before = kNoRecord;
  RecordId after = kNoRecord;
};

struct Record {
  // A record that may be gone by the time it is looked at.
  struct Ref {
    RecordId id = kNoRecord;
    std::uint32_t generation = 0;
  };

  std::vector<std::uint32_t> marks;  // snapshots taken within it, by SnapshotPrices
  std::vector<std::uint64_t> keys;   // of its blocks; 0: a part of a block, which nothing finds
  std::int64_t first_block = 0;      // on its path; of a root -1, so that its one key is the seed
  Ref parent;
  Ref last_child;            // the latest continuation
  RunId run = 0;             // of the index, where stored > 0
  std::uint32_t stored = 0;  // blocks, from the first on
  std::uint32_t shadow = 0;  // blocks that LRU would have, from the first on
  std::uint32_t generation = 0;
  std::uint32_t cls = 0;
  double weight = 0;     // of one block, among those that were filed together
  std::uint64_t t0 = 0;  // ms of the last use
  Links drawer;          // stored and evictable: in its cell; a ghost: among the ghosts
  Links timer;           // unless a request is running on it
  Links recency;         // where shadow > 0
  std::uint8_t bucket = 0;
  std::uint8_t uses = 0;      // saturating
  std::uint8_t children = 0;  // continuations ever seen, saturating
  bool listed = false;        // in a cell's drawer
  bool cheap = false;         // since its last use, the price list has or would have evicted it
  bool timed = false;         // its interval is open
  bool root = false;

  std::uint32_t blocks() const { return static_cast<std::uint32_t>(keys.size()); }
  // Blocks that LRU would have and that are not stored.
  std::uint32_t owed() const { return shadow > stored ? shadow - stored : 0; }
  // Whether LRU would have its last stored block.
  bool shadowed() const { return shadow >= stored; }
  std::int64_t end_block() const { return first_block + static_cast<std::int64_t>(keys.size()); }
};

class History;

// A list through one of a record's links; a record knows by other means whether it is on it.
class RecordList {
 public:
  explicit RecordList(Links Record::* links) : links_(links) {}
  RecordId front() const { return ends_.after; }
  bool empty() const { return ends_.after == kNoRecord; }
  void push_back(History& history, RecordId id) { insert_before(history, id, kNoRecord); }
  void push_front(History& history, RecordId id) { insert_before(history, id, ends_.after); }
  void insert_before(History& history, RecordId id, RecordId next);
  void remove(History& history, RecordId id);

 private:
  Links Record::* links_;
  Links ends_;  // before: the last; after: the first
};

class History {
 public:
  History(std::uint64_t block_tokens, std::uint64_t ghost_bytes)
      : block_tokens_(block_tokens), ghost_bytes_limit_(ghost_bytes) {}

  Record& operator[](RecordId id) { return records_[id]; }
  Record::Ref ref(RecordId id) const { return {id, records_[id].generation}; }
  RecordId get(Record::Ref ref) const {
    const bool there = ref.id != kNoRecord && records_[ref.id].generation == ref.generation;
    return there ? ref.id : kNoRecord;
  }

  RecordId add_root(std::uint64_t seed);
  RecordId add(RecordId parent, std::int64_t first_block, std::span<const std::uint64_t> keys);
  // The ghost that begins with this block; kNoRecord when there is none.
  RecordId find_ghost(std::uint64_t key, std::int64_t block) const;
  // Cuts its first `blocks` off, as a new record with the same past; the rest, and what continues
  // it, keep the id. Lists are the caller's business, but for the ghosts'.
  RecordId split(RecordId id, std::uint32_t blocks);
  void erase(RecordId id);

  // Names of the blocks of `path` from the one that holds `start` on; `parent` is the record before
  // it.
  std::vector<std::uint64_t> keys(RecordId parent, std::span<const std::int32_t> path,
                                  std::uint64_t start) const;

  // Enters or leaves the ghosts, as `stored` says.
  void store(RecordId id, std::uint32_t blocks);
  // The ghost to forget next; kNoRecord while they are within their budget.
  RecordId excess_ghost() const {
    return ghost_bytes_ > ghost_bytes_limit_ ? ghosts_.front() : kNoRecord;
  }

 private:
  static std::uint64_t bytes(const Record& record) {
    return sizeof(Record) + record.keys.size() * sizeof(std::uint64_t) + 48;  // 48: directory
  }
  RecordId allocate();
  void enter_ghosts(RecordId id, RecordId next);
  void leave_ghosts(RecordId id);

  const std::uint64_t block_tokens_;
  const std::uint64_t ghost_bytes_limit_;
  base::ChunkedVector<Record> records_;
  std::vector<RecordId> free_;
  std::unordered_map<std::uint64_t, RecordId> ghosts_by_key_;  // their first
  RecordList ghosts_{&Record::drawer};                         // by the time they became ghosts
  std::uint64_t ghost_bytes_ = 0;
};

}  // namespace kvcache::evict
