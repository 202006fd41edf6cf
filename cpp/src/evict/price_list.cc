// Our own: a price list. Each run is filed under what it is (how often used, how long the answer
// was, how much of the prompt was new) and how long ago it was used. Every request teaches how soon
// things filed there come back, whether or not they were still stored. The price of a drawer is the
// most uses for each second of keeping that one can still get; the oldest of the cheapest goes
// first. A new run in a cheap drawer goes at once, so this is admission, too. Without evidence
// prices fall with age, and that is LRU.
#include "evict/price_list.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/prefetch.h"
#include "evict/policies.h"

namespace kvcache::evict {
namespace {

constexpr std::uint64_t kWarm = 32;     // reuses seen before prices are believed
constexpr std::uint8_t kFan = 4;        // continuations of a run that has no latest one
constexpr std::uint32_t kDead = 0;      // the class of what another continuation took the place of
constexpr std::uint32_t kNewcomer = 2;  // until its request has ended

}  // namespace

// ---- The tree ----------------------------------------------------------------------------------

// Files the blocks that follow `at` under the ghosts that they were, and what is left as new.
void PriceList::continue_path(RunId run, RecordId at, std::span<const std::uint64_t> keys,
                              std::int64_t block) {
  while (!keys.empty()) {
    RecordId ghost = history_.find_ghost(keys.front(), block);
    if (ghost == kNoRecord) break;
    const auto& known = history_[ghost].keys;
    const auto stop = std::mismatch(known.begin(), known.end(), keys.begin(), keys.end()).first;
    const auto same = static_cast<std::uint32_t>(stop - known.begin());
    ghost = cut(ghost, same);
    if (history_[ghost].timed) close(ghost);
    set_stored(ghost, same);
    stored_blocks_ += same;
    history_[ghost].run = run;
    history_[ghost].parent = history_.ref(at);
    at = ghost;
    keys = keys.subspan(same);
    block += same;
  }
  if (!keys.empty()) {
    stored_blocks_ += keys.size();
    Record& last = history_[at];
    // What continues a record does so at its end, which therefore stays where it is.
    const bool is_end = last.children == 0 && last.stored == last.blocks();
    if (!last.root && last.run == run && last.uses == 0 && is_end) {
      last.keys.insert(last.keys.end(), keys.begin(), keys.end());
      last.stored = last.blocks();
    } else {
      if (!last.root) supersede(at);
      at = history_.add(at, block, keys);
      history_[at].run = run;
      history_[at].cls = kNewcomer;
    }
  }
  set_tail(run, at);
}

// Another continuation takes the place of the latest one, unless there are many.
void PriceList::supersede(RecordId at) {
  Record& record = history_[at];
  if (record.children < UINT8_MAX) ++record.children;
  if (record.children >= kFan) return;
  path_.clear();
  std::uint64_t blocks = 0;
  for (RecordId id = history_.get(record.last_child); id != kNoRecord;
       id = history_.get(history_[id].last_child)) {
    if (!history_[id].timed) continue;  // a request is running on it
    path_.push_back(id);
    blocks += history_[id].blocks();
  }
  for (const RecordId id : path_) {
    timers_[history_[id].bucket].remove(history_, id);
    open(id, kDead, 1.0 / static_cast<double>(blocks));
    for (const MarkId mark : history_[id].marks) {
      if (snapshots_[mark].timed) snapshots_.open(mark, SnapshotPrices::kDead, now_ms_);
    }
  }
}

// History::split with all lists: the front stands beside the rest. Returns the front, which is all
// of it when there is no rest.
RecordId PriceList::cut(RecordId id, std::uint32_t blocks) {
  if (blocks == history_[id].blocks()) return id;
  const std::uint64_t boundary =
      static_cast<std::uint64_t>(history_[id].first_block + blocks) * block_tokens_;
  // A rest of which nothing is stored is a ghost; the front is the tail then.
  const bool tail_moves = history_[id].stored > 0 && history_[id].stored <= blocks;
  const bool listed = history_[id].listed;
  const RecordId next = history_[id].drawer.after;
  if (tail_moves && listed) drawers_.remove(history_, id);
  const RecordId front = history_.split(id, blocks);
  share_marks(front, id, boundary);
  if (history_[id].timed) {
    timers_[history_[id].bucket].insert_before(history_, front, id);
    history_[front].timed = true;
  }
  if (history_[front].shadow > 0) {
    // Before the rest was used, in the order of LRU.
    const bool both = history_[id].shadow > 0;
    recency_.insert_before(history_, front, history_[id].recency.after);
    if (!both) recency_.remove(history_, id);
  }
  if (tail_moves) {
    if (listed) drawers_.insert_before(history_, front, next);
    Node& at = nodes_[history_[front].run];
    if (at.tail == id) at.tail = front;
  }
  return front;
}

void PriceList::grow_run(RunId run, std::span<const std::int32_t> path) {
  Node& at = nodes_[run];
  const std::uint64_t old_end = at.end;
  at.end = path.size();
  RecordId tail = cut(at.tail, history_[at.tail].stored);
  const auto keys = history_.keys(tail, path, old_end);
  std::vector<MarkId> moved;
  if (old_end % block_tokens_ != 0 && history_[tail].uses == 0) {
    // Its last block had another name as long as it was not full.
    --stored_blocks_;
    if (history_[tail].blocks() == 1) {
      const RecordId above = parent(tail);
      moved.swap(history_[tail].marks);
      forget(tail);
      at.tail = kNoRecord;  // its number may be used again
      tail = above;
    } else {
      history_[tail].keys.pop_back();
      --history_[tail].stored;
    }
  }
  continue_path(run, tail, keys, block_of(old_end));
  for (const MarkId mark : moved) attach_mark(mark, record_at(run, snapshots_[mark].position));
  refresh_useless(run);
}

void PriceList::split_run(RunId upper, RunId run, std::uint64_t position) {
  node(upper) = {kNoRecord, nodes_[run].start, position};
  nodes_[run].start = position;
  const std::int64_t block = block_of(position);
  RecordId rest = nodes_[run].tail;
  while (history_[rest].first_block > block) rest = parent(rest);
  if (history_[rest].first_block < block) {
    cut(rest, static_cast<std::uint32_t>(block - history_[rest].first_block));
  }
  RecordId above = parent(rest);
  for (RecordId id = above; !history_[id].root && history_[id].run == run; id = parent(id)) {
    history_[id].run = upper;
  }
  if (position % block_tokens_ != 0) {
    // The block that both need: the upper run's part of it has the same past.
    constexpr std::uint64_t kNameless = 0;
    const RecordId part = history_.add(above, block, std::span(&kNameless, 1));
    Record& record = history_[part];
    record.run = upper;
    record.uses = history_[rest].uses;
    record.cls = history_[rest].cls;
    record.bucket = history_[rest].bucket;
    record.t0 = history_[rest].t0;
    record.children = 1;
    record.last_child = history_.ref(rest);
    if (history_[rest].timed) {
      timers_[record.bucket].insert_before(history_, part, rest);
      record.timed = true;
    }
    history_[rest].parent = history_.ref(part);
    share_marks(part, rest, position);
    above = part;
  }
  nodes_[upper].tail = above;
  refresh_useless(run);
}

void PriceList::shrink_run(RunId run, std::uint64_t end) {
  Node& at = nodes_[run];
  at.end = end;
  const bool evicted = std::exchange(victim_, std::nullopt) == run;  // not erased
  const std::int64_t blocks = end == at.start ? block_of(at.start) : blocks_to(end);
  RecordId tail = at.tail;
  if (history_[tail].listed) drawers_.remove(history_, tail);
  while (!history_[tail].root && history_[tail].run == run &&
         history_[tail].first_block + history_[tail].stored > blocks) {
    const std::int64_t left = std::max<std::int64_t>(0, blocks - history_[tail].first_block);
    emptied_cell_ = Drawers::cell(history_[tail]);
    stored_blocks_ -= history_[tail].stored - static_cast<std::uint32_t>(left);
    if (!evicted && history_[tail].shadow > left) {
      set_shadow(tail, static_cast<std::uint32_t>(left));
      if (left == 0) recency_.remove(history_, tail);
    }
    set_stored(tail, static_cast<std::uint32_t>(left));
    if (left > 0) break;
    const RecordId above = parent(tail);
    if (history_[tail].keys.front() == 0) forget(tail);
    tail = above;
  }
  if (evicted) capacity_blocks_ = stored_blocks_;
  at.tail = end == at.start ? kNoRecord : tail;
  if (at.candidate) {
    list(tail);
    refresh_useless(run);
  }
}

void PriceList::insert(Unit unit) {
  if (unit.kind == UnitKind::kSnapshot) return keep_snapshot(unit.id, false);
  Node& at = nodes_[unit.id];
  at.candidate = true;
  list(at.tail);
  refresh_useless(unit.id);
}

void PriceList::erase(Unit unit) {
  if (unit.kind == UnitKind::kSnapshot) return keep_snapshot(unit.id, true);
  Node& at = nodes_[unit.id];
  at.candidate = false;
  if (history_[at.tail].listed) drawers_.remove(history_, at.tail);
  refresh_useless(unit.id);
}

std::optional<Unit> PriceList::choose(const MayGo& may_go) {
  going_ = kNoRecord;
  for (const auto& [turn, run] : useless_) {
    if (may_go(run_unit(run))) return run_unit(run);
  }
  if (has_snapshots()) {
    if (const auto snapshot = snapshots_.cheapest(may_go)) return snapshot_unit(*snapshot);
  }
  const auto accept = [&](RecordId record) {
    const RunId run = history_[record].run;
    return nodes_[run].useless == 0 && may_go(run_unit(run));
  };
  RecordId id = kNoRecord;
  // What LRU would not have either costs nothing.
  if (reuses_ < kWarm || !debt_.allows_another()) id = drawers_.first(history_, false, accept);
  if (id == kNoRecord) id = drawers_.first(history_, true, accept);
  if (id == kNoRecord) return std::nullopt;
  going_ = id;
  going_price_ = price(history_[id]);
  return run_unit(history_[id].run);
}

// Those behind it in its drawer. The record of the one behind them is fetched, for the next call.
std::size_t PriceList::foresee(std::span<Unit> units) {
  if (going_ == kNoRecord) return 0;
  std::size_t count = 0;
  RecordId id = history_[going_].drawer.after;
  for (; id != kNoRecord && count < units.size(); id = history_[id].drawer.after) {
    units[count++] = run_unit(history_[id].run);
  }
  if (count > 0) base::prefetch(&nodes_[units[count - 1].id]);
  if (id != kNoRecord) base::prefetch(&history_[id]);
  return count;
}

void PriceList::list(RecordId id) {
  // What the block before it was in goes on being emptied.
  const bool oldest = Drawers::cell(history_[id]) == emptied_cell_;
  drawers_.insert(history_, id, oldest);
}

void PriceList::set_tail(RunId run, RecordId tail) {
  Node& at = nodes_[run];
  emptied_cell_ = UINT32_MAX;
  if (at.candidate && at.tail != tail) {
    if (at.tail != kNoRecord && history_[at.tail].listed) drawers_.remove(history_, at.tail);
    list(tail);
  }
  at.tail = tail;
}

void PriceList::forget(RecordId id) {
  Record& record = history_[id];
  if (record.listed) drawers_.remove(history_, id);
  if (record.timed) timers_[record.bucket].remove(history_, id);
  if (record.shadow > 0) {
    recency_.remove(history_, id);
    set_shadow(id, 0);
  }
  for (const MarkId mark : record.marks) snapshots_.erase(mark);
  history_.erase(id);
}

// The record whose last block is the last whole one before `end`, or the one that `end` is in when
// the run ends there; cut where it goes on.
RecordId PriceList::record_ending_at(RunId run, std::uint64_t end) {
  const std::int64_t blocks = end == nodes_[run].end ? blocks_to(end) : block_of(end);
  RecordId id = nodes_[run].tail;
  while (!history_[id].root && history_[id].first_block >= blocks) id = parent(id);
  if (history_[id].root) return id;
  const std::int64_t wanted = blocks - history_[id].first_block;
  return cut(id, static_cast<std::uint32_t>(std::min<std::int64_t>(history_[id].blocks(), wanted)));
}

void PriceList::collect_path(RecordId deepest) {
  path_.clear();
  for (RecordId id = deepest; id != kNoRecord && !history_[id].root; id = parent(id)) {
    path_.push_back(id);
  }
  std::reverse(path_.begin(), path_.end());
}

std::unique_ptr<Policy> make_price_list(const Costs& costs) {
  return std::make_unique<PriceList>(costs);
}

}  // namespace kvcache::evict
