// The decoder state of many sequences under one byte budget, with prefix reuse for every component
// at once: pages are shared, fixed-size state is restored from snapshots.
//
//   auto cache = Cache::create(plan, {});
//   auto sequence = (*cache)->open(tokens, {});         // cached_tokens() need no recomputation
//   sequence->write(layer, start, {keys, values});      // for each layer
//   sequence->advance(n);
//   sequence->snapshot();
//   sequence->publish();
//
// Thread safety: Cache and Sequence are thread-safe; a sequence's calls run one at a time, calls on
// different sequences run side by side. Copies and encoding happen outside the cache's lock.
// Handles do not survive fork() of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/codec.h"
#include "kvcache/state_plan.h"
#include "kvcache/status.h"

namespace kvcache {

struct CacheOptions {
  std::string policy = "lru";
  // False: a ledger that places, counts and evicts but stores no bytes.
  bool backing = true;
  // Most blocks a group may hold; 0: as many as the budget allows. Without backing it replaces
  // the byte budget.
  std::uint64_t capacity_blocks = 0;
};

// Whose prefixes may be shared: only sequences that agree in all fields, byte for byte.
struct PrefixSpace {
  std::string name;     // application namespace
  std::string adapter;  // adapter identity, name and revision; empty for none
  std::string salt;
};

struct SaveOptions {
  bool replace = false;  // a prompt cache that is there already
};

// What limited a hit, in the words of explain().
enum class HitLimit : std::uint8_t { kNone = 0, kTokens = 1, kSnapshot = 2, kWindow = 3 };

struct Explanation {
  std::uint64_t tokens = 0;            // asked
  std::uint64_t matched_tokens = 0;    // longest prefix whose tokens are known
  std::uint64_t cached_tokens = 0;     // what a hit would cover
  std::uint64_t nearest_snapshot = 0;  // deepest resident snapshot at or below matched_tokens
  HitLimit limit = HitLimit::kTokens;
};

struct CacheStats {
  std::uint64_t budget_bytes = 0;
  std::uint64_t committed_bytes = 0;  // spans taken from the budget
  std::uint64_t peak_bytes = 0;       // most spans ever taken
  std::uint64_t used_bytes = 0;       // exact bytes of live pages, slots and snapshots
  std::uint64_t open_sequences = 0;
  std::uint64_t pages = 0;  // live, of all groups
  std::uint64_t slots = 0;
  std::uint64_t snapshots = 0;  // live, of sequences, of verify sessions and of the index
  std::uint64_t indexed_blocks = 0;
  std::uint64_t indexed_tokens = 0;
  std::uint64_t indexed_snapshots = 0;
  std::uint64_t evicted_blocks = 0;
  std::uint64_t evicted_snapshots = 0;
  std::uint64_t opens = 0;
  std::uint64_t hits = 0;  // opens with cached tokens
  std::uint64_t asked_tokens = 0;
  std::uint64_t cached_tokens = 0;
};

class Cache;
class CacheCore;
class VerifySession;
struct SequenceCore;

// Keeps a slot alive while somebody looks at a tensor inside it, beyond close().
struct StateView {
  std::byte* data = nullptr;
  const FixedComponent* component = nullptr;
  std::shared_ptr<void> pin;
};

// The live state of one sequence, made by Cache::open(). Once it is closed, every call that returns
// a status or a result is kInvalidArgument.
class Sequence {
 public:
  Sequence() = default;  // closed
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();  // closes

  std::uint64_t cached_tokens() const;   // positions restored by open()
  std::uint64_t matched_tokens() const;  // positions whose tokens the index knew
  std::uint64_t length() const;          // positions complete in every layer
  // Positions written in one layer, complete or not. kInvalidArgument: it keeps no pages.
  Result<std::uint64_t> written(std::int32_t layer) const;
  std::vector<std::int32_t> tokens() const;

