// explain(), and the counters of what limits hits.
#include <algorithm>

#include "cache/cache_core.h"
#include "kvcache/cache.h"

namespace kvcache {

Result<Explanation> Cache::explain(std::span<const std::int32_t> tokens,
                                   const PrefixSpace& space) const {
  if (Status status = check_media(space.media, 0, tokens.size()); !status) return status;
  if (Status status = check_process(); !status) return status;
  if (tokens.empty()) return Explanation();
  const std::string key = space_key(space);
  const SpaceRef where(key, space.media, SpaceRef::kAnyEpoch);
  Explanation said;
  std::uint64_t generation = 0;
  {
    const std::lock_guard lock(core_->mutex);
    core_->tell_time({});
    if (core_->index.is_timed()) core_->index.drop_expired();  // so that it is known for expired
    said = core_->index.explain(where, tokens);
    generation = core_->index.generation();
  }
  const auto keys = core_->index.prompt_keys(where, tokens, said.cached_tokens, generation);
  const std::lock_guard lock(core_->mutex);
  core_->index.explain_loss(where, tokens, keys, said);
  return said;
}

void CacheCore::count_limit(const prefix::Match& match, std::uint64_t asked) {
  // The last token runs in any case.
  const std::uint64_t lost = std::min(match.matched, asked - 1) - match.usable;
  counters.unknown_tokens += asked - match.matched;
  switch (match.limit) {
    case HitLimit::kNone:
      ++counters.limited_by_none;
      break;
    case HitLimit::kTokens:
      ++counters.limited_by_tokens;
      break;
    case HitLimit::kSnapshot:
      ++counters.limited_by_snapshot;
      counters.lost_snapshot_tokens += lost;
      break;
    case HitLimit::kWindow:
      ++counters.limited_by_window;
      counters.lost_window_tokens += lost;
      break;
  }
}

void add_removals(const prefix::RadixIndex& index, CacheStats& stats) {
  const prefix::RemovalCounts& removals = index.removals();
  stats.thinned_snapshots = removals.thinned_snapshots;
  stats.erased_blocks = removals.erased_blocks;
  stats.erased_snapshots = removals.erased_snapshots;
  stats.dropped_blocks = removals.dropped_blocks;
  stats.dropped_snapshots = removals.dropped_snapshots;
  stats.window_pages_evicted = removals.window_pages;
  if (index.events() == nullptr) return;
  stats.waiting_events = index.events()->waiting();
  stats.event_losses = index.events()->losses();
}

}  // namespace kvcache
