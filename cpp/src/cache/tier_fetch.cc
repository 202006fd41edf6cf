// Between a cache's pages and its tiers: what publish() hands over, and what a prompt gets
// back. Everything is read outside the cache's lock, into pages that nobody else knows yet.
#include <algorithm>
#include <new>
#include <utility>

#include "base/checked.h"
#include "base/parallel.h"
#include "cache/cache_core.h"
#include "cache/disk_tier.h"
#include "cache/held_items.h"
#include "cache/remote_tier.h"
#include "cache/tier_layout.h"
#include "cache/tier_owner.h"
#include "kvcache/cache.h"
#include "layout/spans.h"

namespace kvcache {
namespace {

using arena::ItemId;
using arena::kNoItem;
using persist::Located;
using persist::RecordRead;

// A record that cannot be used is looked past so often.
constexpr int kMaxAttempts = 8;

class Fetch {
 public:
  Fetch(CacheCore& core, const SpaceRef& space, std::span<const std::int32_t> tokens, TierHit hit,
        std::uint64_t erasures)
      : core_(core),
        space_(space),
        tokens_(tokens),
        hit_(std::move(hit)),
        erasures_(erasures),
        held_(core) {}

  // Locked. Keeps what memory has of the prefix, and takes pages for the rest. kOutOfCapacity: they
  // do not fit; what was taken goes back with this.
  Status take() {
    const std::uint64_t block_tokens = core_.plan.block_tokens();
    prefix::Match match = core_.index.match(space_, tokens_, false);
    resident_ = match.usable / block_tokens;
    tables_.assign(core_.plan.groups().size(), {});
    for (std::size_t group = 0; group < tables_.size(); ++group) {
      tables_[group].assign(ceil_div(hit_.position, block_tokens), kNoItem);
      if (core_.plan.groups()[group].forgets()) continue;
      for (std::uint64_t block = 0; block < resident_ && block < tables_[group].size(); ++block) {
        keep(group, block, match.tables[group][block]);
      }
    }
    std::erase_if(hit_.runs,
                  [&](const Located& run) { return run.header.end() <= resident_ * block_tokens; });
    if (Status status = check_budget(); !status) return status;
    for (const Located& run : hit_.runs) {
      if (Status status = take_pages(run_pages(core_.plan, run.header.first / block_tokens,
                                               run.header.end() / block_tokens));
          !status) {
        return status;
      }
    }
    if (!hit_.boundary) return Status::ok();
    if (Status status = take_pages(boundary_pages(core_.plan, hit_.position)); !status) {
      return status;
    }
    if (!core_.plan.has_fixed_state()) return Status::ok();
    held_.snapshots.reserve(1);
    auto snapshot = core_.allocate(*core_.pools.snapshots);
    if (!snapshot) return snapshot.status();
    held_.snapshots.push_back(*snapshot);
    return Status::ok();
  }

  // Reads and checks everything. False: a record was not what it had to be; the tier knows.
  bool read(Tier& tier, const prefix::BlockChain& chain) {
    std::vector<RecordRead> reads;
    for (const Located& run : hit_.runs) reads.push_back(plan_read(run));
    if (hit_.boundary) reads.push_back(plan_read(*hit_.boundary));
    const std::size_t threads = std::min<std::size_t>(tier.read_threads(), reads.size());
    const auto read = [&](std::size_t, std::size_t first, std::size_t count) {
      const auto part = std::span(reads).subspan(first, count);
      try {
        tier.read(part);
      } catch (const std::bad_alloc&) {  // on a thread of ours nobody else would catch it
        for (RecordRead& each : part) each.status = Status::out_of_capacity("no memory");
      }
    };
    for_each_part(reads.size(), threads, read);
    bool whole = true;
    std::uint64_t bytes = 0;
    for (RecordRead& each : reads) {
      if (each.status) each.status = check(each, chain);
      // Where the system refused one, it did so for those behind it.
      const bool told = !whole && each.status.code() == StatusCode::kIoError;
      if (!each.status && !told) tier.fail(*each.record, each.status);
      whole = whole && each.status.is_ok();
      bytes += each.record->header.payload_bytes;
    }
    if (whole)
      tier.count_fetch(hit_.position - resident_ * core_.plan.block_tokens(), reads.size(), bytes);
    return whole;
  }

