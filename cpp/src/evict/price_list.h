// The price list; price_list.cc says what it is. This header is for its files.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/chunked_vector.h"
#include "evict/block_keys.h"
#include "evict/drawers.h"
#include "evict/hazard_table.h"
#include "evict/history.h"
#include "evict/lru_debt.h"
#include "evict/policy.h"
#include "evict/snapshot_prices.h"

namespace kvcache::evict {

// The classes of the hint with this number, 0 for no hint: dead, last blocks that are not full,
// then uses {1, 2, 3-4, 5-8, 9-32, more} x output tokens {<= 32, <= 128, more} x new tokens {few,
// many}.
std::vector<HazardTable::Parents> class_parents(std::uint32_t hint);

class PriceList final : public Policy {
 public:
  explicit PriceList(const Costs& costs)
      : costs_(costs),
        block_tokens_(costs.block_tokens),
        history_(costs.block_tokens, costs.metadata_bytes),
        hazards_(class_parents(0)),
        drawers_(hazards_) {}

  std::string_view name() const override { return "price_list"; }
  bool learns() const override { return true; }

  // ---- What is stored ----
  void add_root(RunId root, std::string_view space) override {
    node(root) = {history_.add_root(space_seed(space)), 0, 0};
  }
  void add_run(RunId run, RunId parent, std::span<const std::int32_t> path, std::uint64_t start,
               std::uint64_t) override {
    const RecordId tail = nodes_[parent].tail;
    const RecordId above = cut(tail, history_[tail].stored);
    const auto keys = history_.keys(above, path, start);
    node(run) = {kNoRecord, start, path.size()};
    continue_path(run, above, keys, block_of(start));
  }
  void grow_run(RunId run, std::span<const std::int32_t> path) override;
  void split_run(RunId upper, RunId run, std::uint64_t position) override;
  void shrink_run(RunId run, std::uint64_t end) override;
  void add_snapshot(SnapshotId snapshot, RunId run, std::uint64_t position,
                    std::uint64_t clock) override;
  void remove_snapshot(SnapshotId snapshot) override;

  // ---- What requests do ----
  void use(Unit, std::uint64_t) override {}
  void arrive(const Arrival& arrival) override;
  void complete(const Completion& completion) override;

  Meter meter() const override { return meter_; }

  // ---- What may go ----
  void insert(Unit unit) override;
  void erase(Unit unit) override;
  std::optional<Unit> victim(const MayGo& may_go) override {
    const std::optional<Unit> chosen = choose(may_go);
    if (chosen && chosen->kind == UnitKind::kRun) victim_ = chosen->id;
    return chosen;
  }
  std::size_t foresee(std::span<Unit> units) override;

 private:
  struct Node {
    RecordId tail = kNoRecord;  // record of its last stored block
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    bool candidate = false;
    std::uint64_t useless = 0;  // its turn among the useless, from 1
  };

  std::int64_t block_of(std::uint64_t position) const {
    return static_cast<std::int64_t>(position / block_tokens_);
  }
  std::int64_t blocks_to(std::uint64_t end) const {
    return static_cast<std::int64_t>(ceil_div(end, block_tokens_));
  }
  Node& node(RunId run) {
    if (run >= nodes_.size()) nodes_.grow_to(run + std::size_t{1});
    Node& found = nodes_[run];
    // A number used again; a root has left without a word.
    if (found.tail != kNoRecord && history_[found.tail].root) history_.erase(found.tail);
    return found;
  }
  RecordId parent(RecordId id) { return history_.get(history_[id].parent); }

  void continue_path(RunId run, RecordId at, std::span<const std::uint64_t> keys,
                     std::int64_t block);
  void supersede(RecordId at);
  RecordId cut(RecordId id, std::uint32_t blocks);
  RecordId record_ending_at(RunId run, std::uint64_t end);
  void collect_path(RecordId deepest);
  void list(RecordId id);
  void set_tail(RunId run, RecordId tail);
  void forget(RecordId id);

  void advance(std::uint64_t now_ms);
  double price(const Record& record) const {
    return hazards_.price(static_cast<int>(record.cls), record.bucket);
  }
  // Whether it would have been evicted by now, had LRU no say in it.
  void note_price(Record& record) { record.cheap = record.cheap || price(record) < going_price_; }
  void close(RecordId id);
  void open(RecordId id, std::uint32_t cls, double weight);
  void file_path(const Completion& completion, std::uint32_t kind);
  std::uint32_t hint_slot(const Completion& completion);
  void meter_path();
  std::optional<Unit> choose(const MayGo& may_go);
  void set_stored(RecordId id, std::uint32_t blocks);
  void set_shadow(RecordId id, std::uint32_t blocks);

  // ---- Snapshots ----
  bool has_snapshots() const { return costs_.snapshot_bytes > 0; }
  void keep_snapshot(SnapshotId snapshot, bool kept) {
    if (const MarkId mark = snapshots_.of(snapshot); mark != kNoMark)
      snapshots_.set_kept(mark, kept);
  }
  RecordId record_at(RunId run, std::uint64_t position);
  std::uint64_t stored_mark_below(RecordId id, std::uint64_t position);
  double worth(RecordId id, std::uint64_t position);
  void attach_mark(MarkId mark, RecordId record);
  void share_marks(RecordId front, RecordId rest, std::uint64_t position);
  void file_marks(const Completion& completion, std::uint32_t kind);
  void refresh_useless(RunId run);

  const Costs costs_;
  const std::uint64_t block_tokens_;
  History history_;
  HazardTable hazards_;
  Drawers drawers_;
  base::ChunkedVector<Node> nodes_;
  std::vector<RecordList> timers_ = {kAgeBuckets, RecordList(&Record::timer)};
  std::vector<RecordId> path_;  // scratch: records from the first to the deepest
  std::map<std::uint64_t, std::uint32_t> hint_slots_;
  std::uint64_t now_ms_ = 0;
  std::uint64_t requests_ = 0;
  std::uint64_t reuses_ = 0;  // blocks
  std::uint32_t emptied_cell_ = UINT32_MAX;
  std::optional<RunId> victim_;  // named and not yet evicted
  RecordId going_ = kNoRecord;   // whose last block it is, where it was listed

  SnapshotPrices snapshots_;
  std::set<std::pair<std::uint64_t, RunId>> useless_;  // leaves that end behind every snapshot
  std::uint64_t turns_ = 0;

  // What LRU would have stored is the front of each record on `recency_`.
  RecordList recency_{&Record::recency};
  std::uint64_t shadow_blocks_ = 0;
  std::uint64_t stored_blocks_ = 0;
  std::uint64_t capacity_blocks_ = UINT64_MAX;  // left by the last eviction, or stored since
  Meter meter_;

  Meter metered_;  // as of the last request
  LruDebt debt_;
  double going_price_ = 0;  // of the last victim
};

}  // namespace kvcache::evict
