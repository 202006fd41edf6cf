// Rows in and out of a sequence's pages.
#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "sequence/sequence_state.h"

namespace kvcache::sequence {
namespace {

codec::PagedRows paged_rows(const PagedComponent& component, std::span<std::byte* const> pages,
                            std::uint64_t start, std::uint32_t page_rows) {
  return {.pages = pages,
          .stored = component.dtype,
          .rows_offset = component.rows_offset,
          .scales_offset = component.scales_offset,
          .page_tokens = page_rows,
          .first = start % page_rows};
}

}  // namespace

// ---- Writing ----------------------------------------------------------------------------------

void SequenceState::extend(std::span<const std::int32_t> tokens, std::span<const MediaSpan> media) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  media_.insert(media_.end(), media.begin(), media.end());
}

void SequenceState::reserve_tokens(std::size_t count) {
  const std::size_t needed = tokens_.size() + count;
  if (needed > tokens_.capacity()) tokens_.reserve(std::max(needed, 2 * tokens_.size()));
}

template <typename View>
Status SequenceState::check_rows(std::int32_t layer, std::span<const View> components) const {
  const auto refs = layers_->paged(layer);
  if (!refs) return refs.status();
  if (components.size() != (*refs)->size()) {
    return Status::invalid_argument("layer ", layer, " keeps ", (*refs)->size(),
                                    " components, got ", components.size(), " arrays");
  }
  for (std::size_t i = 0; i < components.size(); ++i) {
    const PagedComponent& want = *(**refs)[i].component;
    const View& got = components[i];
    if (got.heads != want.heads || got.width != want.width || got.tokens != components[0].tokens) {
      return Status::invalid_argument("layer ", layer, " ", plan_->decls()[want.decl].component,
                                      ": expected [", components[0].tokens, ", ", want.heads, ", ",
                                      want.width, "], got [", got.tokens, ", ", got.heads, ", ",
                                      got.width, "]");
    }
    if (!codec::converts(want.dtype, got.dtype)) {
      return Status::invalid_argument("layer ", layer, " ", plan_->decls()[want.decl].component,
                                      ": rows of ", dtype_name(want.dtype), " cannot be ",
                                      dtype_name(got.dtype));
    }
  }
  return Status::ok();
}

template Status SequenceState::check_rows(std::int32_t, std::span<const codec::RowsView>) const;
template Status SequenceState::check_rows(std::int32_t,
                                          std::span<const codec::MutableRowsView>) const;

Status SequenceState::check_write(std::int32_t layer, std::uint64_t start,
                                  std::span<const codec::RowsView> components) const {
  if (Status status = check_rows(layer, components); !status) return status;
  return check_start(layer, start, components[0].tokens);
}

Status SequenceState::check_start(std::int32_t layer, std::uint64_t start,
                                  std::uint64_t positions) const {
  const std::uint64_t frontier = written(layer);
  if (start < length_ || start > frontier) {
    return Status::invalid_argument("layer ", layer, ": writes may start at ", length_, "..",
                                    frontier, " (complete..written positions), got ", start);
  }
  if (positions > tokens_.size() - start) {
    return Status::invalid_argument("layer ", layer, ": rows reach position ", start + positions,
                                    " but only ", tokens_.size(),
                                    " tokens are known; extend() the sequence first");
  }
  return Status::ok();
}

void SequenceState::set_copy_rows(std::size_t group, std::span<PageCopy> copies) const {
  for (PageCopy& copy : copies) {
    copy.group = group;
    // Only the block where the complete positions end can be shared and still be written.
    copy.rows =
        static_cast<std::uint32_t>(plan_->groups()[group].rows(length_ % plan_->block_tokens()));
  }
}

std::size_t SequenceState::missing_blocks(std::size_t group, std::uint64_t start,
                                          std::uint64_t stop) const {
  const BlockRange blocks = plan_->groups()[group].row_blocks(start, stop, plan_->block_tokens());
  return blocks.first < blocks.last ? tables_[group].missing(blocks.first, blocks.last - 1) : 0;
}

void SequenceState::reserve_blocks(std::size_t group, std::uint64_t stop) {
  tables_[group].reserve(ceil_div(stop, plan_->block_tokens()));
}

