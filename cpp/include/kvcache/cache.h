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
// Handles do not survive fork() of the process: in the child every call that can fail is
// kInvalidArgument, others answer as an empty cache does, and destructors leave the memory alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/disk_tier.h"
#include "kvcache/events.h"
#include "kvcache/explanation.h"
#include "kvcache/lifetime.h"
#include "kvcache/memory_options.h"
#include "kvcache/pages.h"
#include "kvcache/placement.h"
#include "kvcache/prefix_space.h"
#include "kvcache/prompt_cache.h"
#include "kvcache/remote_tier.h"
#include "kvcache/request.h"
#include "kvcache/reservation.h"
#include "kvcache/sequence.h"
#include "kvcache/state_plan.h"
#include "kvcache/status.h"
#include "kvcache/tenants.h"

namespace kvcache {

struct CacheOptions {
  std::string policy = "price_list";
  // False: a ledger that places, counts and evicts but stores no bytes.
  bool backing = true;
  // Most blocks a group may hold; 0: as many as the budget allows. Without backing it replaces
  // the byte budget: stored prefixes may take the bytes of so many blocks, snapshots included, and
  // open sequences come on top.
  std::uint64_t capacity_blocks = 0;
  // What resize() can reach; 0: the machine's memory. Addresses are reserved for it, no memory.
  std::uint64_t max_memory_bytes = 0;
  MemoryOptions memory = {};
  CostModel costs = {};  // of recomputing, for policies that weigh it
  PlacementOptions placement = {};
  std::string weights = {};  // names them, for files
  // Most block names in events that wait to be taken; 0: nothing is recorded. Enough is what a
  // router may miss between two calls, in all groups: a prompt of n blocks has n names in each.
  std::uint64_t event_capacity = 0;
  MemoryShare pin_limit = {.fraction = 0.5};  // what all pins together may hold
  std::uint64_t ttl_ms = kForever;            // of what is stored without another; see OpenOptions
  DiskTierOptions disk = {};                  // where what is published is kept as well
  RemoteTierOptions remote = {};              // likewise, by a server for many caches
};

// What erase() drops. A field that is not given agrees with everything.
struct EraseFilter {
  std::optional<std::string> name;
  std::optional<std::string> adapter;  // without a revision, all of them
  std::optional<std::string> salt;
  std::vector<MediaSpan> media;
  std::vector<std::int32_t> tokens;
  // What a tenant is charged for. Its prefixes that others continue, or resume inside, stay and are
  // nobody's from then on; of others', its snapshots go.
  std::optional<std::string> tenant = {};
};

struct CacheStats {
  std::uint64_t budget_bytes = 0;     // what is reserved included
  std::uint64_t reserved_bytes = 0;   // of the budget, for memory that lies elsewhere
  std::uint64_t committed_bytes = 0;  // spans taken from the budget
  std::uint64_t peak_bytes = 0;       // most spans ever taken
  std::uint64_t used_bytes = 0;       // exact bytes of live pages, slots and snapshots
  std::uint64_t idle_bytes = 0;       // committed, holding nothing: any pool takes them
  std::uint64_t max_bytes = 0;        // most that resize() can make of the budget
  std::uint64_t open_sequences = 0;
  std::uint64_t epoch = 0;  // times that the weights have changed
  std::uint64_t pages = 0;  // live, of all groups
  std::uint64_t slots = 0;
  std::uint64_t snapshots = 0;        // live, of sequences, of verify sessions and of the index
  std::uint64_t lossy_snapshots = 0;  // those of them that are not exact
  std::uint64_t ring_snapshots = 0;   // live, in the decode rings of sequences
  std::uint64_t indexed_blocks = 0;
  std::uint64_t indexed_tokens = 0;
  std::uint64_t indexed_snapshots = 0;
  std::vector<std::uint64_t> group_pages;  // live, by group
  // What has left the index: by the policy, for other snapshots of the path, by erase(), by clear()
  // and bump_epoch(); and pages of windows that give way inside a run.
  std::uint64_t evicted_blocks = 0;
  std::uint64_t evicted_snapshots = 0;
  std::uint64_t thinned_snapshots = 0;
  std::uint64_t erased_blocks = 0;
  std::uint64_t erased_snapshots = 0;
  std::uint64_t dropped_blocks = 0;
  std::uint64_t dropped_snapshots = 0;
  std::vector<std::uint64_t> window_pages_evicted;  // by group
  std::uint64_t expired_blocks = 0;                 // dropped at the end of their time to live
  std::uint64_t pins = 0;
  std::uint64_t pinned_pages = 0;  // that pins keep, of all groups
  std::uint64_t pinned_bytes = 0;  // those pages and snapshots, each counted once
  std::uint64_t lapsed_leases = 0;
  std::uint64_t opens = 0;
  std::uint64_t hits = 0;  // opens with cached tokens
  std::uint64_t asked_tokens = 0;
  std::uint64_t cached_tokens = 0;
  // Opens by what limited their hit, see HitLimit; `none`: only the last token had to run.
  std::uint64_t limited_by_none = 0;
  std::uint64_t limited_by_tokens = 0;
  std::uint64_t limited_by_snapshot = 0;
  std::uint64_t limited_by_window = 0;
  std::uint64_t unknown_tokens = 0;        // asked, of no stored prefix
  std::uint64_t lost_snapshot_tokens = 0;  // known, but no snapshot was there
  std::uint64_t lost_window_tokens = 0;    // known, but a window was not
  std::uint64_t waiting_events = 0;        // names in events that were not taken
  std::uint64_t event_losses = 0;          // times that more happened than may wait
  // Blocks found at open(), and what LRU would have found with as many blocks; of a policy that
  // keeps count.
  std::uint64_t hit_blocks = 0;
  std::uint64_t lru_hit_blocks = 0;
};

// Names that CacheOptions::policy takes, the default first.
std::vector<std::string> policy_names();

class CacheCore;

class Cache {
 public:
  // kInvalidArgument: an unknown policy, costs that are negative or not finite, a share of memory
  // outside 0..1, a time to live of 0, or a plan that 32-bit block tables cannot address.
  // kOutOfCapacity: the budget cannot hold the state of one block, or the system refuses.
  static Result<std::unique_ptr<Cache>> create(StatePlan plan, const CacheOptions& options);
  ~Cache();

