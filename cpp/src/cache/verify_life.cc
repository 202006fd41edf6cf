#include "cache/verify_life.h"

#include <utility>

#include "base/check.h"

namespace kvcache {

using speculate::KeptRows;
using speculate::VerifyState;

Status take_memory(CacheCore& cache, std::span<const std::shared_ptr<SequenceCore>> sequences,
                   std::vector<sequence::PageCopy>& copies) {
  std::vector<sequence::RowsAhead> rows;
  rows.reserve(sequences.size());
  std::uint64_t wanted = 0;
  for (const auto& core : sequences) {
    const VerifyState& verify = *core->verify;
    rows.push_back({&*core->state, verify.start(), verify.start() + verify.rows()});
    wanted += verify.slots_needed();
  }
  if (wanted > 0) {
    std::vector<arena::ItemId> slots(wanted);
    Status status = cache.allocate_many(*cache.pools.snapshots, slots);
    if (!status) return status;
    auto next = std::span<const arena::ItemId>(slots);
    for (const auto& core : sequences) {
      core->verify->hold_slots(next.first(core->verify->slots_needed()));
      next = next.subspan(core->verify->slots_needed());
    }
  }
  Status status = sequence::take_pages(rows, cache.groups, cache.pools, cache, copies);
  for (const auto& core : sequences) {
    if (!status) return status;
    if (core->verify->strategy() != VerifyStrategy::kSteps) status = core->stash.take(cache);
  }
  return status;
}

void place_inputs(SequenceCore& core) {
  const VerifyState& verify = *core.verify;
  core.stash.begin(verify.rows(), verify.strategy() == VerifyStrategy::kCarry,
                   core.state->slot_bytes());
}

namespace {

// Copies of the state, of a verify that began without.
Status take_slots(SequenceCore& core) {
  CacheCore& cache = *core.cache;
  core.verify->want_slots();
  core.verify->reserve_slots();
  std::vector<arena::ItemId> slots(core.verify->slots_needed());
  const std::lock_guard lock(cache.mutex);
  Status status = cache.allocate_many(*cache.pools.snapshots, slots);
  if (status) core.verify->hold_slots(slots);
  return status;
}

}  // namespace

Result<StateView> verify_tensor(SequenceCore& core, std::uint64_t row, std::int32_t layer,
                                std::string_view name) {
  CacheCore& cache = *core.cache;
  if (Status status = cache.check_backing("state"); !status) return status;
  if (row >= core.verify->rows()) {
    return Status::invalid_argument("state: the verify session has rows 0..",
                                    core.verify->rows() - 1, ", got ", row);
  }
  const auto component = cache.layers.fixed(layer, name);
  if (!component) return component.status();
  if (core.stash.is_put(**component)) {
    return Status::invalid_argument("state of '", name, "' of layer ", layer,
                                    ": its inputs were stashed in this session, which give the "
                                    "state after each row");
  }
  if (!core.verify->has_slots()) {
    if (Status status = take_slots(core); !status) return status;
  }
  // A copy of the live tensor is one of the state at length().
  core.stash.flush_layer(**component, core.state->slot_bytes());
  const arena::ItemId slot = core.verify->take(row, **component, core.state->slot_bytes());
  return pin_tensor(core.cache, *cache.pools.snapshots, slot, **component);
}

Status check_commit(const SequenceCore& core, const KeptRows& kept, bool in_place) {
  const VerifyState& verify = *core.verify;
  if (Status status = verify.check_rows(kept); !status) return status;
  if (!core.cache->backing) return Status::ok();
  if (!in_place) {
    const std::uint64_t stop = verify.start() + verify.rows();
    if (Status status = core.state->check_complete("commit", stop); !status) return status;
  }
  if (Status status = core.stash.check_whole("commit"); !status) return status;
  return verify.check_taken(kept.last(), core.stash.put());
}

void reserve_rows(SequenceCore& core, const KeptRows& kept) {
  core.state->reserve_tokens(kept.count);
}

void keep_rows(SequenceCore& core, const KeptRows& kept) {
  sequence::SequenceState& state = *core.state;
  const VerifyState& verify = *core.verify;
  if (core.cache->backing) {
    state.compact_rows(verify.start(), kept.path);
    verify.adopt(kept.last(), core.stash.put(), state.slot_bytes());
    core.stash.commit(kept, verify.strategy() == VerifyStrategy::kCarry, state.slot_bytes());
  }
  const std::span<const std::int32_t> tokens(verify.tokens());
  if (kept.path.empty()) {
    state.extend(tokens.subspan(1, kept.count - 1));
  } else {
    for (const std::int32_t row : kept.path.subspan(1)) {
      state.extend(tokens.subspan(static_cast<std::size_t>(row), 1));
    }
  }
  const Status status = state.advance(kept.count, false);
  KVCACHE_CHECK(status.is_ok());
}

void end_verify(SequenceCore& core) {
  sequence::SequenceState& state = *core.state;
  const std::uint64_t start = core.verify->start();
  const bool begun = std::exchange(core.verify_begun, false);
  core.stash.end(begun);
  core.verify->release();
  core.verify.reset();
  state.drop_unfinished();
  if (!begun) {
    // Nobody has seen it: what the verify before it has left is as good as it was.
    --core.verify_serial;
    return;
  }
  core.verified_length = state.length();
  // By the old length: what may be truncated afterwards is the same as without speculation.
  if (state.length() > start) state.trim_windows(start);
}

}  // namespace kvcache
