#include "sequence/sequence_state.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/on_throw.h"

namespace kvcache::sequence {

SequenceState::SequenceState(const StatePlan& plan, const LayerMap& layers, arena::PoolMap pools,
                             std::string space, std::vector<MediaSpan> media,
                             std::vector<std::int32_t> tokens)
    : plan_(&plan),
      layers_(&layers),
      pools_(std::move(pools)),
      space_(std::move(space)),
      media_(std::move(media)),
      tokens_(std::move(tokens)),
      written_(layers.paged_layers(), 0),
      records_(layers.streams().size(), 0),
      ring_(pools_.ring, plan.options().ring_depth) {
  for (Pool* pool : pools_.pages) tables_.emplace_back(*pool);
}

std::uint64_t SequenceState::written(std::int32_t layer) const {
  return written_[layers_->paged_index(layer)];
}

std::vector<std::vector<ItemId>> SequenceState::block_tables(std::uint64_t end) const {
  std::vector<std::vector<ItemId>> tables;
  const std::uint64_t blocks = ceil_div(end, plan_->block_tokens());
  for (const BlockTable& table : tables_) {
    // A block without a complete record may have no page yet.
    const std::uint64_t held = std::min<std::uint64_t>(blocks, table.blocks());
    tables.emplace_back(table.pages().begin(),
                        table.pages().begin() + static_cast<std::ptrdiff_t>(held));
    tables.back().resize(blocks, kNoItem);
  }
  return tables;
}

// ---- Life -------------------------------------------------------------------------------------

void SequenceState::adopt(std::vector<std::vector<ItemId>> pages, std::uint64_t length) {
  for (std::size_t group = 0; group < tables_.size(); ++group) {
    tables_[group].adopt(std::move(pages[group]));
  }
  length_ = length;
  shared_until_ = length;
  std::fill(written_.begin(), written_.end(), length);
  std::fill(records_.begin(), records_.end(), length);
  clip_frontiers();
  for (const BlockTable& table : tables_) table.retain();
}

Status SequenceState::take_slot(arena::ItemSource& source) {
  if (pools_.slots == nullptr) return Status::ok();
  auto slot = source.allocate(*pools_.slots);
  if (!slot) return slot.status();
  slot_ = *slot;
  return Status::ok();
}

void SequenceState::release() {
  for (BlockTable& table : tables_) table.cut(0);
  forget_snapshots();
  ring_.clear();
  if (slot_ != kNoItem) pools_.slots->release(slot_);
  slot_ = kNoItem;
  length_ = 0;
}

Result<SequenceState> SequenceState::fork(arena::ItemSource& source) {
  SequenceState child(*plan_, *layers_, pools_, space_, media_, tokens_);
  child.epoch_ = epoch_;
  const base::OnThrow undo([&child] { child.release(); });
  if (Status status = child.take_slot(source); !status) return status;
  for (std::size_t group = 0; group < tables_.size(); ++group) {
    child.tables_[group] = tables_[group].fork();
    // Blocks that only this sequence's unfinished rows need stay its own.
    child.tables_[group].cut(ceil_div(length_, plan_->block_tokens()));
  }
  child.length_ = length_;
  child.shared_until_ = length_;
  child.private_from_ = private_from_;
  child.shifted_from_ = shifted_from_;
  child.shifted_to_ = shifted_to_;
  child.written_ = written_;
  child.records_ = records_;
  child.clip_frontiers();
  child.snapshots_.reserve(snapshots_.size());
  for (const SnapshotRef& held : snapshots_) {
    pools_.retain(held);
    child.snapshots_.push_back(held);
  }
  shared_until_ = std::max(shared_until_, length_);
  return child;
}

// ---- Snapshots and rewinding ------------------------------------------------------------------

bool SequenceState::has_windows() const {
  const auto& groups = plan_->groups();
  return std::any_of(groups.begin(), groups.end(), [](const Group& g) { return g.forgets(); });
}

void SequenceState::reserve_snapshot() { snapshots_.reserve(snapshots_.size() + 1); }

void SequenceState::hold_snapshot(const SnapshotRef& taken) {
  for (SnapshotRef& held : snapshots_) {
    if (held.position != taken.position || held.format != taken.format) continue;
    pools_.release(held);
    held = taken;
    return;
  }
  snapshots_.push_back(taken);
}

void SequenceState::forget_snapshots() {
  for (const SnapshotRef& held : snapshots_) pools_.release(held);
  snapshots_.clear();
  for (BlockTable& table : tables_) table.drop_kept();
}

Status SequenceState::check_outside_media(std::string_view call, std::uint64_t position) const {
  for (const MediaSpan& span : media_) {
    if (position <= span.start || position >= span.start + span.length) continue;
    return Status::unsupported(call, ": position ", position, " is inside the media item of [",
                               span.start, ", ", span.start + span.length,
                               "), half of which is none; cut at its start or at its end");
  }
  return Status::ok();
}

Status SequenceState::check_truncate(std::string_view call, std::uint64_t position) const {
  if (position > length_) {
    return Status::invalid_argument(call, " to ", position, ": the sequence is at ", length_);
  }
  if (Status status = check_outside_media(call, position); !status) return status;
  const std::uint64_t block = plan_->block_tokens();
  for (std::size_t group = 0; group < tables_.size(); ++group) {
    const Group& needs = plan_->groups()[group];
    const BlockRange live = needs.live_blocks(position, block);
    const bool not_moved = position > shifted_from_ && position < shifted_to_ &&
                           needs.live_start(position) < needs.live_start(shifted_to_);
    if (not_moved || !tables_[group].resident(live.first, live.last) ||
        !tables_[group].resident(0, needs.sink_blocks(position, block))) {
      return Status::unsupported(call, " to ", position, ": a window of ", needs.window,
                                 " has dropped positions from ", needs.live_start(position),
                                 "; the sequence is at ", length_);
    }
  }
  return Status::ok();
}

void SequenceState::drop_after(std::uint64_t position) {
  while (!snapshots_.empty() && snapshots_.back().position > position) {
    pools_.release(snapshots_.back());
    snapshots_.pop_back();
  }
  ring_.truncate_after(position);
  std::erase_if(media_, [=](const MediaSpan& span) { return span.start >= position; });
}

void SequenceState::truncate(std::uint64_t position) {
  const std::uint64_t block = plan_->block_tokens();
  for (BlockTable& table : tables_) {
    table.cut(ceil_div(position, block));
    table.expose_kept();
    // Rows that others may see are not overwritten: the block is copied before the next write.
    if (position < shared_until_ && position % block != 0) table.mark_shared(position / block);
  }
  drop_after(position);
  shared_until_ = std::min(shared_until_, position);
  if (position <= private_from_) private_from_ = UINT64_MAX;
  if (position <= shifted_from_) {
    shifted_from_ = UINT64_MAX;
    shifted_to_ = 0;
  }
  length_ = position;
  tokens_.resize(position);
  clip_frontiers();
}

void SequenceState::mark_seen(std::uint64_t stop) { shared_until_ = std::max(shared_until_, stop); }

}  // namespace kvcache::sequence