void SequenceState::take_blocks(std::size_t group, std::uint64_t start, std::uint64_t stop,
                                std::span<const ItemId> fresh, std::vector<PageCopy>& copies) {
  const BlockRange blocks = plan_->groups()[group].row_blocks(start, stop, plan_->block_tokens());
  if (blocks.first >= blocks.last) return;
  const std::size_t before = copies.size();
  tables_[group].take(blocks.first, blocks.last - 1, fresh, copies);
  set_copy_rows(group, std::span(copies).subspan(before));
}

void SequenceState::copy_pages(std::span<const PageCopy> copies) const {
  for (const PageCopy& copy : copies) {
    const Pool& pool = *pools_.pages[copy.group];
    const std::byte* from = pool.data(copy.from);
    std::byte* to = pool.data(copy.to);
    for (const PagedComponent& component : plan_->groups()[copy.group].components) {
      std::memcpy(to + component.rows_offset, from + component.rows_offset,
                  copy.rows * component.row_bytes());
      std::memcpy(to + component.scales_offset, from + component.scales_offset,
                  copy.rows * component.scale_bytes());
    }
  }
}

void SequenceState::drop_sources(std::span<const PageCopy> copies) {
  for (const PageCopy& copy : copies) pools_.pages[copy.group]->release(copy.from);
}

std::vector<std::byte*> SequenceState::page_addresses(std::size_t group, std::uint64_t start,
                                                      std::uint64_t stop) const {
  const std::uint64_t block = page_rows(group);
  std::vector<std::byte*> addresses;
  if (start == stop) return addresses;  // inside a block whose page may have gone
  for (std::uint64_t b = start / block; b < ceil_div(stop, block); ++b) {
    addresses.push_back(pools_.pages[group]->data(tables_[group].pages()[b]));
  }
  return addresses;
}

Status SequenceState::encode(std::int32_t layer, std::uint64_t start,
                             std::span<const codec::RowsView> components) {
  const std::vector<PagedRef>& refs = **layers_->paged(layer);
  const std::uint64_t stop = start + components[0].tokens;
  if (start == stop) return Status::ok();
  Status status;
  for (std::size_t i = 0; i < refs.size() && status.is_ok(); ++i) {
    status = encode_rows(refs[i], start, components[i]);
  }
  std::uint64_t& frontier = written_[layers_->paged_index(layer)];
  // Rows that were there before may be half overwritten: they must be written again.
  frontier = status.is_ok() ? std::max(frontier, stop) : std::min(frontier, start);
  return status;
}

Status SequenceState::encode_rows(const PagedRef& ref, std::uint64_t start,
                                  const codec::RowsView& rows) {
  const auto pages = page_addresses(ref.group, start, start + rows.tokens);
  return codec::scatter(rows, paged_rows(*ref.component, pages, start, page_rows(ref.group)));
}

void SequenceState::forget_rows(std::int32_t layer, std::uint64_t start) {
  std::uint64_t& frontier = written_[layers_->paged_index(layer)];
  frontier = std::min(frontier, start);
}

Status SequenceState::check_known(std::uint64_t positions) const {
  if (positions <= tokens_.size() - length_) return Status::ok();
  return Status::invalid_argument("going ", positions, " on from position ", length_,
                                  " passes the ", tokens_.size(),
                                  " known tokens; extend() the sequence first");
}

Status SequenceState::check_advance(std::uint64_t positions, bool check_written) const {
  if (Status status = check_known(positions); !status) return status;
  return check_written ? check_complete("advance", length_ + positions) : Status::ok();
}

Status SequenceState::check_complete(std::string_view call, std::uint64_t target) const {
  for (std::size_t i = 0; i < written_.size(); ++i) {
    if (written_[i] >= target) continue;
    return Status::invalid_argument(call, " to position ", target, ": layer ",
                                    layers_->paged_layer(i), " is written up to ", written_[i],
                                    " only");
  }
  for (const Stream& stream : layers_->streams()) {
    if (records(stream) >= target / stream.record_tokens) continue;
    return Status::invalid_argument(call, " to position ", target, ": layer ", stream.layer,
                                    " has ", records(stream), " records of '", stream.name,
                                    "', of ", target / stream.record_tokens,
                                    "; write_records() the others first");
  }
  return Status::ok();
}