  // Locked. False: the weights have changed meanwhile, or something was erased.
  bool insert(const prefix::PathNames& names, std::uint64_t ttl, const std::string& tenant) {
    if (space_.epoch != core_.index.epoch() || erasures_ != core_.erasures) return false;
    core_.insert(space_, prefix_tokens(), tables_, snapshots(), names, ttl, tenant);
    return true;
  }

  std::span<const std::int32_t> prefix_tokens() const { return tokens_.first(hit_.position); }
  std::vector<arena::SnapshotRef> snapshots() const {
    if (held_.snapshots.empty()) return {};
    return {{hit_.position, held_.snapshots.front()}};
  }
  std::uint64_t position() const { return hit_.position; }

 private:
  void keep(std::size_t group, std::uint64_t block, ItemId page) {
    if (page == kNoItem) return;
    held_.pages[group].push_back(page);
    core_.pools.pages[group]->retain(page);
    tables_[group][block] = page;
  }

  // Locked. Refuses what no eviction can make room for, before anything is evicted.
  Status check_budget() const {
    std::vector<std::uint64_t> counts(tables_.size(), 0);
    const std::uint64_t block_tokens = core_.plan.block_tokens();
    const auto count = [&](const std::vector<PageOf>& pages) {
      for (const PageOf& page : pages) ++counts[page.group];
    };
    for (const Located& run : hit_.runs) {
      count(
          run_pages(core_.plan, run.header.first / block_tokens, run.header.end() / block_tokens));
    }
    if (hit_.boundary) count(boundary_pages(core_.plan, hit_.position));
    std::uint64_t total = 0;
    if (core_.plan.has_fixed_state()) {
      total += span_bytes(span_geometry(core_.plan.slot_bytes()), 1);
    }
    for (std::size_t group = 0; group < counts.size(); ++group) {
      const std::uint64_t bytes = core_.plan.groups()[group].page_bytes;
      total += span_bytes(span_geometry(bytes), counts[group]);
    }
    if (total <= core_.arena->budget_bytes()) return Status::ok();
    return Status::out_of_capacity("tier: ", hit_.position, " positions take ", total,
                                   " bytes, the budget is ", core_.arena->budget_bytes());
  }

  Status take_pages(const std::vector<PageOf>& pages) {
    for (const PageOf& page : pages) {
      // A run that is partly here is read whole, into pages that then replace nothing.
      held_.pages[page.group].push_back(kNoItem);
      auto taken = core_.allocate(*core_.pools.pages[page.group]);
      if (!taken) return taken.status();
      held_.pages[page.group].back() = *taken;
      tables_[page.group][page.block] = *taken;
    }
    return Status::ok();
  }

  RecordRead plan_read(const Located& record) const {
    const std::uint64_t block_tokens = core_.plan.block_tokens();
    RecordRead read;
    read.record = &record;
    const bool is_run = record.header.kind == persist::RecordKind::kRun;
    if (!is_run && !held_.snapshots.empty()) {
      read.payload.push_back(
          {core_.pools.snapshots->data(held_.snapshots.front()), core_.plan.slot_bytes()});
    }
    const auto pages = is_run ? run_pages(core_.plan, record.header.first / block_tokens,
                                          record.header.end() / block_tokens)
                              : boundary_pages(core_.plan, hit_.position);
    for (const PageOf& page : pages) {
      const ItemId item = tables_[page.group][page.block];
      read.payload.push_back(
          {core_.pools.pages[page.group]->data(item), core_.plan.groups()[page.group].page_bytes});
    }
    read.tokens.resize(record.header.tokens);
    return read;
  }

