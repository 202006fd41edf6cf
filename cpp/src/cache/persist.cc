// save() and load() of a cache: what is pinned, what is allocated, and when it becomes visible.
// The files are persist's business.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/sha256.h"
#include "cache/cache_core.h"
#include "cache/held_items.h"
#include "kvcache/cache.h"
#include "layout/spans.h"
#include "persist/prompt_cache.h"

namespace kvcache {
namespace {

using arena::ItemId;
using arena::kNoItem;
using persist::PrefixBytes;
using persist::PrefixShape;

// Positions before the window that are stored as well, where they are resident: with them a cache
// with other blocks, up to this many positions long, can fill its first page.
constexpr std::uint64_t kReblockTokens = 256;

// Media and weights count where there are any, so that files without them keep their digest.
std::string space_digest(const PrefixSpace& space, const std::string& weights) {
  std::string text = "kvcache.prefix-space.v1\n" + space_key(space);
  for (const MediaSpan& span : space.media) {
    text += "\nmedia " + std::to_string(span.start) + ' ' + std::to_string(span.length) + ' ' +
            with_length(span.digest);
  }
  if (!weights.empty()) text += "\nweights " + with_length(weights);
  return "sha256:" + sha256_hex(text);
}

// What a call needs of the space it works in. The key lives as long as this.
struct Where {
  Where(CacheCore& core, const PrefixSpace& space) : key(space_key(space)), media(space.media) {
    const std::lock_guard lock(core.mutex);
    epoch = core.index.epoch();
    digest = space_digest(space, core.weights);
  }
  SpaceRef ref() const { return {key, media, epoch}; }