  // Finds the longest usable prefix, shares its pages and restores its fixed-size state.
  // kInvalidArgument: no tokens, media spans that do not lie in them, apart from one another, or an
  // expected reuse outside 0..1, or a time to live of 0. kOutOfCapacity: no slot, or sequences are
  // at their limit.
  Result<Sequence> open(std::span<const std::int32_t> tokens, const PrefixSpace& space,
                        const OpenOptions& options = {});
  // What open() would reuse, what limits it, and why what is missing is not there, as far as that
  // is remembered. Whole blocks, snapshots and windows that leave are: the latest of them, in
  // memory of at most 1/256 of the plan's and 1 MiB. Changes nothing. kInvalidArgument: media as in
  // open().
  Result<Explanation> explain(std::span<const std::int32_t> tokens, const PrefixSpace& space) const;
  CacheStats stats() const;

  // Keeps the longest usable prefix of `tokens`, the last one included, from eviction, for as long
  // as the handle lives or the lease lasts. kNotFound: nothing of it is usable. kOutOfCapacity: all
  // pins together would hold more than CacheOptions.pin_limit; nothing was changed.
  // kInvalidArgument: no tokens, or media as in open().
  Result<Pin> pin(std::span<const std::int32_t> tokens, const PrefixSpace& space,
                  const PinOptions& options = {});

  // Writes the longest usable prefix of `tokens`, the last one included, as a prompt cache: the
  // directory `path`, published whole or not at all. Returns its positions. Pages are held, not
  // locked, while they are written. kNotFound: nothing of it is resident. kUnsupported: its
  // snapshot is not exact, which files do not hold. kInvalidArgument: no tokens; `path` exists, or
  // is to be replaced and is no prompt cache. kIoError: the system refused. FORMAT.md describes the
  // directory.
  Result<std::uint64_t> save(const std::string& path, std::span<const std::int32_t> tokens,
                             const PrefixSpace& space, const SaveOptions& options);
  // Makes a saved prefix usable, in the space it was saved under, evicting what it must. Returns
  // its positions. Everything is checked before anything changes. kCorruption: damage, naming the
  // file. kUnsupported: another format version, model or space, another storage of the rows without
  // `convert`; or the blocks are so much longer that a window does not fill its first.
  // kOutOfCapacity: memory or the tenant's quota has no room for all of it, none of it was kept.
  // kNonFinite: rows that INT8 cannot hold.
  Result<std::uint64_t> load(const std::string& path, const PrefixSpace& space,
                             const LoadOptions& options = {});

  // Brings back from the tiers what they hold of `tokens` beyond what memory has, and returns the
  // positions that open() would reuse. Damage and refusals of the system are misses, which
  // disk_stats() and remote_stats() count. kUnsupported: there is no tier. kInvalidArgument: no
  // tokens, media as in open(), or a time to live of 0. `tenant` is charged for what it adds, and
  // its quota may leave room for less.
  Result<std::uint64_t> prefetch(std::span<const std::int32_t> tokens, const PrefixSpace& space,
                                 std::optional<std::uint64_t> ttl_ms = {},
                                 const std::string& tenant = {});
  // Waits until what was published is in the disk tier, and safe there unless its durability is
  // none. kIoError: some of it is not. kOutOfCapacity: not within `wait_ms`; it goes on.
  // kUnsupported: there is no tier.
  Status flush_disk(std::optional<std::uint64_t> wait_ms = {});
  // kUnsupported: there is no tier.
  Result<DiskTierStats> disk_stats() const;
  // The same of the remote tier; what the server refused is kIoError.
  Status flush_remote(std::optional<std::uint64_t> wait_ms = {});
  Result<RemoteTierStats> remote_stats() const;