  // Whether a record is the one of these tokens: a digest may be that of others.
  Status check(const RecordRead& read, const prefix::BlockChain& chain) const {
    const persist::RecordHeader& header = read.record->header;
    const auto expected = tokens_.subspan(header.first, header.tokens);
    if (std::equal(expected.begin(), expected.end(), read.tokens.begin(), read.tokens.end()) &&
        header.parent == chain.digest_at(header.first)) {
      return Status::ok();
    }
    const auto& segment = read.record->segment;
    return Status::corruption(segment ? segment->path() : "a server", ": the record at byte ",
                              header.offset, " is of other tokens");
  }

  CacheCore& core_;
  const SpaceRef space_;
  const std::span<const std::int32_t> tokens_;
  TierHit hit_;
  const std::uint64_t erasures_;  // before it was looked for
  std::uint64_t resident_ = 0;    // whole blocks that memory has
  prefix::BlockTables tables_;
  HeldItems held_;  // with one snapshot at most
};

}  // namespace

// ---- Handing over -----------------------------------------------------------------------------

void CacheCore::release(const TierJob& job) {
  const std::lock_guard lock(mutex);
  for (const auto& [group, page] : job.pages) pools.pages[group]->release(page);
  if (job.snapshot != kNoItem) pools.snapshots->release(job.snapshot);
}

void SequenceCore::write_last() noexcept {
  const auto wants = [](const Tier* tier) { return tier != nullptr && tier->wants_last(); };
  const auto tiers = cache->tiers();
  if (std::none_of(tiers.begin(), tiers.end(), wants) || published > state->length()) return;
  try {
    write_behind(published, true);
  } catch (const std::bad_alloc&) {  // a miss, later
  }
}

void SequenceCore::write_behind(std::uint64_t end, bool is_last) {
  const auto tiers = cache->tiers();
  if (!cache->has_tier() || end == 0) return;
  published = end;
  // All tiers have the same names.
  const Tier& any = tiers[0] != nullptr ? *tiers[0] : *tiers[1];
  const auto key = any.space_key(state->space().key);
  if (!key) return;
  {
    const std::lock_guard lock(cache->mutex);
    // What was computed by other weights has no name here.
    if (state->space().epoch != cache->index.epoch()) return;
  }
  const SpaceRef space(*key, state->space().media, state->space().epoch);
  const auto tokens = std::span(state->tokens()).first(end);
  tier_chain.update(space, tokens, cache->plan.block_tokens());
  const prefix::BlockTables tables = state->block_tables(end);
  const auto hold = [this](const TierJobs& jobs) {
    const std::lock_guard lock(cache->mutex);
    for (const TierJob& job : jobs) {
      for (const auto& [group, page] : job.pages) cache->pools.pages[group]->retain(page);
      if (job.snapshot != kNoItem) cache->pools.snapshots->retain(job.snapshot);
    }
  };
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    if (tiers[i] == nullptr) continue;
    tiers[i]->store({tier_chain, tokens, tables, state->snapshots(), is_last,
                     owner_text(space_of(state->space().key), tenant)},
                    last_boundary[i], hold);
  }
}

// ---- Getting back -----------------------------------------------------------------------------

std::array<Tier*, 2> CacheCore::tiers() const { return {disk.get(), remote.get()}; }

void CacheCore::fetch(std::string_view space, std::span<const MediaSpan> media,
                      std::span<const std::int32_t> tokens, std::uint64_t ttl,
                      const std::string& tenant, bool at_open) {
  for (Tier* tier : tiers()) {
    if (tier != nullptr && (tier->at_open() || !at_open)) {
      fetch_from(*tier, space, media, tokens, ttl, tenant);
    }
  }
}