  std::string key;
  std::span<const MediaSpan> media;
  std::uint64_t epoch = 0;
  std::string digest;
};

// Where the bytes of what is held lie.
PrefixBytes bytes_of(const HeldItems& pins) {
  const arena::PoolMap& pools = pins.core.pools;
  PrefixBytes found;
  for (std::size_t group = 0; group < pins.pages.size(); ++group) {
    auto& blocks = found.pages.emplace_back();
    for (const ItemId page : pins.pages[group]) {
      blocks.push_back(page == kNoItem ? nullptr : pools.pages[group]->data(page));
    }
  }
  for (const ItemId snapshot : pins.snapshots) {
    found.snapshots.push_back(pools.snapshots->data(snapshot));
  }
  return found;
}

// The longest prefix that is usable whole: open() always leaves the last token to run, save() has
// no such token.
prefix::Match match_whole(CacheCore& core, const SpaceRef& key,
                          std::span<const std::int32_t> tokens) {
  std::vector<std::int32_t> longer(tokens.begin(), tokens.end());
  longer.push_back(0);
  return core.index.match(key, longer, false);
}

// Chooses what is stored of one group: from the first position on from which every row is
// resident, no lower than is worth it, and the pages of the sinks. Drops the other pages.
void choose_rows(const Group& group, std::uint64_t block, std::vector<ItemId>& pages,
                 PrefixShape& shape) {
  const std::uint64_t needed = group.live_start(shape.tokens);
  const std::uint64_t lowest = (needed - std::min(needed, kReblockTokens)) / block;
  std::uint64_t first = group.live_blocks(shape.tokens, block).last;
  while (first > lowest && pages[first - 1] != kNoItem) --first;
  std::uint64_t sinks = group.sink_blocks(shape.tokens, block);
  if (sinks >= first) {
    if (sinks > 0) first = 0;
    sinks = 0;
  }
  std::fill(pages.begin() + static_cast<std::ptrdiff_t>(sinks),
            pages.begin() + static_cast<std::ptrdiff_t>(first), kNoItem);
  shape.starts.push_back(std::min(first * block, shape.tokens));
  shape.sinks.push_back(sinks * block);
}

// Whether what is stored also serves a hit at an earlier position.
bool has_windows(const StatePlan& plan, const PrefixShape& shape, std::uint64_t tokens) {
  for (std::size_t group = 0; group < shape.starts.size(); ++group) {
    if (!persist::covers(shape, group, plan.groups()[group], tokens)) return false;
  }
  return true;
}

Status check_exact(const prefix::Match& match) {
  if (match.snapshot.format == SnapshotFormat::kExact) return Status::ok();
  return Status::unsupported("save: the snapshot at ", match.usable, " is ",
                             snapshot_format_name(match.snapshot.format),
                             ", files hold exact ones; take an exact snapshot() there");
}

// Locked. Fills `pins` and `shape` with what save() stores of `tokens`. kUnsupported: the state at
// the end of the prefix is not exact.
Status pin_prefix(CacheCore& core, const SpaceRef& key, std::span<const std::int32_t> tokens,
                  HeldItems& pins, PrefixShape& shape) {
  prefix::Match whole = match_whole(core, key, tokens);
  shape.tokens = whole.usable;
  if (whole.usable == 0) return Status::ok();
  if (Status status = check_exact(whole); !status) return status;
  for (std::size_t group = 0; group < whole.tables.size(); ++group) {
    choose_rows(core.plan.groups()[group], core.plan.block_tokens(), whole.tables[group], shape);
  }
  std::vector<ItemId> snapshots;
  if (core.plan.has_fixed_state()) {
    // The same prompt again runs its last token, so it needs the state before it as well.
    if (whole.usable == tokens.size()) {
      const prefix::Match again = core.index.match(key, tokens, false);
      const bool covered = has_windows(core.plan, shape, again.usable);
      if (again.usable > 0 && covered && check_exact(again)) {
        shape.snapshots.push_back(again.usable);
        snapshots.push_back(again.snapshot.item);
      }
    }
    shape.snapshots.push_back(whole.usable);
    snapshots.push_back(whole.snapshot.item);
  }
  pins.retain(std::move(whole.tables), std::move(snapshots));
  return Status::ok();
}

// Blocks of one group that a saved prefix fills: [0, sinks) and [first, last).
struct FilledBlocks {
  std::uint64_t sinks = 0;
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  std::uint64_t count() const { return std::min(sinks, last) + last - std::min(first, last); }
};

// What of a group a saved prefix fills, and whether that is enough to go on.
Result<FilledBlocks> filled_blocks(const Group& group, const PrefixShape& shape, std::size_t index,
                                   std::uint64_t block) {
  const BlockRange live = group.live_blocks(shape.tokens, block);
  const FilledBlocks filled{shape.sinks[index] / block, ceil_div(shape.starts[index], block),
                            live.last};
  const std::uint64_t sinks = group.sink_blocks(shape.tokens, block);
  if ((live.first < live.last && filled.first > live.first) ||
      std::min(sinks, filled.first) > filled.sinks) {
    return Status::unsupported("load: rows of the window of ", group.window,
                               " were saved from position ", shape.starts[index], ", the first ",
                               shape.sinks[index], " besides, and do not fill the blocks of ",
                               block, " that it needs; lower block_tokens");
  }
  return filled;
}

// Locked. Refuses what no eviction can make room for, before anything is evicted.
Status check_budget(const CacheCore& core, const PrefixShape& shape,
                    const std::vector<FilledBlocks>& filled) {
  std::uint64_t total = span_bytes(span_geometry(core.plan.slot_bytes()), shape.snapshots.size());
  bool fits = true;
  for (std::size_t group = 0; group < filled.size() && fits; ++group) {
    const SpanGeometry geometry = span_geometry(core.plan.groups()[group].page_bytes);
    const auto bytes = checked_mul(ceil_div(filled[group].count(), geometry.items), geometry.bytes);
    const auto sum = bytes ? checked_add(total, *bytes) : std::nullopt;
    fits = sum.has_value();
    total = sum.value_or(UINT64_MAX);
  }
  if (fits && total <= core.arena->budget_bytes()) return Status::ok();
  return Status::out_of_capacity("load: ", shape.tokens, " positions take ", total,
                                 " bytes, the budget is ", core.arena->budget_bytes(),
                                 "; raise the plan's memory");
}

// Locked. kOutOfCapacity: what was taken goes back with `pins`. Without `evict` only free memory is
// taken.
Status take_items(CacheCore& core, const PrefixShape& shape,
                  const std::vector<FilledBlocks>& filled, bool evict, HeldItems& pins) {
  const auto take = [&](arena::Pool& pool) {
    return evict ? core.allocate(pool) : pool.allocate();
  };
  const std::uint64_t blocks = ceil_div(shape.tokens, core.plan.block_tokens());
  for (std::size_t group = 0; group < filled.size(); ++group) {
    pins.pages[group].assign(blocks, kNoItem);
    for (std::uint64_t block = 0; block < filled[group].last; ++block) {
      if (block >= filled[group].sinks && block < filled[group].first) continue;
      auto page = take(*core.pools.pages[group]);
      if (!page) return page.status();
      pins.pages[group][block] = *page;
    }
  }
  for (std::size_t i = 0; i < shape.snapshots.size(); ++i) {
    pins.snapshots.push_back(kNoItem);
    auto snapshot = take(*core.pools.snapshots);
    if (!snapshot) return snapshot.status();
    pins.snapshots.back() = *snapshot;
  }
  return Status::ok();
}

// Locked. True when the cache could serve everything that the files hold.
bool is_resident(CacheCore& core, const SpaceRef& key, const persist::PromptCacheReader& file) {
  const PrefixShape& shape = file.shape();
  const std::span<const std::int32_t> tokens = file.tokens();
  if (match_whole(core, key, tokens).usable != shape.tokens) return false;
  return std::all_of(shape.snapshots.begin(), shape.snapshots.end(), [&](std::uint64_t position) {
    const prefix::SnapshotRef found = core.index.find_snapshot(key, tokens, position);
    return found.position == position && found.format == SnapshotFormat::kExact;
  });
}

// Takes memory for what the files hold. What has to be evicted for it goes only once they are known
// to be whole; where enough is free, reading checks them in the same pass. None: all is resident,
// and was renewed, locked.
template <typename Renew>
Status make_room(CacheCore& core, const SpaceRef& key, const persist::PromptCacheReader& file,
                 const std::vector<FilledBlocks>& filled, unsigned threads,
                 std::optional<HeldItems>& pins, const Renew& renew) {
  for (const bool whole : {false, true}) {
    pins.emplace(core);
    {
      const std::lock_guard lock(core.mutex);
      core.tell_time({});
      if (!is_resident(core, key, file)) {
        if (Status status = check_budget(core, file.shape(), filled); !status) return status;
        Status status = take_items(core, file.shape(), filled, whole, *pins);
        if (status || whole) return status;
      } else if (whole) {
        renew();
      }
    }
    pins.reset();
    if (whole) break;
    if (Status status = file.verify(threads); !status) return status;
  }
  return Status::ok();
}

}  // namespace

Result<std::uint64_t> Cache::save(const std::string& path, std::span<const std::int32_t> tokens,
                                  const PrefixSpace& space, const SaveOptions& options) {
  CacheCore& core = *core_;
  if (Status status = check_process(); !status) return status;
  if (Status status = core.check_backing("save"); !status) return status;
  if (tokens.empty()) return Status::invalid_argument("save: a prefix needs at least one token");
  if (Status status = check_media(space.media, 0, tokens.size()); !status) return status;
  const Where where(core, space);
  HeldItems pins(core);
  PrefixShape shape;
  {
    const std::lock_guard lock(core.mutex);
    core.tell_time({});
    if (Status status = pin_prefix(core, where.ref(), tokens, pins, shape); !status) return status;
  }
  if (shape.tokens == 0) {
    return Status::not_found("save: no prefix of these ", tokens.size(),
                             " tokens is resident and usable; explain() tells why");
  }
  if (Status status =
          persist::write_prompt_cache(path, core.plan, where.digest, tokens.first(shape.tokens),
                                      shape, bytes_of(pins), options);
      !status) {
    return status;
  }
  return shape.tokens;
}

Result<std::uint64_t> Cache::load(const std::string& path, const PrefixSpace& space,
                                  const LoadOptions& options) {
  CacheCore& core = *core_;
  const std::string& tenant = options.tenant;
  const std::uint64_t ttl = options.ttl_ms.value_or(core.ttl_ms);
  if (Status status = check_ttl(ttl); !status) return status;
  if (options.read_threads == 0 || options.read_threads > 64) {
    return Status::invalid_argument("load: read_threads: expected 1..64, got ",
                                    options.read_threads);
  }
  if (Status status = check_process(); !status) return status;
  if (Status status = core.check_backing("load"); !status) return status;
  const Where where(core, space);
  const auto file =
      persist::PromptCacheReader::open(path, core.plan, where.digest, options.convert);
  if (!file) return file.status();
  if (Status status = check_media(space.media, 0, UINT64_MAX); !status) return status;
  const PrefixShape& shape = file->shape();
  std::vector<FilledBlocks> filled;
  for (std::size_t group = 0; group < core.plan.groups().size(); ++group) {
    const auto blocks =
        filled_blocks(core.plan.groups()[group], shape, group, core.plan.block_tokens());
    if (!blocks) return blocks.status();
    filled.push_back(*blocks);
  }
  std::optional<HeldItems> pins;
  const auto renew = [&] {
    const prefix::Match match = match_whole(core, where.ref(), file->tokens());
    core.insert(where.ref(), file->tokens(), match.tables, {}, {}, ttl, tenant);
  };
  if (Status status =
          make_room(core, where.ref(), *file, filled, options.read_threads, pins, renew);
      !status) {
    return status;
  }
  if (!pins) return shape.tokens;
  if (Status status = file->read_into(bytes_of(*pins), options.read_threads); !status)
    return status;
  std::vector<prefix::SnapshotRef> snapshots;
  for (std::size_t i = 0; i < shape.snapshots.size(); ++i) {
    snapshots.push_back({shape.snapshots[i], pins->snapshots[i]});
  }
  prefix::BlockChain chain;
  const prefix::PathNames names = path_names(core, chain, where.ref(), file->tokens(), snapshots);
  const std::lock_guard lock(core.mutex);
  if (where.epoch != core.index.epoch()) {
    return Status::not_found("load: the weights have changed meanwhile, so nothing was kept");
  }
  const std::uint64_t kept =
      core.insert(where.ref(), file->tokens(), pins->pages, snapshots, names, ttl, tenant, true);
  if (kept < shape.tokens) {
    return Status::out_of_capacity("load: the quota of tenant '", tenant, "' has no room for all ",
                                   shape.tokens, " positions; raise it with set_quota()");
  }
  evict::Completion facts;
  facts.now_ms = CacheCore::now_ms({});
  facts.prompt_tokens = shape.tokens;
  core.index.complete(where.ref(), file->tokens(), facts);
  return shape.tokens;
}

}  // namespace kvcache