  // Which whole blocks and which snapshots have become or stopped being available since the last
  // call, in order. Once more happened than `event_capacity` lets wait, the answer is kCleared and
  // everything there is: whoever follows the events is right again. kUnsupported: nothing is
  // recorded.
  Result<std::vector<CacheEvent>> take_events();
  // kCleared and everything there is, for a router that comes later. It goes to all routers: events
  // that wait are dropped, since it says them, and those taken afterwards follow it. Holds the
  // cache's lock for the whole content. kUnsupported: nothing is recorded.
  Result<std::vector<CacheEvent>> events_snapshot();
  // Events that were taken did not reach the routers: the next take_events() says everything there
  // is. kUnsupported: nothing is recorded.
  Status lose_events();

  // One component of one layer in every page, for kernels that go by block tables.
  // kInvalidArgument: the layer keeps no pages. kNotFound: it has no such component.
  // kUnsupported: the cache is a ledger without bytes.
  Result<PageMemory> pages(std::int32_t layer, std::string_view component) const;
  // Every live page of a group and who holds it, by ascending page: for inspection.
  // kInvalidArgument: no such group.
  Result<std::vector<PageRefs>> page_refs(std::size_t group) const;

  // Drops every stored prefix, pinned ones too; open sequences keep what they hold. A disk tier
  // keeps what it has, and open() finds it there again; erase({}) drops that too.
  void clear();
  // Drops what has outlived its time to live, which nothing finds any more; without this call it
  // goes when memory is needed, before anything else, or when events are taken, which tell routers
  // of it. Returns blocks.
  std::uint64_t drop_expired();
  // Drops every stored prefix in constant time, because other weights compute other state. Open
  // sequences go on with what they hold, but their publish() stores nothing any more. `weights`
  // names the new ones: files of another name are refused by load(). A disk tier finds what its
  // name computed; without another name it is not used any more.
  void bump_epoch(std::string weights);
  // Drops what agrees with every field given, and with `tokens`, which need a whole space: the
  // paths that begin with them and what led only there. Of a disk tier it takes the same out of the
  // files before it returns: for all weights and models in the directory, whatever the media, and
  // of a tenant all that it wrote; what cannot be read goes as well. Of a remote tier likewise,
  // with tokens all of their space. Returns blocks of memory.
  // kInvalidArgument: tokens without a space, or a tenant without a name. Memory is erased and the
  // tier is not, or not all of it, with kUnsupported: another process writes it; kIoError: the
  // system or the server refused.
  Result<std::uint64_t> erase(const EraseFilter& filter);

  // Limits what is stored for a tenant, see tenants.h; none: no limit. A share of the budget
  // follows resize(). Where more is stored already, the tenant's own prefixes are evicted until the
  // rest fits; what is pinned, held by open sequences or continued by others stays, nothing is
  // added to it, and it goes when the tenant's sequences close or it stores more.
  // kInvalidArgument: no name, or a share outside 0..1.
  Status set_quota(const std::string& tenant, const std::optional<MemoryShare>& quota);
  // Tenants that have something stored, or a quota, by name.
  std::vector<TenantUsage> tenants() const;

  // Another budget, from now on. Downwards it evicts stored prefixes until they fit and gives the
  // memory back to the system; upwards it only allows more. Live bytes stay where they are.
  // kOutOfCapacity: open sequences and views, or pins, need more, and nothing was changed (where
  // they do so only together, or with the prefixes that they share pages with, others may be
  // evicted); or not even one block fits. kInvalidArgument: more than
  // CacheOptions.max_memory_bytes.
  Status resize(std::uint64_t memory_bytes);
  // Takes bytes out of the budget for memory that lies elsewhere, such as a HiddenCapture's, as
  // long as the answer lives; evicts stored prefixes for them. kOutOfCapacity: open sequences,
  // views or pins need them, or less than one position of one sequence would stay.
  Result<Reservation> reserve(std::uint64_t bytes);
  const StatePlan& plan() const;
  std::string policy() const;
  // kInvalidArgument: this is a child of the process that made the cache.
  Status check_process() const;

 private:
  explicit Cache(std::shared_ptr<CacheCore> core);
  std::shared_ptr<CacheCore> core_;
};

}  // namespace kvcache