Status SequenceState::check_nothing_ahead(std::string_view call) const {
  for (std::size_t i = 0; i < written_.size(); ++i) {
    if (written_[i] == length_) continue;
    return Status::invalid_argument(call, ": layer ", layers_->paged_layer(i),
                                    " is written up to position ", written_[i],
                                    " but the sequence is at ", length_, "; advance() it first");
  }
  for (const Stream& stream : layers_->streams()) {
    if (records(stream) == length_ / stream.record_tokens) continue;
    return Status::invalid_argument(call, ": layer ", stream.layer, " has ", records(stream),
                                    " records of '", stream.name, "' but the sequence is at ",
                                    length_, "; advance() it first");
  }
  return Status::ok();
}

void SequenceState::clip_frontiers() {
  for (std::uint64_t& frontier : written_) frontier = std::min(frontier, length_);
  for (const Stream& stream : layers_->streams()) {
    records_[stream.index] = std::min(records_[stream.index], length_ / stream.record_tokens);
  }
}

Status SequenceState::advance(std::uint64_t positions, bool check_written) {
  if (Status status = check_advance(positions, check_written); !status) return status;
  length_ += positions;
  for (std::uint64_t& frontier : written_) frontier = std::max(frontier, length_);
  for (const Stream& stream : layers_->streams()) {
    std::uint64_t& frontier = records_[stream.index];
    frontier = std::max(frontier, length_ / stream.record_tokens);
  }
  return Status::ok();
}

void SequenceState::trim_windows(std::uint64_t length) {
  for (std::size_t group = 0; group < tables_.size(); ++group) {
    const Group& needs = plan_->groups()[group];
    if (!needs.forgets()) continue;
    const std::uint64_t block = plan_->block_tokens();
    std::vector<BlockRange> keep;
    for (const SnapshotRef& held : snapshots_) {
      keep.push_back(needs.live_blocks(held.position, block));
    }
    const BlockRange dead = needs.dead_blocks(length, block);
    tables_[group].trim(dead.first, dead.last, keep);
  }
}

void SequenceState::drop_unfinished() {
  for (BlockTable& table : tables_) table.cut(ceil_div(length_, plan_->block_tokens()));
  clip_frontiers();
}

// ---- Reading ----------------------------------------------------------------------------------

Status SequenceState::check_read(std::int32_t layer, std::uint64_t start,
                                 std::uint64_t stop) const {
  const auto refs = layers_->paged(layer);
  if (!refs) return refs.status();
  if (start > stop || stop > written(layer)) {
    return Status::invalid_argument("layer ", layer, ": positions [", start, ", ", stop,
                                    ") are not within the ", written(layer), " written ones");
  }
  for (const PagedRef& ref : **refs) {
    // Not the blocks decide but the window: what a layer may still see does not depend on how its
    // rows are stored, and rows behind the window may never have been written here.
    const Group& needs = plan_->groups()[ref.group];
    if (start == stop || needs.sees(start, stop, length_)) continue;
    return Status::not_found("layer ", layer, ": positions from ",
                             std::max(start, needs.sink_end(length_)), " have left its window of ",
                             needs.window, "; the sequence is at ", length_);
  }
  return Status::ok();
}

Status SequenceState::decode(std::int32_t layer, std::uint64_t start,
                             std::span<const codec::MutableRowsView> components) const {
  const std::vector<PagedRef>& refs = **layers_->paged(layer);
  const std::uint64_t stop = start + components[0].tokens;
  if (start == stop) return Status::ok();
  for (std::size_t i = 0; i < refs.size(); ++i) {
    if (Status status = decode_rows(refs[i], start, components[i]); !status) return status;
  }
  return Status::ok();
}

Status SequenceState::decode_rows(const PagedRef& ref, std::uint64_t start,
                                  const codec::MutableRowsView& rows) const {
  const auto pages = page_addresses(ref.group, start, start + rows.tokens);
  return codec::gather(paged_rows(*ref.component, pages, start, page_rows(ref.group)), rows);
}

std::byte* SequenceState::slot_bytes() const {
  return slot_ == kNoItem ? nullptr : pools_.slots->data(slot_);
}

}  // namespace kvcache::sequence
