// A radix tree over exact int32 tokens that knows, for every stored prefix, which blocks and which
// snapshots are resident. An edge is a run of tokens of any length; branch points fall on any
// token; pages belong to blocks, so a run that begins inside a block owns its own page of it.
// Where the process runs out of memory between two changes of what belongs together, everything is
// dropped, as by clear(): see begin_change().
// Thread safety: thread-compatible; the cache's lock guards it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "arena/pool_map.h"
#include "base/chunked_vector.h"
#include "base/on_throw.h"
#include "evict/policy.h"
#include "kvcache/cache.h"
#include "kvcache/prefix_space.h"
#include "kvcache/state_plan.h"
#include "prefix/block_chain.h"
#include "prefix/edge_map.h"
#include "prefix/event_log.h"
#include "prefix/ghosts.h"
#include "prefix/lives.h"
#include "prefix/pins.h"
#include "prefix/placement.h"
#include "prefix/tenants.h"

namespace kvcache::prefix {

using arena::ItemId;
using arena::kNoItem;
using arena::PoolMap;
using arena::SnapshotRef;

// Pages of consecutive blocks, one list for each group; kNoItem where a window has passed.
using BlockTables = std::vector<std::vector<ItemId>>;

struct Match {
  std::uint64_t matched = 0;  // longest known prefix, in tokens
  std::uint64_t usable = 0;   // positions that need no recomputation, by the hit rule
  HitLimit limit = HitLimit::kTokens;
  BlockTables tables;                   // pages of [0, usable); nothing retained
  SnapshotRef snapshot;                 // at `usable`, when the model has fixed-size state
  std::uint64_t nearest_snapshot = 0;   // deepest resident snapshot at or below `matched`
  std::uint64_t resident = 0;           // snapshots on the path up to `usable`
  std::vector<std::uint64_t> branches;  // where prompts part in (usable, matched], ascending
};

// A pin that was made, and the positions it keeps.
struct Pinned {
  PinId id = 0;
  std::uint64_t tokens = 0;
};

struct IndexCounts {
  std::uint64_t nodes = 0;
  std::uint64_t blocks = 0;  // of runs; a block shared by two runs counts in both
  std::uint64_t tokens = 0;
  std::uint64_t snapshots = 0;
  std::uint64_t evicted_blocks = 0;
  std::uint64_t evicted_snapshots = 0;
  std::uint64_t expired_blocks = 0;
};

// What has left but for eviction of run tails and snapshots.
struct RemovalCounts {
  std::uint64_t thinned_snapshots = 0;
  std::uint64_t erased_blocks = 0;
  std::uint64_t erased_snapshots = 0;
  std::uint64_t dropped_blocks = 0;
  std::uint64_t dropped_snapshots = 0;
  std::vector<std::uint64_t> window_pages;  // by group
};

class RadixIndex : private evict::UnitOwners {
 public:
  // `all` makes the eviction policy, `of_tenant` one over what one tenant with a quota has stored.
  RadixIndex(const StatePlan& plan, PoolMap pools, evict::PolicyMaker all,
             evict::PolicyMaker of_tenant, std::uint32_t snapshots_per_path = 0);

  // Longest usable prefix of `tokens` in the tree named `space`, at most tokens.size() - 1.
  // With `touch`, what the hit uses becomes the most recently used, at `now_ms` of the caller's
  // clock.
  Match match(const SpaceRef& space, std::span<const std::int32_t> tokens, bool touch,
              std::uint64_t now_ms = 0);

  // A request whose path is `tokens` has ended: what the policy learns from. `facts` without its
  // path.
  void complete(const SpaceRef& space, std::span<const std::int32_t> tokens,
                evict::Completion facts) noexcept;

