// What the facade shares between a cache and its sequences: the arena, the index and their lock.
// Thread safety: `mutex` guards arena, index and every block table; a sequence's own mutex is taken
// first. Nothing is copied, encoded or written to disk while `mutex` is held. In a child of fork()
// the locks do not block and guard nothing: whoever takes one checks the process first, or next.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arena/pool_map.h"
#include "base/process.h"
#include "cache/clock.h"
#include "kvcache/cache.h"
#include "prefix/placement.h"
#include "prefix/radix_index.h"
#include "sequence/layer_map.h"
#include "sequence/pages_ahead.h"
#include "sequence/sequence_state.h"
#include "speculate/carry_stash.h"
#include "speculate/verify.h"

namespace kvcache {

// Makes the error of a budget that what `by` names needs `bytes` of.
using BudgetRefusal = std::function<Status(std::uint64_t bytes, const char* by)>;
class Tier;
class DiskTier;
class RemoteTier;
struct TierJob;

class CacheCore final : public arena::ItemSource {
 public:
  static Result<std::shared_ptr<CacheCore>> create(StatePlan plan, const CacheOptions& options);

  // Locked. Evicts until the pool can give an item.
  Result<arena::ItemId> allocate(arena::Pool& pool) override;
  Status allocate_many(arena::Pool& pool, std::span<arena::ItemId> items) override;

  // kUnsupported: the cache is a ledger, which has no bytes for `call` to move.
  Status check_backing(std::string_view call) const;

  // kInvalidArgument: the plan has no such group.
  Status check_group(std::size_t group) const;

  // Fills a slot with the state that a snapshot keeps, which somebody must hold.
  void restore(const arena::SnapshotRef& snapshot, std::byte* slot) const;

  // Locked. kOutOfCapacity: as many sequences are open as the plan allows.
  Status check_sequences() const;

  // Own, for every sequence named; the cache's lock is taken inside. Trims windows, then makes the
  // blocks of all rows writable in `groups`, their shared rows copied. kOutOfCapacity: no block
  // table is changed but by trimming.
  Status take_pages(std::span<const sequence::RowsAhead> rows, std::span<const std::size_t> groups);
  // The same, but does nothing where the blocks are the sequences' own already.
  Status make_writable(std::span<const sequence::RowsAhead> rows,
                       std::span<const std::size_t> groups);
  // Own; the cache's lock is taken inside. Copies the shared rows of pages that were taken.
  void copy_shared(sequence::SequenceState& state, std::span<const sequence::PageCopy> copies);
  // Own. Why rows may not be declared complete in place.
  Status check_in_place(const sequence::RowsAhead& rows) const;

  // Milliseconds of a steady clock, unless the caller has one.
  static std::uint64_t now_ms(std::optional<std::uint64_t> callers) {
    return callers ? *callers : Clock::steady_ms();
  }
  // Locked. Lets the index know the time, where that matters or the caller has one.
  void tell_time(std::optional<std::uint64_t> callers) {
    if (callers || index.is_timed()) index.set_now(clock.read(callers));
  }
  // Locked. RadixIndex::insert() at the present time.
  std::uint64_t insert(const SpaceRef& space, std::span<const std::int32_t> tokens,
                       const prefix::BlockTables& tables,
                       std::span<const arena::SnapshotRef> snapshots,
                       const prefix::PathNames& names, std::uint64_t ttl_ms,
                       const std::string& tenant, bool whole = false);
  // Locked. Quotas that are shares, of the budget there is now.
  void follow_budget();
  // Locked. Another budget of the arena, after evicting what it has no room for. `refuse` says why
  // it has none for what must stay; what was evicted until then stays evicted.
  Status set_budget(std::uint64_t bytes, const BudgetRefusal& refuse);
  // Locked. RadixIndex::evict_one() at the present time.
  bool evict_one();
  // Locked. Of the budget with what is reserved, or of what `capacity_blocks` leaves of it.
  std::uint64_t bytes_of(const MemoryShare& share) const;

  // In the order in which they are asked; null: there is none.
  std::array<Tier*, 2> tiers() const;
  bool has_tier() const { return disk || remote; }
  // Unlocked. Brings back from the tiers what they hold of a prompt beyond memory; `at_open`: only
  // from those that open() asks. Whatever fails is a miss.
  void fetch(std::string_view space, std::span<const MediaSpan> media,
             std::span<const std::int32_t> tokens, std::uint64_t ttl_ms, const std::string& tenant,
             bool at_open);
  // Locked. Cache::erase() of memory, which `filter` was checked for. Returns blocks.
  std::uint64_t erase(const EraseFilter& filter);
  // Unlocked. Gives back what a job of the tier has held.
  void release(const TierJob& job);

  // Locked. Counts what limited the hit of a request.
  void count_limit(const prefix::Match& match, std::uint64_t asked);

  // Locked. Without backing, evicts what is stored beyond `capacity_blocks`.
  void trim_ledger();

  const StatePlan plan;
  const bool backing;
  const std::uint64_t capacity_blocks;
  const PlacementOptions placement;
  const MemoryShare pin_limit;
  const std::uint64_t ttl_ms;
  std::string weights;  // locked
  const sequence::LayerMap layers;
  const std::vector<std::size_t> groups;  // 0, 1, ... of the plan