void CacheCore::fetch_from(Tier& tier, std::string_view space, std::span<const MediaSpan> media,
                           std::span<const std::int32_t> tokens, std::uint64_t ttl,
                           const std::string& tenant) {
  std::uint64_t epoch = 0;
  std::uint64_t resident = 0;
  std::uint64_t before = 0;
  {
    const std::lock_guard lock(mutex);
    epoch = index.epoch();
    before = erasures;
    resident = index.match(SpaceRef(space, media, epoch), tokens, false).usable;
  }
  // After the epoch, so that a name is never older than what it is inserted as.
  const auto key = tier.space_key(space);
  const SpaceRef here(space, media, epoch);
  if (!key || resident + 1 >= tokens.size()) return;
  prefix::BlockChain chain;
  chain.update(SpaceRef(*key, media, epoch), tokens, plan.block_tokens());
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    auto hit = tier.find(chain, resident, tokens.size() - 1);
    if (!hit) return;
    Fetch fetch(*this, here, tokens, std::move(*hit), before);
    Status taken;
    {
      const std::lock_guard lock(mutex);
      tell_time({});
      // What the quota would refuse is not read, again and again.
      const bool room = index.has_room(here, tokens, tenant);
      taken = room ? fetch.take() : Status::out_of_capacity("fetch: the tenant's quota is full");
    }
    if (!taken) return tier.count_no_room();
    if (!fetch.read(tier, chain)) continue;
    prefix::BlockChain names;
    const prefix::PathNames path =
        path_names(*this, names, here, fetch.prefix_tokens(), fetch.snapshots());
    const std::lock_guard lock(mutex);
    fetch.insert(path, ttl, tenant);
    return;
  }
}

namespace {

Status check_tier(bool is_there, std::string_view call, std::string_view kind) {
  if (is_there) return Status::ok();
  return Status::unsupported(call, ": this cache has no ", kind, "; make it with one");
}

}  // namespace

Result<std::uint64_t> Cache::prefetch(std::span<const std::int32_t> tokens,
                                      const PrefixSpace& space, std::optional<std::uint64_t> ttl_ms,
                                      const std::string& tenant) {
  CacheCore& core = *core_;
  const std::uint64_t ttl = ttl_ms.value_or(core.ttl_ms);
  if (Status status = check_ttl(ttl); !status) return status;
  if (Status status = check_process(); !status) return status;
  if (Status status = check_tier(core.has_tier(), "prefetch", "disk tier or remote tier"); !status)
    return status;
  if (tokens.empty())
    return Status::invalid_argument("prefetch: a prompt needs at least one token");
  if (Status status = check_media(space.media, 0, tokens.size()); !status) return status;
  const std::string key = space_key(space);
  core.fetch(key, space.media, tokens, ttl, tenant, false);
  const std::lock_guard lock(core.mutex);
  core.tell_time({});
  return core.index.match(SpaceRef(key, space.media, core.index.epoch()), tokens, false).usable;
}

Status Cache::flush_disk(std::optional<std::uint64_t> wait_ms) {
  if (Status status = check_process(); !status) return status;
  const bool is_there = core_->disk != nullptr;
  if (Status status = check_tier(is_there, "flush_disk", "disk tier"); !status) return status;
  return core_->disk->flush(wait_ms);
}

Result<DiskTierStats> Cache::disk_stats() const {
  if (Status status = check_process(); !status) return status;
  const bool is_there = core_->disk != nullptr;
  if (Status status = check_tier(is_there, "disk_stats", "disk tier"); !status) return status;
  return core_->disk->stats();
}

Status Cache::flush_remote(std::optional<std::uint64_t> wait_ms) {
  if (Status status = check_process(); !status) return status;
  const bool is_there = core_->remote != nullptr;
  if (Status status = check_tier(is_there, "flush_remote", "remote tier"); !status) return status;
  return core_->remote->flush(wait_ms);
}

Result<RemoteTierStats> Cache::remote_stats() const {
  if (Status status = check_process(); !status) return status;
  const bool is_there = core_->remote != nullptr;
  if (Status status = check_tier(is_there, "remote_stats", "remote tier"); !status) return status;
  return core_->remote->stats();
}

}  // namespace kvcache