  // Makes `tokens` known, with the pages of `tables` (ceil(tokens/block) entries a group) and the
  // snapshots. Takes its own references; what is resident already keeps its pages. A path that
  // then holds more snapshots than it may loses those of least worth. `names` are what events call
  // it, of all of the path; nothing of it is announced without them. `ttl`: how long it is found
  // after now(), and after each hit that uses a run of it to its end. What is new is charged to
  // `tenant`, whose quota may leave room for the first positions only, or, with `whole`, for
  // nothing. Returns the positions that are known then; 0 where none were added to none.
  std::uint64_t insert(const SpaceRef& space, std::span<const std::int32_t> tokens,
                       const BlockTables& tables, std::span<const SnapshotRef> snapshots,
                       const PathNames& names = {}, std::uint64_t ttl = kNever,
                       std::string_view tenant = {}, bool whole = false);

  // Deepest snapshot on the path of `tokens` at or below `at_most`; position 0 when there is none.
  SnapshotRef find_snapshot(const SpaceRef& space, std::span<const std::int32_t> tokens,
                            std::uint64_t at_most);

  // Evicts one candidate that frees memory, or everything. False: there is none.
  bool evict_one() noexcept;

  // What leases are counted in, which never goes back.
  void set_now(std::uint64_t now) { now_ = now; }
  std::uint64_t now() const { return now_; }
  bool is_timed() const { return pins_.has_leases() || !lives_.empty(); }

  // Keeps the longest usable prefix of `tokens`, the last one included, from eviction until
  // unpin() or the deadline. kNotFound: nothing of it is usable. kOutOfCapacity: all pins together
  // would hold more than `most_bytes`; nothing was changed.
  Result<Pinned> pin(const SpaceRef& space, std::span<const std::int32_t> tokens,
                     std::uint64_t deadline, std::uint64_t most_bytes);
  // False: the pin has gone already.
  bool unpin(PinId id) noexcept;
  bool renew_pin(PinId id, std::uint64_t deadline);
  bool is_pinned(PinId id) const { return pins_.find(id) != nullptr; }
  // Drops what has outlived its time. Returns blocks.
  std::uint64_t drop_expired();
  // Ends pins whose deadline has passed.
  void lapse();
  const PinTable& pins() const { return pins_; }
  std::uint64_t lapsed_leases() const { return lapsed_leases_; }

  // Drops everything. Pages that sequences hold stay with them.
  void clear() noexcept;
  // Other weights: from now on nothing that is stored is found, and what spaces of earlier epochs
  // insert is dropped. Takes constant time for each space; memory comes back as it is needed.
  void bump_epoch() noexcept;
  std::uint64_t epoch() const { return epoch_; }
  // Drops every space whose key is chosen. Returns blocks.
  std::uint64_t erase_spaces(const std::function<bool(std::string_view)>& chosen);
  // Drops every path that begins with `tokens`, and what led only to them. Returns blocks.
  std::uint64_t erase_prefix(const SpaceRef& space, std::span<const std::int32_t> tokens);
  // Drops what a tenant is charged for in the spaces that are chosen. Runs of its that others
  // continue, or have snapshots in, stay and are nobody's from then on. Returns blocks.
  std::uint64_t erase_tenant(std::string_view tenant,
                             const std::function<bool(std::string_view)>& chosen);
  // The same for paths that begin with `tokens`, and what of its led only to them.
  std::uint64_t erase_tenant(std::string_view tenant, const SpaceRef& space,
                             std::span<const std::int32_t> tokens);
  // What may be charged to a tenant from now on; none: anything. What of its own may go does, until
  // the rest fits; what may not stays.
  void set_quota(std::string_view tenant, const std::optional<Quota>& quota);
  // Evicts what a tenant holds beyond its quota, as far as it may go.
  void trim(std::string_view tenant) noexcept;
  const TenantTable& tenants() const { return tenants_; }

