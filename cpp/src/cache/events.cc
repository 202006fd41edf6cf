// Events for routers: the names of paths, hashed outside the cache's lock, and what is taken.
#include <unordered_map>
#include <utility>

#include "cache/cache_core.h"
#include "kvcache/cache.h"

namespace kvcache {
namespace {

Status check_recorded(const CacheCore& core) {
  if (core.records_events) return Status::ok();
  return Status::unsupported(
      "this cache records no events; make it with an event_capacity, such as 100000");
}

// The key of a space into its fields, once for all events of it.
std::vector<CacheEvent> with_spaces(std::vector<prefix::LoggedEvent> logged) {
  std::unordered_map<const std::string*, std::shared_ptr<const PrefixSpace>> spaces;
  std::vector<CacheEvent> events;
  events.reserve(logged.size());
  for (prefix::LoggedEvent& each : logged) {
    if (each.key != nullptr) {
      auto& space = spaces[each.key.get()];
      if (space == nullptr) space = std::make_shared<const PrefixSpace>(space_of(*each.key));
      each.event.space = space;
    }
    events.push_back(std::move(each.event));
  }
  return events;
}

// What the index gives. What has left its log and does not arrive is said again by the next call.
Result<std::vector<CacheEvent>> given(
    CacheCore& core, std::vector<prefix::LoggedEvent> (prefix::RadixIndex::*give)()) {
  if (Status status = core.mutex.check_process(); !status) return status;
  if (Status status = check_recorded(core); !status) return status;
  std::vector<prefix::LoggedEvent> logged;
  {
    const std::lock_guard lock(core.mutex);
    // Routers are told of what has ended, though nobody needs its memory.
    core.tell_time({});
    if (core.index.is_timed()) core.index.drop_expired();
    logged = (core.index.*give)();
  }
  try {
    return with_spaces(std::move(logged));
  } catch (...) {
    const std::lock_guard lock(core.mutex);
    core.index.lose_events();
    throw;
  }
}

}  // namespace

prefix::PathNames path_names(const CacheCore& cache, prefix::BlockChain& chain,
                             const SpaceRef& space, std::span<const std::int32_t> tokens,
                             std::span<const arena::SnapshotRef> snapshots) {
  if (!cache.records_events) return {};
  chain.update(space, tokens, cache.plan.block_tokens());
  prefix::PathNames names{chain.blocks(), {}};
  for (const arena::SnapshotRef& snapshot : snapshots) {
    if (snapshot.item == arena::kNoItem || snapshot.position > tokens.size()) continue;
    names.snapshots.emplace_back(snapshot.position, chain.name_at(snapshot.position));
  }
  return names;
}

prefix::PathNames SequenceCore::path_names(std::uint64_t end) {
  return kvcache::path_names(*cache, chain, state->space(), std::span(state->tokens()).first(end),
                             state->snapshots());
}

Result<std::vector<CacheEvent>> Cache::take_events() {
  return given(*core_, &prefix::RadixIndex::take_events);
}

Result<std::vector<CacheEvent>> Cache::events_snapshot() {
  return given(*core_, &prefix::RadixIndex::restate_events);
}

Status Cache::lose_events() {
  if (Status status = check_process(); !status) return status;
  if (Status status = check_recorded(*core_); !status) return status;
  const std::lock_guard lock(core_->mutex);
  core_->index.lose_events();
  return Status::ok();
}

}  // namespace kvcache
