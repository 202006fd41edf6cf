#include "kvcache/cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "cache/cache_core.h"
#include "layout/spans.h"

namespace kvcache {

using arena::ItemId;
using arena::kNoItem;

namespace {

std::vector<std::size_t> first_numbers(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  return numbers;
}

}  // namespace

// ---- CacheCore --------------------------------------------------------------------------------

CacheCore::CacheCore(StatePlan plan_value, const CacheOptions& options,
                     std::unique_ptr<arena::Arena> arena_value,
                     std::unique_ptr<evict::Policy> policy)
    : plan(std::move(plan_value)),
      backing(options.backing),
      placement(options.placement),
      weights(options.weights),
      layers(plan),
      groups(first_numbers(plan.groups().size())),
      arena(std::move(arena_value)),
      pools(arena::map_pools(plan, *arena)),
      index(plan, pools, std::move(policy), placement.snapshots_per_path) {}

Result<std::shared_ptr<CacheCore>> CacheCore::create(StatePlan plan, const CacheOptions& options) {
  // Reads and writes need a codec row: better to know before there is anything to lose.
  if (Status status = codec::check_isa(); !status) return status;
  const evict::Costs costs{plan.block_tokens(), plan.block_bytes(), plan.slot_bytes()};
  auto policy = evict::make_policy(options.policy, costs);
  if (!policy) return policy.status();
  std::uint64_t budget = plan.options().memory_bytes;
  if (!options.backing && options.capacity_blocks > 0) {
    // The blocks come on top, so that their number alone is the limit.
    for (const Group& group : plan.groups()) {
      const auto pages = span_bytes(span_geometry(group.page_bytes), options.capacity_blocks);
      budget += std::min(pages, UINT64_MAX - budget);
    }
  }
  const auto specs = arena::pool_specs(plan, options.capacity_blocks);
  const auto least = plan.sequence_bytes(1, 1);
  if (!least) return least.status();
  if (*least > budget) {
    return Status::out_of_capacity("one position of one sequence takes ", *least,
                                   " bytes with its block, the budget is ", budget,
                                   "; raise memory or lower block_tokens");
  }
  auto arena = arena::Arena::create(budget, specs, options.backing, options.memory,
                                    options.max_memory_bytes);
  if (!arena) return arena.status();
  return std::shared_ptr<CacheCore>(
      new CacheCore(std::move(plan), options, std::move(arena).value(), std::move(policy).value()),
      DeleteInOwnProcess());
}

Result<ItemId> CacheCore::allocate(arena::Pool& pool) {
  for (;;) {
    auto item = pool.allocate();
    // The index holds no slots: evicting cannot help where their number is the limit.
    const bool futile = &pool == pools.slots && pool.at_limit();
    if (item || futile || !index.evict_one()) return item;
  }
}

Status CacheCore::check_backing(std::string_view call) const {
  if (backing) return Status::ok();
  return Status::unsupported(call, ": this cache is a ledger without bytes; make it with backing");
}

Status CacheCore::check_group(std::size_t group) const {
  if (group < plan.groups().size()) return Status::ok();
  return Status::invalid_argument("group ", group, ": the plan has ", plan.groups().size(),
                                  " groups of pages");
}

Status CacheCore::check_sequences() const {
  if (counters.open_sequences < plan.options().sequences) return Status::ok();
  return Status::out_of_capacity(counters.open_sequences, " sequences are open, the plan allows ",
                                 plan.options().sequences,
                                 "; close some or raise the plan's sequences");
}

// ---- Cache ------------------------------------------------------------------------------------

Cache::Cache(std::shared_ptr<CacheCore> core) : core_(std::move(core)) {}
Cache::~Cache() = default;

Result<std::unique_ptr<Cache>> Cache::create(StatePlan plan, const CacheOptions& options) {
  auto core = CacheCore::create(std::move(plan), options);
  if (!core) return core.status();
  return std::unique_ptr<Cache>(new Cache(std::move(core).value()));
}

Status Cache::check_process() const { return core_->mutex.check_process(); }

Result<Sequence> Cache::open(std::span<const std::int32_t> tokens, const PrefixSpace& space) {
  if (Status status = check_process(); !status) return status;
  if (tokens.empty()) return Status::invalid_argument("open: a sequence needs at least one token");
  CacheCore& core = *core_;
  auto sequence = SequenceCore::create(core_);
  if (Status status = check_media(space.media, 0, tokens.size()); !status) return status;
  std::string key = space_key(space);
  sequence::SequenceState state(core.plan, core.layers, core.pools, std::move(key), space.media,
                                {tokens.begin(), tokens.end()});
  arena::SnapshotRef snapshot;
  {
    const std::lock_guard lock(core.mutex);
    state.join_epoch(core.index.epoch());
    if (Status status = core.check_sequences(); !status) return status;
    prefix::Match match = core.index.match(state.space(), tokens, true);
    for (std::size_t group = 0; group < match.tables.size(); ++group) {
      for (const ItemId page : match.tables[group]) {
        if (page != kNoItem) core.pools.pages[group]->retain(page);
      }
    }
    if (match.usable > 0) state.adopt(std::move(match.tables), match.usable);
    // Behind the window nothing is needed, though the index may still have it.
    state.trim_windows();
    snapshot = match.snapshot;
    if (snapshot.item != kNoItem) core.pools.of(snapshot).retain(snapshot.item);
    if (Status status = state.take_slot(core); !status) {
      if (snapshot.item != kNoItem) core.pools.of(snapshot).release(snapshot.item);
      state.release();
      return status;
    }
    sequence->cached_tokens = match.usable;
    sequence->matched_tokens = match.matched;
    sequence->branches = std::move(match.branches);
    sequence->resident_snapshots = match.resident;
    ++core.counters.open_sequences;
    ++core.counters.opens;
    core.counters.hits += match.usable > 0;
    core.counters.asked_tokens += tokens.size();
    core.counters.cached_tokens += match.usable;
  }
  std::byte* slot = state.slot_bytes();
  if (slot != nullptr && snapshot.item != kNoItem) {
    core.restore(snapshot, slot);
  } else if (slot != nullptr) {
    std::memset(slot, 0, core.plan.slot_bytes());
  }
  if (snapshot.item != kNoItem) {
    const std::lock_guard lock(core.mutex);
    core.pools.of(snapshot).release(snapshot.item);
  }
  sequence->state.emplace(std::move(state));
  return Sequence(std::move(sequence));
}

Result<Explanation> Cache::explain(std::span<const std::int32_t> tokens,
                                   const PrefixSpace& space) const {
  if (Status status = check_media(space.media, 0, tokens.size()); !status) return status;
  if (Status status = check_process(); !status) return status;
  Explanation explanation;
  explanation.tokens = tokens.size();
  if (tokens.empty()) return explanation;
  const std::lock_guard lock(core_->mutex);
  const std::string key = space_key(space);
  const SpaceRef where(key, space.media, SpaceRef::kAnyEpoch);
  const prefix::Match match = core_->index.match(where, tokens, false);
  explanation.matched_tokens = match.matched;
  explanation.cached_tokens = match.usable;
  explanation.nearest_snapshot = match.nearest_snapshot;
  explanation.limit = match.limit;
  if (match.snapshot.item != kNoItem) explanation.snapshot_format = match.snapshot.format;
  return explanation;
}

CacheStats Cache::stats() const {
  if (!check_process()) return {};
  const std::lock_guard lock(core_->mutex);
  CacheStats stats = core_->counters;
  const prefix::IndexCounts& counts = core_->index.counts();
  stats.budget_bytes = core_->arena->budget_bytes();
  stats.committed_bytes = core_->arena->committed_bytes();
  stats.peak_bytes = core_->arena->peak_bytes();
  stats.used_bytes = core_->arena->used_bytes();
  stats.idle_bytes = core_->arena->idle_bytes();
  stats.max_bytes = core_->arena->max_bytes();
  for (const arena::Pool* pool : core_->pools.pages) stats.pages += pool->live_items();
  if (core_->pools.slots != nullptr) {
    stats.slots = core_->pools.slots->live_items();
    for (const arena::Pool* pool : core_->pools.by_format) stats.snapshots += pool->live_items();
    stats.lossy_snapshots = stats.snapshots - core_->pools.snapshots->live_items();
  }
  if (core_->pools.ring != nullptr) stats.ring_snapshots = core_->pools.ring->live_items();
  stats.epoch = core_->index.epoch();
  stats.indexed_blocks = counts.blocks;
  stats.indexed_tokens = counts.tokens;
  stats.indexed_snapshots = counts.snapshots;
  stats.evicted_blocks = counts.evicted_blocks;
  stats.evicted_snapshots = counts.evicted_snapshots;
  return stats;
}

void Cache::clear() {
  if (!check_process()) return;
  const std::lock_guard lock(core_->mutex);
  core_->index.clear();
}

const StatePlan& Cache::plan() const { return core_->plan; }

std::string Cache::policy() const { return std::string(core_->index.policy_name()); }

}  // namespace kvcache