  // From now on events tell what becomes available and what stops to be; until they are taken,
  // those of at most `capacity` names wait. Call it once, before anything is inserted.
  void record_events(std::uint64_t capacity);
  // What has happened since the last call, in order. After events were lost: everything there is,
  // after kCleared.
  std::vector<LoggedEvent> take_events();
  // kCleared and everything there is; what waits is dropped, since this says it.
  std::vector<LoggedEvent> restate_events();
  // Events that were taken are gone: the next who takes some is told everything.
  void lose_events() noexcept { events_->lose(); }
  const EventLog* events() const { return events_.get(); }

  // What match() would say, and why. Changes nothing that can be found.
  Explanation explain(const SpaceRef& space, std::span<const std::int32_t> tokens);
  // What explain_loss() needs; without the lock, whatever happens meanwhile.
  std::vector<std::uint64_t> prompt_keys(const SpaceRef& space,
                                         std::span<const std::int32_t> tokens, std::uint64_t from,
                                         std::uint64_t generation) const;
  // Whether a tenant's quota lets a block follow the known part of a path, once all else of the
  // tenant's has given way.
  bool has_room(const SpaceRef& space, std::span<const std::int32_t> tokens,
                std::string_view tenant) const;
  // Adds to what explain() said whether what is missing was there, and why it left.
  void explain_loss(const SpaceRef& space, std::span<const std::int32_t> tokens,
                    std::span<const std::uint64_t> keys, Explanation& said) const;
  std::uint64_t generation() const { return generation_; }
  const RemovalCounts& removals() const { return removals_; }

  const IndexCounts& counts() const { return counts_; }
  std::string_view policy_name() const { return policy_->name(); }
  evict::Meter meter() const { return policy_->meter(); }

 private:
  // What is known of a path is spread over tree, pools, policies and tables, which may differ while
  // the guard lives; where an exception ends it, abandon() makes them agree again. What that needs
  // is taken first: where this fails, nothing has begun.
  [[nodiscard]] auto begin_change() {
    prepare();
    return base::OnThrow([this] { abandon(); });
  }

  using NodeId = std::uint32_t;
  static constexpr NodeId kNoNode = EdgeMap::kNone;

  // A page that came back where a window had passed.
  struct Hole {
    NodeId node;
    std::uint32_t group;
    std::uint64_t block;
  };

  struct Snapshot {
    std::uint64_t position = 0;
    ItemId item = kNoItem;
    NodeId node = kNoNode;
    SnapshotFormat format = SnapshotFormat::kExact;
    SnapshotKind kind = SnapshotKind::kOther;
  };

  struct Node {
    NodeId parent = kNoNode;
    NodeId first_child = kNoNode;
    NodeId previous = kNoNode;  // siblings
    NodeId next = kNoNode;
    std::uint32_t children = 0;
    TenantId tenant = kNobody;   // who stored it
    bool candidate = false;      // known to the policy as one that may go
    bool window_queued = false;  // in window_queue_
    std::uint64_t start = 0;     // position of tokens[0]
    std::uint64_t end_key = 0;   // of the path's whole blocks, for ghosts; 0: not known
    std::uint64_t used = 0;      // clock of the last use
    std::vector<std::int32_t> tokens;
    BlockTables pages;                     // of blocks start / block .. (end - 1) / block
    std::vector<std::uint32_t> snapshots;  // indices into snapshots_, by ascending position
    // Of a root: the key of its space. Of a run that begins with a media item: that item.
    std::string label;

    std::uint64_t end() const { return start + tokens.size(); }
    bool is_root() const { return parent == kNoNode; }
  };

  struct Step {
    NodeId node;
    std::uint64_t end;  // positions matched when leaving it
  };

  // What is to be stored. Borrows.
  struct Insertion {
    const SpaceRef& space;
    std::span<const std::int32_t> tokens;
    const BlockTables& tables;
    std::span<const SnapshotRef> snapshots;
    const PathNames& names;
    std::uint64_t ttl;
    bool whole;  // or not at all
    TenantId tenant = kNobody;
    bool fills = true;  // holes of the part that is known
  };

