// Rows in and out of a sequence's pages.
#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "sequence/sequence_state.h"

namespace kvcache::sequence {
namespace {

codec::PagedRows paged_rows(const PagedComponent& component, std::span<std::byte* const> pages,
                            std::uint64_t start, std::uint32_t block_tokens) {
  return {.pages = pages,
          .stored = component.dtype,
          .rows_offset = component.rows_offset,
          .scales_offset = component.scales_offset,
          .page_tokens = block_tokens,
          .first = start % block_tokens};
}

}  // namespace

// ---- Writing ----------------------------------------------------------------------------------

Status SequenceState::extend(std::span<const std::int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return Status::ok();
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
  const std::uint64_t frontier = written(layer);
  if (start < length_ || start > frontier) {
    return Status::invalid_argument("layer ", layer, ": writes may start at ", length_, "..",
                                    frontier, " (complete..written positions), got ", start);
  }
  if (components[0].tokens > tokens_.size() - start) {
    return Status::invalid_argument("layer ", layer, ": rows reach position ",
                                    start + components[0].tokens, " but only ", tokens_.size(),
                                    " tokens are known; extend() the sequence first");
  }
  return Status::ok();
}

void SequenceState::set_copy_rows(std::size_t group, std::span<PageCopy> copies) const {
  for (PageCopy& copy : copies) {
    copy.group = group;
    // Only the block where the complete positions end can be shared and still be written.
    copy.rows = static_cast<std::uint32_t>(length_ % plan_->block_tokens());
  }
}

Status SequenceState::prepare_group(std::size_t group, std::uint64_t start, std::uint64_t stop,
                                    arena::ItemSource& source, std::vector<PageCopy>& copies) {
  const std::uint64_t block = plan_->block_tokens();
  const std::size_t before = copies.size();
  const Status status =
      tables_[group].make_writable(start / block, (stop - 1) / block, source, copies);
  set_copy_rows(group, std::span(copies).subspan(before));
  return status;
}

std::size_t SequenceState::missing_blocks(std::size_t group, std::uint64_t start,
                                          std::uint64_t stop) const {
  if (start == stop) return 0;
  return tables_[group].missing(start / plan_->block_tokens(), (stop - 1) / plan_->block_tokens());
}

void SequenceState::reserve_blocks(std::size_t group, std::uint64_t stop) {
  tables_[group].reserve(ceil_div(stop, plan_->block_tokens()));
}

void SequenceState::take_blocks(std::size_t group, std::uint64_t start, std::uint64_t stop,
                                std::span<const ItemId> fresh, std::vector<PageCopy>& copies) {
  if (start == stop) return;
  const std::uint64_t block = plan_->block_tokens();
  const std::size_t before = copies.size();
  tables_[group].take(start / block, (stop - 1) / block, fresh, copies);
  set_copy_rows(group, std::span(copies).subspan(before));
}

std::vector<std::size_t> SequenceState::block_counts() const {
  std::vector<std::size_t> counts;
  for (const BlockTable& table : tables_) counts.push_back(table.blocks());
  return counts;
}

void SequenceState::cut_blocks(const std::vector<std::size_t>& counts) {
  for (std::size_t group = 0; group < tables_.size(); ++group) tables_[group].cut(counts[group]);
}

Status SequenceState::prepare_write(std::int32_t layer, std::uint64_t start, std::uint64_t stop,
                                    arena::ItemSource& source, std::vector<PageCopy>& copies) {
  if (start == stop) return Status::ok();
  trim_windows();
  std::vector<bool> done(tables_.size(), false);
  const std::vector<std::size_t> blocks = block_counts();
  for (const PagedRef& ref : **layers_->paged(layer)) {
    if (done[ref.group]) continue;
    done[ref.group] = true;
    if (Status status = prepare_group(ref.group, start, stop, source, copies); !status) {
      cut_blocks(blocks);
      return status;
    }
  }
  return Status::ok();
}

Status SequenceState::prepare_all(std::uint64_t start, std::uint64_t stop,
                                  arena::ItemSource& source, std::vector<PageCopy>& copies) {
  const std::vector<std::size_t> blocks = block_counts();
  for (std::size_t group = 0; group < tables_.size(); ++group) {
    if (Status status = prepare_group(group, start, stop, source, copies); !status) {
      cut_blocks(blocks);
      return status;
    }
  }
  return Status::ok();
}

void SequenceState::copy_pages(std::span<const PageCopy> copies) const {
  for (const PageCopy& copy : copies) {
    const Pool& pool = *pools_.pages[copy.group];
    const std::byte* from = pool.data(copy.from);
    std::byte* to = pool.data(copy.to);
    for (const PagedComponent& component : plan_->groups()[copy.group].components) {
      const std::uint64_t rows = std::uint64_t{copy.rows} * component.heads;
      const std::uint64_t bytes = rows * component.width * dtype_bytes(component.dtype);
      std::memcpy(to + component.rows_offset, from + component.rows_offset, bytes);
      std::memcpy(to + component.scales_offset, from + component.scales_offset,
                  rows * component.row_scale_bytes);
    }
  }
}

void SequenceState::drop_sources(std::span<const PageCopy> copies) {
  for (const PageCopy& copy : copies) pools_.pages[copy.group]->release(copy.from);
}

std::vector<std::byte*> SequenceState::page_addresses(std::size_t group, std::uint64_t start,
                                                      std::uint64_t stop) const {
  const std::uint64_t block = plan_->block_tokens();
  std::vector<std::byte*> addresses;
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
    const auto pages = page_addresses(refs[i].group, start, stop);
    status = codec::scatter(components[i],
                            paged_rows(*refs[i].component, pages, start, plan_->block_tokens()));
  }
  std::uint64_t& frontier = written_[layers_->paged_index(layer)];
  // Rows that were there before may be half overwritten: they must be written again.
  frontier = status.is_ok() ? std::max(frontier, stop) : std::min(frontier, start);
  return status;
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
  const std::uint64_t target = length_ + positions;
  for (std::size_t i = 0; check_written && i < written_.size(); ++i) {
    if (written_[i] >= target) continue;
    return Status::invalid_argument("advance to position ", target, ": layer ",
                                    layers_->paged_layer(i), " is written up to ", written_[i],
                                    " only");
  }
  return Status::ok();
}

Status SequenceState::advance(std::uint64_t positions, bool check_written) {
  if (Status status = check_advance(positions, check_written); !status) return status;
  length_ += positions;
  for (std::uint64_t& frontier : written_) frontier = std::max(frontier, length_);
  return Status::ok();
}

void SequenceState::trim_windows() {
  for (std::size_t group = 0; group < tables_.size(); ++group) {
    const BlockRange dead = plan_->groups()[group].dead_blocks(length_, plan_->block_tokens());
    tables_[group].trim(dead.first, dead.last);
  }
}

void SequenceState::drop_unfinished() {
  for (BlockTable& table : tables_) table.cut(ceil_div(length_, plan_->block_tokens()));
  for (std::uint64_t& frontier : written_) frontier = std::min(frontier, length_);
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
    const auto pages = page_addresses(refs[i].group, start, stop);
    const Status status = codec::gather(
        paged_rows(*refs[i].component, pages, start, plan_->block_tokens()), components[i]);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

std::byte* SequenceState::slot_bytes() const {
  return slot_ == kNoItem ? nullptr : pools_.slots->data(slot_);
}

}  // namespace kvcache::sequence