  // Declares the tokens of further positions, before they run.
  Status extend(std::span<const std::int32_t> tokens);
  // One layer's rows of [start, start + rows), one view for each component of the layer in declared
  // order. `start` is within length()..positions written. Copied, never kept.
  // kOutOfCapacity, kNonFinite, kInvalidArgument: no position became readable.
  Status write(std::int32_t layer, std::uint64_t start,
               std::span<const codec::RowsView> components);
  // Decodes positions [start, start + components[i].tokens) into the views.
  // kNotFound: they have left the layer's window.
  Status read(std::int32_t layer, std::uint64_t start,
              std::span<const codec::MutableRowsView> components) const;
  // A tensor of the live fixed-size state, to be updated in place. kNotFound: no such tensor.
  // Here and in write() and read(), kUnsupported: the cache is a ledger without bytes.
  Result<StateView> state(std::int32_t layer, std::string_view name) const;
  // The next `positions` are complete. kInvalidArgument: a layer's rows are missing.
  Status advance(std::uint64_t positions);
  // Copies the fixed-size state at length(); publish() makes it visible. Returns length(). For a
  // model without such state there is nothing to copy. kOutOfCapacity: no room for the copy.
  Result<std::uint64_t> snapshot();
  // Positions in [length(), tokens) at which a prefill chunk should end and a snapshot pay:
  // where this prompt left what is known, and before its last token.
  std::vector<std::uint64_t> prefill_stops() const;
  // Makes complete blocks, the tail and the snapshots usable by others.
  Status publish();
  // A second sequence in the same state; pages are shared until written.
  // kOutOfCapacity: no slot, or sequences are at their limit.
  Result<Sequence> fork();
  // Forgets positions from `position` on, their tokens included. With fixed-size state a snapshot
  // at `position` must exist. kUnsupported: it does not, or a window has passed.
  // kInvalidArgument: beyond length().
  Status truncate(std::uint64_t position);
  // Starts a verify of the one known token that has not run and of `drafts` after it; see
  // kvcache/verify.h. While it is open every other call that changes the sequence, and state(), is
  // kInvalidArgument; close() ends both. kInvalidArgument: not exactly one token waits.
  // kOutOfCapacity: no room for drafts + 1 rows and as many copies of the fixed-size state.
  Result<VerifySession> begin_verify(std::span<const std::int32_t> drafts);
  void close();
  bool is_open() const;

 private:
  friend class Cache;

  explicit Sequence(std::shared_ptr<SequenceCore> core);
  std::shared_ptr<SequenceCore> core_;
};

class Cache {
 public:
  // kInvalidArgument: an unknown policy, or a plan that 32-bit block tables cannot address.
  // kOutOfCapacity: the budget cannot hold the state of one block, or the system refuses.
  static Result<std::unique_ptr<Cache>> create(StatePlan plan, const CacheOptions& options);
  ~Cache();

  // Finds the longest usable prefix, shares its pages and restores its fixed-size state.
  // kInvalidArgument: no tokens. kOutOfCapacity: no slot, or sequences are at their limit.
  Result<Sequence> open(std::span<const std::int32_t> tokens, const PrefixSpace& space);
  Explanation explain(std::span<const std::int32_t> tokens, const PrefixSpace& space) const;
  CacheStats stats() const;

  // Writes the longest usable prefix of `tokens`, the last one included, as a prompt cache: the
  // directory `path`, published whole or not at all. Returns its positions. Pages are held, not
  // locked, while they are written. kNotFound: nothing of it is resident. kInvalidArgument: no
  // tokens; `path` exists, or is to be replaced and is no prompt cache. kIoError: the system
  // refused. FORMAT.md describes the directory.
  Result<std::uint64_t> save(const std::string& path, std::span<const std::int32_t> tokens,
                             const PrefixSpace& space, const SaveOptions& options);
  // Makes a saved prefix usable, in the space it was saved under, evicting what it must. Returns
  // its positions. Everything is checked before anything changes. kCorruption: damage, naming the
  // file. kUnsupported: another format version, model, storage or space; or the blocks are so much
  // longer that a window does not fill its first. kOutOfCapacity: none of it was kept.
  Result<std::uint64_t> load(const std::string& path, const PrefixSpace& space);

  // Drops every stored prefix; open sequences keep what they hold.
  void clear();
  const StatePlan& plan() const;
  std::string policy() const;

 private:
  explicit Cache(std::shared_ptr<CacheCore> core);
  std::shared_ptr<CacheCore> core_;
};

}  // namespace kvcache