  // What of an insertion takes no more than some bytes that nobody has stored yet.
  struct Portion {
    std::uint64_t end = 0;  // positions
    bool fills = true;
    std::vector<SnapshotRef> snapshots;
    std::uint64_t bytes = 0;
    bool complete = false;
  };

  // Only tails are ever taken from such a group, so it has no holes.
  static bool is_whole(const Group& group) { return !group.forgets() && group.record_tokens == 1; }
  std::uint64_t block_of(std::uint64_t position) const { return position / plan_.block_tokens(); }
  std::uint64_t blocks_to(std::uint64_t end) const;

  static std::string media_label(const MediaSpan& span);
  static std::string media_edge(NodeId parent, std::int32_t token, std::string_view label);
  static std::uint64_t outside_media(std::span<const MediaSpan> media, std::uint64_t position);

  NodeId child_of(NodeId parent, std::int32_t token, const MediaSpan* media) const;
  std::vector<Step> walk(NodeId root, std::span<const std::int32_t> tokens,
                         std::span<const MediaSpan> media, bool living = false) const;
  BlockTables path_tables(const std::vector<Step>& path, std::uint64_t end) const;
  std::optional<std::uint64_t> last_hole(const BlockTables& tables, std::uint64_t end) const;
  std::uint64_t window_limit(const std::vector<Step>& path, std::uint64_t end) const;
  std::uint32_t deepest_snapshot(const std::vector<Step>& path, std::uint64_t at_most) const;

  void prepare();
  void abandon() noexcept;

  std::uint64_t add_path(Insertion what, std::string_view tenant);
  std::vector<NodeId> cut_path(const SpaceRef& space, std::span<const std::int32_t> tokens);
  NodeId root_of(const SpaceRef& space, bool create);
  void set_edge(NodeId parent, NodeId child);
  void erase_edge(NodeId id);
  void link(NodeId parent, NodeId child);
  void unlink(NodeId child);
  void append(NodeId parent, const Insertion& what, std::vector<NodeId>& path);
  NodeId new_node();
  void free_node(NodeId id);
  NodeId split(NodeId id, std::uint64_t position);
  bool try_extend(NodeId id, std::span<const std::int32_t> tokens, const Insertion& what);
  NodeId add_child(NodeId parent, std::uint64_t start, std::span<const std::int32_t> tokens,
                   const Insertion& what, std::string label);
  void fill_holes(NodeId id, const Insertion& what, std::vector<Hole>& filled);
  void add_snapshot(NodeId id, const SnapshotRef& ref, TenantId tenant);
  void remove_snapshot(std::uint32_t index);
  void evict_unit(evict::Unit unit);
  void evict_tail(NodeId id);
  void drop_last_block(NodeId id);
  void detach(NodeId id);
  void settle(NodeId id);
  void remove_leaf(NodeId id);
  bool drop_one();
  void drop_all();
  // Gives back up to `most` runs of what was dropped. Returns their number.
  std::size_t reap(std::size_t most);
  std::size_t reap_one();
  void erase_subtree(NodeId top);
  void set_candidate(NodeId id, bool candidate);
  bool tail_in_use(NodeId id) const;
  std::optional<evict::Unit> find_victim(TenantId tenant = kNobody, NodeId kept = kNoNode);
  void fetch_behind(NodeId victim) const;
  void unpark(NodeId id);
  bool unpark_released();
  bool release_windows(NodeId leaf);
  void queue_windows(NodeId id);
  void leave_window(NodeId id, std::size_t group, std::uint64_t index);
  bool release_interior();
  bool release_interior(NodeId id, std::uint64_t most);
  std::vector<std::uint64_t> resume_points(NodeId id) const;
  void thin_path(const std::vector<NodeId>& path);
  void collect(const Match& match, const std::vector<Step>& path, PinRecord& record) const;
  std::uint64_t snapshot_bytes(std::uint32_t index) const;
  std::uint64_t bytes_to_pin(const PinRecord& record) const;
  PinId hold(PinRecord record);
  void end_pin(PinId id);
  void unpin_ending_at(NodeId run);
  bool expire_one();
  // Its time is over, and nothing finds it any more.
  bool is_over(NodeId id) const { return lives_.is_over(id, now_) && !pins_.covers(id); }
  // By a sequence or a pin.
  bool is_held(std::size_t group, ItemId page) const {
    return pools_.pages[group]->in_use(page) || pins_.holds_page(group, page);
  }

