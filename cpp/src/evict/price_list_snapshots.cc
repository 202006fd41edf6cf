// How the price list treats snapshots: where they lie on the paths, and what each is worth.
#include <algorithm>

#include "evict/price_list.h"

namespace kvcache::evict {

// The record of the block that ends at or holds the end of `position`.
RecordId PriceList::record_at(RunId run, std::uint64_t position) {
  const std::int64_t block = block_of(position - 1);
  RecordId id = nodes_[run].tail;
  while (!history_[id].root && history_[id].first_block > block) id = parent(id);
  return id;
}

void PriceList::add_snapshot(SnapshotId snapshot, RunId run, std::uint64_t position,
                             std::uint64_t) {
  const RecordId record = record_at(run, position);
  MarkId mark = kNoMark;
  for (const MarkId known : history_[record].marks) {
    if (snapshots_[known].position == position) mark = known;
  }
  if (mark == kNoMark) {
    mark = snapshots_.add(position);
    attach_mark(mark, record);
  } else if (snapshots_[mark].stored) {
    snapshots_.unstore(mark);
  }
  snapshots_.store(mark, snapshot, worth(record, position));
  refresh_useless(run);
}

void PriceList::remove_snapshot(SnapshotId snapshot) {
  const MarkId mark = snapshots_.of(snapshot);
  if (mark == kNoMark) return;
  snapshots_.unstore(mark);
  refresh_useless(history_[snapshots_[mark].record].run);
}

// Deepest stored mark of the path to `id` that lies before `position`; 0 when there is none near.
std::uint64_t PriceList::stored_mark_below(RecordId id, std::uint64_t position) {
  constexpr int kNear = 64;  // records
  for (int step = 0; step < kNear && id != kNoRecord && !history_[id].root; ++step) {
    std::uint64_t deepest = 0;
    for (const MarkId mark : history_[id].marks) {
      const Mark& known = snapshots_[mark];
      if (known.stored && known.position < position) deepest = std::max(deepest, known.position);
    }
    if (deepest > 0) return deepest;
    id = parent(id);
  }
  return 0;
}

// FLOPs that a snapshot there saves, for each byte of it and of the pages that only it needs.
double PriceList::worth(RecordId id, std::uint64_t position) {
  const std::uint64_t below = stored_mark_below(id, position);
  std::uint64_t bytes = costs_.snapshot_bytes;
  const Node& at = nodes_[history_[id].run];
  if (at.candidate && stored_mark_below(at.tail, UINT64_MAX) <= position) {
    const std::uint64_t from = std::max(below, at.start);
    bytes += static_cast<std::uint64_t>(blocks_to(position) - block_of(from)) * costs_.block_bytes;
  }
  return costs_.flops(below, position) / static_cast<double>(std::max<std::uint64_t>(bytes, 1));
}

// Marks of `rest` up to `position` are those of `front`, which was cut off it.
void PriceList::share_marks(RecordId front, RecordId rest, std::uint64_t position) {
  auto& marks = history_[rest].marks;
  history_[front].marks.clear();
  std::erase_if(marks, [&](MarkId mark) {
    if (snapshots_[mark].position > position) return false;
    attach_mark(mark, front);
    return true;
  });
}

void PriceList::attach_mark(MarkId mark, RecordId record) {
  history_[record].marks.push_back(mark);
  snapshots_[mark].record = record;
}

// The deepest known mark of path_ was used; the deepest of all ends the path now.
void PriceList::file_marks(const Completion& completion, std::uint32_t kind) {
  struct OnPath {
    MarkId mark;
    RecordId record;
  };
  std::vector<OnPath> marks;
  for (const RecordId id : path_) {
    const std::size_t first = marks.size();
    for (const MarkId mark : history_[id].marks) {
      if (snapshots_[mark].position <= completion.end) marks.push_back({mark, id});
    }
    std::sort(marks.begin() + static_cast<std::ptrdiff_t>(first), marks.end(),
              [&](const OnPath& a, const OnPath& b) {
                return snapshots_[a.mark].position < snapshots_[b.mark].position;
              });
  }
  std::uint8_t uses = 0;
  MarkId used = kNoMark;
  for (const OnPath& on : marks) {
    const Mark& mark = snapshots_[on.mark];
    if (!mark.fresh && mark.position < completion.prompt_tokens) used = on.mark;
  }
  if (used != kNoMark) {
    snapshots_.close(used);
    Mark& mark = snapshots_[used];
    if (mark.uses < UINT8_MAX) ++mark.uses;
    uses = mark.uses;
  }
  for (const OnPath& on : marks) {
    Mark& mark = snapshots_[on.mark];
    const Record& record = history_[on.record];
    const bool at_end =
        mark.position >= static_cast<std::uint64_t>(record.end_block() - 1) * block_tokens_;
    MarkPlace place = MarkPlace::kInterior;
    if (on.mark == marks.back().mark) {
      place = MarkPlace::kEnd;
      mark.uses = std::max(mark.uses, uses);
    } else if (at_end && record.children >= 2) {
      place = record.children == 2 ? MarkPlace::kJunction : MarkPlace::kWideJunction;
    }
    const std::uint8_t cls = SnapshotPrices::class_of(place, mark.uses, kind);
    if (!mark.timed || mark.cls != cls) snapshots_.open(on.mark, cls, now_ms_);
    snapshots_.set_worth(on.mark, worth(on.record, mark.position));
  }
}

// A leaf is useless when its last block lies behind every snapshot that could be restored there.
void PriceList::refresh_useless(RunId run) {
  if (!has_snapshots()) return;
  Node& at = nodes_[run];
  bool useless = at.candidate;
  for (RecordId id = at.tail; useless && id != kNoRecord && !history_[id].root; id = parent(id)) {
    if (history_[id].run != run) break;
    for (const MarkId mark : history_[id].marks) {
      const Mark& known = snapshots_[mark];
      const bool needed = known.stored && blocks_to(known.position) >= blocks_to(at.end);
      useless = useless && !needed;
    }
  }
  if (useless == (at.useless > 0)) return;
  if (useless) {
    at.useless = ++turns_;
    useless_.insert({at.useless, run});
  } else {
    useless_.erase({at.useless, run});
    at.useless = 0;
  }
}

}  // namespace kvcache::evict
