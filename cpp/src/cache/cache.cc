#include "kvcache/cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/on_throw.h"
#include "cache/cache_core.h"
#include "cache/disk_tier.h"
#include "cache/remote_tier.h"
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

// The most that a ledger may count: as much as block tables address.
std::uint64_t addressable_bytes(const std::vector<arena::PoolSpec>& specs) {
  std::uint64_t bytes = std::uint64_t{1} << 46;
  for (const arena::PoolSpec& spec : specs) {
    const SpanGeometry geometry = span_geometry(spec.item_bytes);
    if (geometry.items == 0) continue;
    const std::uint64_t spans = arena::kMaxItems / geometry.items;
    bytes = std::min(bytes, spans > bytes / geometry.bytes ? bytes : spans * geometry.bytes);
  }
  return bytes;
}

Result<evict::Costs> eviction_costs(const StatePlan& plan, const CostModel& model) {
  for (const double flops : {model.flops_per_token, model.flops_per_token_per_position}) {
    if (!(flops >= 0 && flops <= 1e30)) {
      return Status::invalid_argument("costs: FLOPs must be 0..1e30, got ", flops);
    }
  }
  evict::Costs costs;
  costs.block_tokens = plan.block_tokens();
  costs.block_bytes = std::max<std::uint64_t>(plan.block_bytes(), 1);  // 0: a model without pages
  costs.snapshot_bytes = plan.slot_bytes();  // of one that is stored whole
  // What is no longer stored is remembered in a small part of what can be.
  constexpr std::uint64_t kLeast = 32 << 20;
  costs.metadata_bytes = std::max(kLeast, plan.options().memory_bytes / 256);
  costs.flops_per_token = model.flops_per_token;
  costs.flops_per_token_per_position = model.flops_per_token_per_position;
  return costs;
}

// One tenant's policy is told a part of what the cache's is.
evict::Costs costs_of_tenant(evict::Costs costs) {
  costs.metadata_bytes /= 16;
  return costs;
}

// 0 for no hints; FNV-1a of the rest.
std::uint32_t hint_key(const RequestHints& hints) {
  if (hints == RequestHints()) return 0;
  std::string text = std::to_string(hints.tenant.size()) + ':' + hints.tenant + hints.kind + '\0';
  if (hints.expected_reuse) text += std::to_string(static_cast<int>(*hints.expected_reuse * 4));
  std::uint32_t key = 2166136261;
  for (const char letter : text) key = (key ^ static_cast<unsigned char>(letter)) * 16777619;
  return std::max<std::uint32_t>(key, 1);
}

}  // namespace

std::vector<std::string> policy_names() {
  const auto names = evict::policy_names();
  return {names.begin(), names.end()};
}

// ---- CacheCore --------------------------------------------------------------------------------

CacheCore::CacheCore(StatePlan plan_value, const CacheOptions& options,
                     std::unique_ptr<arena::Arena> arena_value, const evict::Costs& costs)
    : plan(std::move(plan_value)),
      backing(options.backing),
      capacity_blocks(options.capacity_blocks),
      placement(options.placement),
      pin_limit(options.pin_limit),
      ttl_ms(options.ttl_ms),
      weights(options.weights),
      layers(plan),
      groups(first_numbers(plan.groups().size())),
      arena(std::move(arena_value)),
      pools(arena::map_pools(plan, *arena)),
      index(plan, pools, evict::policy_maker(options.policy, costs),
            evict::policy_maker(options.policy, costs_of_tenant(costs)),
            placement.snapshots_per_path),
      records_events(options.event_capacity > 0) {
  if (records_events) index.record_events(options.event_capacity);
}

Result<std::shared_ptr<CacheCore>> CacheCore::create(StatePlan plan, const CacheOptions& options) {
  // Reads and writes need a codec row: better to know before there is anything to lose.
  if (Status status = codec::check_isa(); !status) return status;
  const bool counts_blocks = !options.backing && options.capacity_blocks > 0;
  const auto specs = arena::pool_specs(plan, counts_blocks ? 0 : options.capacity_blocks);
  const auto costs = eviction_costs(plan, options.costs);
  if (!costs) return costs.status();
  if (Status status = check_share(options.pin_limit, "pin_limit"); !status) return status;
  if (Status status = check_ttl(options.ttl_ms); !status) return status;
  if (const auto policy = evict::make_policy(options.policy, *costs); !policy) {
    return policy.status();
  }
  const std::uint64_t budget =
      counts_blocks ? addressable_bytes(specs) : plan.options().memory_bytes;
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
  std::shared_ptr<CacheCore> core(
      new CacheCore(std::move(plan), options, std::move(arena).value(), *costs),
      DeleteInOwnProcess());
  const auto release = [raw = core.get()](const TierJob& job) { raw->release(job); };
  if (!options.disk.path.empty()) {
    if (Status status = core->check_backing("disk"); !status) return status;
    auto disk = DiskTier::open(core->plan, core->pools, options.disk, options.weights, release);
    if (!disk) return disk.status();
    core->disk = std::move(disk).value();
  }
  if (!options.remote.is_none()) {
    if (Status status = core->check_backing("remote"); !status) return status;
    auto remote =
        RemoteTier::open(core->plan, core->pools, options.remote, options.weights, release);
    if (!remote) return remote.status();
    core->remote = std::move(remote).value();
  }
  return core;
}

CacheCore::~CacheCore() = default;

Result<ItemId> CacheCore::allocate(arena::Pool& pool) {
  for (;;) {
    auto item = pool.allocate();
    // The index holds no slots: evicting cannot help where their number is the limit.
    const bool futile = &pool == pools.slots && pool.at_limit();
    if (item || futile || !evict_one()) return item;
  }
}