  // ---- Who is charged (radix_tenants.cc) ----
  TenantId owner(evict::Unit unit) const override;
  std::optional<evict::RunId> above(evict::RunId run) const override;
  std::uint64_t start(evict::RunId run) const override { return nodes_[run].start; }
  std::uint64_t end(evict::RunId run) const override { return nodes_[run].end(); }
  std::size_t pool_of(SnapshotFormat format) const {
    return pools_.pages.size() + static_cast<std::size_t>(format);
  }
  // A run's reference to a page. Where nobody is named it costs nothing more.
  void take_page(std::size_t group, ItemId page, TenantId tenant) {
    if (tenant != kNobody) charge_page(group, page, tenant);
    pools_.pages[group]->retain_indexed(page);
  }
  void drop_page(std::size_t group, ItemId page) {
    if (!tenants_.empty()) discharge_page(group, page);
    pools_.pages[group]->release_indexed(page);
  }
  void charge_page(std::size_t group, ItemId page, TenantId tenant);
  void discharge_page(std::size_t group, ItemId page);
  void take_snapshot(const SnapshotRef& ref, TenantId tenant);
  void drop_snapshot(SnapshotFormat format, ItemId item);
  void replace_snapshot(std::uint32_t index, const SnapshotRef& ref, TenantId tenant);
  void count_blocks(NodeId id, std::int64_t blocks);
  void start_order(TenantId tenant);
  void join_path(TenantId tenant, NodeId root, const std::vector<NodeId>& path,
                 std::span<const std::int32_t> tokens);
  void describe(TenantId tenant);
  void describe_space(TenantId tenant, NodeId root);
  bool frees_others(NodeId id, TenantId tenant) const;
  bool evict_one_of(TenantId tenant, NodeId kept);
  void trim(TenantId tenant);
  bool admit(const std::vector<NodeId>& path, Insertion& what, Portion& portion);
  Portion portion_of(const std::vector<NodeId>& path, const Insertion& what,
                     std::uint64_t room) const;
  std::uint64_t page_cost(const BlockTables& tables, std::size_t group, std::uint64_t block) const;
  std::uint64_t block_cost(const BlockTables& tables, std::uint64_t block) const;
  std::uint64_t hole_cost(const std::vector<NodeId>& path, const BlockTables& tables) const;
  std::uint64_t snapshot_cost(const std::vector<NodeId>& path, const SnapshotRef& ref) const;
  std::uint64_t bytes_on(const std::vector<NodeId>& path, TenantId tenant) const;
  void erase_units(NodeId top, TenantId tenant);
  bool is_end_of(NodeId id, TenantId tenant) const;
  bool erase_run(NodeId id, TenantId tenant);
  void disown(NodeId id, TenantId tenant);

  // ---- Events, while they are recorded (radix_events.cc) ----
  std::uint32_t snapshot_group() const { return static_cast<std::uint32_t>(pools_.pages.size()); }
  void tell_inserted(const SpaceRef& space, std::span<const std::int32_t> tokens,
                     const std::vector<NodeId>& path, std::span<const Hole> filled,
                     const PathNames& names);
  std::vector<LoggedEvent> all_events() const;
  void tell_stored(EventLog& log, const NamedPath& path, NodeId id, std::uint64_t first,
                   std::uint64_t last) const;
  void tell_space(EventLog& log, std::string_view key, NodeId root) const;
  void tell_removed(NodeId id, std::size_t group, std::uint64_t index) noexcept;
  void tell_run_removed(NodeId id) noexcept;
  void tell_snapshot_removed(std::uint32_t index) noexcept;
  void tell_cleared() noexcept;

