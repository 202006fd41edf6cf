// Context shift: positions in the middle are dropped and those after them numbered anew. Whole
// pages change their place in the block table; rows are copied where they change theirs in a page.
#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/on_throw.h"
#include "sequence/sequence_state.h"

namespace kvcache::sequence {
namespace {

// New positions [first, last) that were [first + distance, last + distance).
struct Part {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t distance = 0;
};

// Whether the query at `end` needs one of positions [first, last).
bool needs_any(const Group& group, std::uint64_t first, std::uint64_t last, std::uint64_t end) {
  return first < last && (last > group.live_start(end) || first < group.sink_end(end));
}

}  // namespace

Status SequenceState::check_shift(std::uint64_t keep, std::uint64_t drop) const {
  if (keep > length_ || drop > length_ - keep) {
    return Status::invalid_argument("shift: positions [", keep, ", ", keep, " + ", drop,
                                    ") are not within the ", length_, " complete ones");
  }
  if (plan_->has_fixed_state()) {
    return Status::unsupported("shift: the fixed-size state of this model has taken in the ",
                               "positions to drop and cannot forget them");
  }
  if (plan_->options().rotated_keys) {
    return Status::unsupported("shift: keys are stored after rotation, so they carry the old ",
                               "positions; store them before it and plan with rotated_keys off");
  }
  for (const std::uint64_t cut : {keep, keep + drop}) {
    if (Status status = check_outside_media("shift", cut); !status) return status;
  }
  for (const Group& group : plan_->groups()) {
    if (group.record_tokens != 1) {
      return Status::unsupported("shift: a row pooled over ", group.record_tokens,
                                 " positions cannot be moved by single positions");
    }
  }
  for (const auto& [layer, unused] : layers_->all_paged()) {
    if (written(layer) == length_) continue;
    return Status::invalid_argument("shift: layer ", layer, " is written up to ", written(layer),
                                    ", the sequence is at ", length_, "; advance() first");
  }
  return Status::ok();
}

// A block after the shift: a page that stays as it is, or one that rows are copied into.
Status SequenceState::plan_block(std::size_t group, std::uint64_t block, const ShiftSpan& span,
                                 arena::ItemSource& source, GroupShift& shift) const {
  const std::uint64_t size = plan_->block_tokens();
  const BlockTable& table = tables_[group];
  const Group& needs = plan_->groups()[group];
  const std::uint64_t end = length_ - span.drop;
  const std::uint64_t first = block * size;
  const std::uint64_t last = std::min(first + size, end);
  const std::uint64_t cut = std::clamp(span.keep, first, last);
  const bool whole = cut == last || (cut == first && span.drop % size == 0);
  if (whole || !needs_any(needs, first, last, end)) {
    const std::uint64_t from = cut == last ? block : block + span.drop / size;
    const bool stays = whole && needs_any(needs, first, last, end);
    const ItemId page = stays ? table.pages()[from] : kNoItem;
    if (stays && page == kNoItem) return missing_rows(group, first, span);
    // Where the kept rows end inside the block others may see the rows that followed them.
    const bool seen = cut == last && last % size != 0 && shared_until_ > last;
    shift.pages.push_back(page);
    shift.owned.push_back(stays && !seen && table.owned(from));
    // The hole will be written from its middle on: it never holds the rows before.
    if (page == kNoItem && first < span.keep && span.keep < first + size) {
      shift.private_from = first;
    }
    return Status::ok();
  }
  // Rows that others may see stay where they are.
  const bool in_place =
      table.pages()[block] != kNoItem && table.owned(block) && cut >= shared_until_;
  ItemId page = in_place ? table.pages()[block] : kNoItem;
  if (!in_place) {
    shift.fresh.push_back(kNoItem);
    const auto fresh = source.allocate(*pools_.pages[group]);
    if (!fresh) return fresh.status();
    shift.fresh.back() = page = *fresh;
  }
  shift.pages.push_back(page);
  shift.owned.push_back(true);
  for (Part part : {Part{first, cut, 0}, Part{cut, last, span.drop}}) {
    if (part.distance == 0 && in_place) continue;
    while (part.first < part.last) {
      const std::uint64_t old = part.first + part.distance;
      const std::uint64_t rows = std::min(part.last - part.first, size - old % size);
      const ItemId from = table.pages()[old / size];
      if (from != kNoItem) {
        shift.copies.push_back({from, page, static_cast<std::uint32_t>(old % size),
                                static_cast<std::uint32_t>(part.first % size),
                                static_cast<std::uint32_t>(rows)});
      } else if (needs_any(needs, part.first, part.first + rows, end)) {
        return missing_rows(group, part.first, span);
      } else if (part.distance == 0) {
        shift.private_from = std::min(shift.private_from, first);
      }
      part.first += rows;
    }
  }
  return Status::ok();
}

Status SequenceState::missing_rows(std::size_t group, std::uint64_t position,
                                   const ShiftSpan& span) const {
  return Status::unsupported("shift: after it a window of ", plan_->groups()[group].window,
                             " sees position ", position, ", which it has dropped; keep ",
                             span.keep, " and drop ", span.drop, " leave ", length_ - span.drop,
                             " positions");
}

Result<std::vector<GroupShift>> SequenceState::prepare_shift(const ShiftSpan& span,
                                                             arena::ItemSource& source) const {
  std::vector<GroupShift> shifts(tables_.size());
  const auto release = [&] {
    for (std::size_t group = 0; group < shifts.size(); ++group) {
      pools_.pages[group]->release_many(shifts[group].fresh);
    }
  };
  const base::OnThrow undo(release);
  const std::uint64_t blocks = ceil_div(length_ - span.drop, plan_->block_tokens());
  Status status;
  for (std::size_t group = 0; group < tables_.size() && status.is_ok(); ++group) {
    for (std::uint64_t block = 0; block < blocks && status.is_ok(); ++block) {
      status = plan_block(group, block, span, source, shifts[group]);
    }
  }
  if (status.is_ok()) return shifts;
  release();
  return status;
}

void SequenceState::move_rows(std::span<const GroupShift> shifts) const {
  for (std::size_t group = 0; group < shifts.size(); ++group) {
    const Pool& pool = *pools_.pages[group];
    // Ascending: a page takes rows of its own block and of later ones only.
    for (const RowMove& move : shifts[group].copies) {
      for (const PagedComponent& component : plan_->groups()[group].components) {
        const auto copy = [&](std::uint64_t offset, std::uint64_t row_bytes) {
          std::memmove(pool.data(move.to) + offset + move.to_row * row_bytes,
                       pool.data(move.from) + offset + move.from_row * row_bytes,
                       move.rows * row_bytes);
        };
        copy(component.rows_offset, component.row_bytes());
        copy(component.scales_offset, component.scale_bytes());
      }
    }
  }
}

void SequenceState::finish_shift(const ShiftSpan& span, std::vector<GroupShift> shifts) {
  for (std::size_t group = 0; group < shifts.size(); ++group) {
    GroupShift& shift = shifts[group];
    private_from_ = std::min({private_from_, span.keep, shift.private_from});
    auto fresh = shift.fresh.begin();
    for (const ItemId page : shift.pages) {
      if (fresh != shift.fresh.end() && page == *fresh) {
        ++fresh;
      } else if (page != kNoItem) {
        pools_.pages[group]->retain(page);
      }
    }
    tables_[group].rearrange(std::move(shift.pages), std::move(shift.owned));
  }
  shifted_from_ =
      std::min(shifted_from_, span.keep / plan_->block_tokens() * plan_->block_tokens());
  shifted_to_ = length_ - span.drop;
  drop_after(span.keep);  // what is further on is of positions that are others now
  const auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(span.keep);
  tokens_.erase(first, first + static_cast<std::ptrdiff_t>(span.drop));
  length_ -= span.drop;
  if (shared_until_ > span.keep) {
    shared_until_ = std::max(span.keep, shared_until_ - std::min(shared_until_, span.drop));
  }
  std::fill(written_.begin(), written_.end(), length_);
}

std::uint64_t SequenceState::publishable() const { return std::min(length_, private_from_); }

}  // namespace kvcache::sequence