Status CacheCore::allocate_many(arena::Pool& pool, std::span<ItemId> items) {
  for (;;) {
    Status status = pool.allocate_many(items);
    const bool futile = &pool == pools.slots && pool.at_limit();
    if (status || futile || !evict_one()) return status;
  }
}

void CacheCore::trim_ledger() {
  if (backing || capacity_blocks == 0 || plan.block_bytes() == 0) return;
  const std::uint64_t most = checked_mul(capacity_blocks, plan.block_bytes()).value_or(UINT64_MAX);
  const auto stored_bytes = [&] {
    std::uint64_t bytes = 0;
    const auto add = [&](const arena::Pool& pool) {
      bytes += pool.indexed_items() * pool.item_bytes();
    };
    for (const arena::Pool* pool : pools.pages) add(*pool);
    for (const arena::Pool* pool : pools.by_format) {
      if (pool != nullptr) add(*pool);
    }
    return bytes;
  };
  while (stored_bytes() > most && evict_one()) {
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

Result<Sequence> Cache::open(std::span<const std::int32_t> tokens, const PrefixSpace& space,
                             const OpenOptions& options) {
  if (Status status = check_process(); !status) return status;
  if (tokens.empty()) return Status::invalid_argument("open: a sequence needs at least one token");
  if (const auto reuse = options.hints.expected_reuse; reuse && !(*reuse >= 0 && *reuse <= 1)) {
    return Status::invalid_argument("open: expected_reuse must be 0..1, got ", *reuse);
  }
  CacheCore& core = *core_;
  const std::uint64_t ttl_ms = options.ttl_ms.value_or(core.ttl_ms);
  if (Status status = check_ttl(ttl_ms); !status) return status;
  auto sequence = SequenceCore::create(core_);
  if (Status status = check_media(space.media, 0, tokens.size()); !status) return status;
  std::string key = space_key(space);
  core.fetch(key, space.media, tokens, ttl_ms, options.hints.tenant, true);
  sequence::SequenceState state(core.plan, core.layers, core.pools, std::move(key), space.media,
                                {tokens.begin(), tokens.end()});
  arena::SnapshotRef snapshot;
  {
    const std::lock_guard lock(core.mutex);
    core.tell_time(options.now_ms);
    state.join_epoch(core.index.epoch());
    if (Status status = core.check_sequences(); !status) return status;
    prefix::Match match =
        core.index.match(state.space(), tokens, true, CacheCore::now_ms(options.now_ms));
    if (match.usable > 0) state.adopt(std::move(match.tables), match.usable);
    const auto give_up = [&] {
      core.pools.release(snapshot);
      state.release();
    };
    const base::OnThrow undo(give_up);
    // Behind the window nothing is needed, though the index may still have it.
    state.trim_windows();
    snapshot = match.snapshot;
    core.pools.retain(snapshot);
    if (Status status = state.take_slot(core); !status) {
      give_up();
      return status;
    }
    sequence->tenant = options.hints.tenant;
    sequence->cached_tokens = match.usable;
    sequence->matched_tokens = match.matched;
    sequence->prompt_tokens = tokens.size();
    sequence->hint = hint_key(options.hints);
    sequence->ttl_ms = ttl_ms;
    sequence->branches = std::move(match.branches);
    sequence->resident_snapshots = match.resident;
    ++core.counters.open_sequences;
    ++core.counters.opens;
    core.counters.hits += match.usable > 0;
    core.counters.asked_tokens += tokens.size();
    core.counters.cached_tokens += match.usable;
    core.count_limit(match, tokens.size());
  }
  std::byte* slot = state.slot_bytes();
  if (slot != nullptr && snapshot.item != kNoItem) {
    core.restore(snapshot, slot);
  } else if (slot != nullptr) {
    std::memset(slot, 0, core.plan.slot_bytes());
  }
  if (snapshot.item != kNoItem) {
    const std::lock_guard lock(core.mutex);
    core.pools.release(snapshot);
  }
  sequence->state.emplace(std::move(state));
  return Sequence(std::move(sequence));
}

CacheStats Cache::stats() const {
  if (!check_process()) return {};
  const std::lock_guard lock(core_->mutex);
  core_->tell_time({});
  core_->index.lapse();
  CacheStats stats = core_->counters;
  const prefix::IndexCounts& counts = core_->index.counts();
  stats.budget_bytes = core_->arena->budget_bytes() + core_->reserved_bytes;
  stats.reserved_bytes = core_->reserved_bytes;
  stats.committed_bytes = core_->arena->committed_bytes();
  stats.peak_bytes = core_->arena->peak_bytes();
  stats.used_bytes = core_->arena->used_bytes();
  stats.idle_bytes = core_->arena->idle_bytes();
  stats.max_bytes = core_->arena->max_bytes();
  for (const arena::Pool* pool : core_->pools.pages) {
    stats.group_pages.push_back(pool->live_items());
    stats.pages += pool->live_items();
  }
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
  add_removals(core_->index, stats);
  stats.expired_blocks = counts.expired_blocks;
  stats.pins = core_->index.pins().size();
  stats.pinned_pages = core_->index.pins().pages();
  stats.pinned_bytes = core_->index.pins().bytes();
  stats.lapsed_leases = core_->index.lapsed_leases();
  const evict::Meter meter = core_->index.meter();
  stats.hit_blocks = meter.hit_blocks;
  stats.lru_hit_blocks = meter.lru_hit_blocks;
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