  mutable ProcessMutex mutex;
  const std::unique_ptr<arena::Arena> arena;
  const arena::PoolMap pools;
  prefix::RadixIndex index;
  const bool records_events;
  Clock clock;
  std::uint64_t erasures = 0;        // locked: times that erase() was called
  std::uint64_t reserved_bytes = 0;  // locked: taken out of the arena's budget
  CacheStats counters;               // opens, hits, tokens and open sequences
  // Or null; the last: their threads use the others.
  std::unique_ptr<DiskTier> disk;
  std::unique_ptr<RemoteTier> remote;

  ~CacheCore() override;

 private:
  CacheCore(StatePlan plan_value, const CacheOptions& options,
            std::unique_ptr<arena::Arena> arena_value, const evict::Costs& costs);

  void fetch_from(Tier& tier, std::string_view space, std::span<const MediaSpan> media,
                  std::span<const std::int32_t> tokens, std::uint64_t ttl_ms,
                  const std::string& tenant);
};

// Of a handle that never had a sequence, or has given it away.
inline Status closed() { return Status::invalid_argument("the sequence is closed"); }

// A sequence's lock and state. `state` is empty once closed.
struct SequenceCore {
  static std::shared_ptr<SequenceCore> create(std::shared_ptr<CacheCore> cache);

  const std::shared_ptr<CacheCore> cache;
  mutable ProcessMutex mutex;
  std::optional<sequence::SequenceState> state;
  std::uint64_t cached_tokens = 0;
  std::uint64_t matched_tokens = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint32_t hint = 0;
  std::uint64_t ttl_ms = kForever;  // of what it publishes
  std::string tenant;               // who is charged for it
  // What placement knows of the path: where others parted from it, snapshots it holds already, and
  // what the caller marked.
  std::vector<std::uint64_t> branches;
  std::uint64_t resident_snapshots = 0;
  std::vector<prefix::Mark> marks;               // by ascending position
  std::optional<speculate::VerifyState> verify;  // while a session is open
  std::uint64_t verify_serial = 0;               // of the latest session
  bool verify_begun = false;                     // false until begin_verify() cannot fail any more
  std::uint64_t verified_length = 0;             // where the latest session left it
  std::uint64_t setbacks = 0;                    // own: times that it forgot positions
  speculate::CarryStash stash;                   // what state_now() folds
  prefix::BlockChain chain;       // what events call the path, where they are recorded
  prefix::BlockChain tier_chain;  // what the tiers call it, where there are any
  std::array<std::uint64_t, 2> last_boundary{};  // of each tier, see Tier::store()

  std::uint64_t published = 0;  // by the last publish(), where there is a tier

  // Own; takes the cache's lock. Hands the first `end` positions to the tiers there are.
  void write_behind(std::uint64_t end, bool is_last = false);
  // Own; likewise, at the end of the sequence.
  void write_last() noexcept;

  // Own. The fixed-size state at length(), with every row that waited in the stash: the one way to
  // read it. Null without such state, and without backing.
  std::byte* state_now();
  // Own. Where that state lies, for a caller who overwrites all of it: what waits is dropped.
  std::byte* state_to_replace();

  // Own. What events call the first `end` positions and the snapshots there; empty where none are
  // recorded.
  prefix::PathNames path_names(std::uint64_t end);

  // Own. Forgets what was known of the path past `position`.
  void forget_after(std::uint64_t position);
  // Own. Stops of what is known and has not run.
  std::vector<prefix::Stop> stops() const;
  // Own. Why a snapshot at length() is worth taking.
  prefix::SnapshotKind snapshot_kind() const;

  // Own. Why no call may run: the sequence is closed, or belongs to another process.
  Status check_open() const;
  // Locked. How the request ended, for eviction to learn from.
  void tell_policy(const CloseOptions& options);

  // Own. Why a call that changes the sequence may not run: the same, or a verify is open.
  Status check_idle(std::string_view call) const;

 private:
  explicit SequenceCore(std::shared_ptr<CacheCore> cache_value)
      : cache(std::move(cache_value)), stash(cache->plan, cache->pools.stashes) {}
};

// Locked. What has left an index, and the events that tell it, into the counters.
void add_removals(const prefix::RadixIndex& index, CacheStats& stats);

// What events call a path and its snapshots, hashed into `chain`; empty where none are recorded.
prefix::PathNames path_names(const CacheCore& cache, prefix::BlockChain& chain,
                             const SpaceRef& space, std::span<const std::int32_t> tokens,
                             std::span<const arena::SnapshotRef> snapshots);

// Own. A tensor inside an item; the view keeps the item. Takes the cache's lock.
StateView pin_tensor(const std::shared_ptr<CacheCore>& cache, arena::Pool& pool, arena::ItemId item,
                     const FixedComponent& component);

// kInvalidArgument: none.
Status check_ttl(std::uint64_t ttl_ms);
// kInvalidArgument: `name`, a fraction outside 0..1.
Status check_share(const MemoryShare& share, std::string_view name);

// A field behind its length, so that no two rows of fields meet.
std::string with_length(std::string_view field);

// The name of a prefix space as the index keys it: every field with its length.
std::string space_key(const PrefixSpace& space);

// Whether the fields of a space are those that a filter gives.
bool agrees(std::string_view name, std::string_view adapter, std::string_view salt,
            const EraseFilter& filter);

// What space_key() was made of.
PrefixSpace space_of(std::string_view key);

// kInvalidArgument: media that do not ascend, overlap, are empty or do not lie in [begin, end).
Status check_media(std::span<const MediaSpan> media, std::uint64_t begin, std::uint64_t end);

}  // namespace kvcache