  // ---- What has left (radix_explain.cc) ----
  // Keys of a run's whole blocks, from its first on, while they go one by one.
  struct RunKeys {
    NodeId id = kNoNode;
    std::vector<std::uint64_t> keys;
  };
  struct WindowGap {
    std::uint32_t group;
    std::uint64_t block;
  };
  std::uint64_t link_key(NodeId id, std::uint64_t begin, std::uint64_t end,
                         std::uint64_t before) const;
  std::uint64_t end_key(NodeId id);
  std::uint64_t path_key(NodeId id, std::uint64_t position);
  void remember(NodeId id, std::uint64_t position, GhostKind kind, std::size_t group = 0) noexcept;
  void remember_run(NodeId id) noexcept;
  void remember_refused(const Insertion& what, const Portion& portion) noexcept;
  void add_ghost(std::uint64_t path, GhostKind kind, std::size_t group = 0) noexcept;
  std::optional<TenantUsage> quota_of(std::uint64_t path) const;
  RunKeys& run_keys(NodeId id) { return run_keys_[id % run_keys_.size()]; }
  void cut_keys(NodeId id);
  void forget_keys(NodeId id) {
    if (run_keys(id).id == id) run_keys(id).id = kNoNode;
  }
  std::optional<WindowGap> window_gap(const std::vector<Step>& path, std::uint64_t end) const;
  std::uint64_t stale_match(const SpaceRef& space, std::span<const std::int32_t> tokens) const;

  const StatePlan& plan_;
  const PoolMap pools_;
  const evict::PolicyMaker make_policy_;
  const evict::PolicyMaker make_order_;
  std::unique_ptr<evict::Policy> policy_;
  std::unique_ptr<evict::Policy> spare_;     // what abandon() goes on with; null after it
  evict::TenantPolicies* orders_ = nullptr;  // policy_ while some tenant has a quota
  const std::uint32_t snapshots_per_path_;
  const bool has_windows_;

  base::ChunkedVector<Node> nodes_;
  std::vector<NodeId> free_nodes_;
  std::vector<Snapshot> snapshots_;
  std::vector<std::uint32_t> free_snapshots_;
  EdgeMap edges_;
  std::unordered_map<std::string, NodeId> media_edges_;
  std::unordered_map<std::string, NodeId> roots_;
  std::vector<NodeId> doomed_;  // subtrees that nothing finds any more, the next to go last
  std::vector<std::unordered_map<std::string, NodeId>> stale_roots_;
  IndexCounts stale_;  // what they hold
  std::uint64_t epoch_ = 0;
  std::unordered_set<NodeId> parked_;  // candidates that sequences hold, unknown to the policy
  std::deque<NodeId> window_queue_;    // runs whose windows may hold more than any hit needs
  std::uint64_t clock_ = 0;
  IndexCounts counts_;
  std::unique_ptr<EventLog> events_;  // null: nothing is recorded
  bool reaping_ = false;              // what goes was cleared before
  Ghosts ghosts_;
  MissReason leaving_ = MissReason::kEvicted;  // why what goes does
  TenantId for_quota_ = kNobody;               // whose quota makes it go, if it is one
  std::uint64_t generation_ = 0;               // times that everything was dropped
  std::array<RunKeys, 64> run_keys_;           // by id
  RemovalCounts removals_;
  PinTable pins_;
  LifeTable lives_;
  TenantTable tenants_;
  std::uint64_t now_ = 0;
  std::uint64_t lapsed_leases_ = 0;
};

}  // namespace kvcache::prefix
