// What may be evicted now, filed by class and age: one list for each cell, and the cells in the
// order of their prices.
// Thread safety: thread-compatible.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "evict/hazard_table.h"
#include "evict/history.h"

namespace kvcache::evict {

class Drawers {
 public:
  explicit Drawers(const HazardTable& hazards) { sort(hazards); }

  static std::uint32_t cell(const Record& record) {
    return record.cls * std::uint32_t{kAgeBuckets} + record.bucket;
  }

  // As the youngest of its cell, or as the oldest. A listed record keeps its class and bucket.
  void insert(History& history, RecordId id, bool oldest) {
    RecordList& list = lists_[cell(history[id])];
    oldest ? list.push_front(history, id) : list.push_back(history, id);
    entered(history[id]);
  }
  void insert_before(History& history, RecordId id, RecordId next) {
    lists_[cell(history[id])].insert_before(history, id, next);
    entered(history[id]);
  }
  void remove(History& history, RecordId id) {
    Record& record = history[id];
    const std::uint32_t at = cell(record);
    lists_[at].remove(history, id);
    record.listed = false;
    if (lists_[at].empty()) filled_[rank_[at] / 64] &= ~bit(rank_[at]);
  }
  void clear() {
    for (RecordList& list : lists_) list.clear();
    filled_.assign(filled_.size(), 0);
  }

  // Takes over the prices, and classes that are new.
  void sort(const HazardTable& hazards);

  // The oldest of the cheapest cell that `accept` takes; of the cells of one price, or of all
  // `by_age`, the oldest. kNoRecord: it takes none.
  template <typename Accept>
  RecordId first(History& history, bool by_age, Accept&& accept) {
    for (std::uint32_t rank = next_filled(0); rank < order_.size();) {
      const auto stop = by_age ? static_cast<std::uint32_t>(order_.size()) : group_end_[rank];
      heads_.clear();
      for (; rank < stop; rank = next_filled(rank + 1)) {
        heads_.push_back(lists_[order_[rank]].front());
      }
      while (!heads_.empty()) {
        auto oldest = heads_.begin();
        for (auto head = oldest + 1; head != heads_.end(); ++head) {
          if (history[*head].t0 < history[*oldest].t0) oldest = head;
        }
        if (accept(*oldest)) return *oldest;
        *oldest = history[*oldest].drawer.after;
        if (*oldest == kNoRecord) heads_.erase(oldest);
      }
    }
    return kNoRecord;
  }

 private:
  static std::uint64_t bit(std::uint32_t rank) { return std::uint64_t{1} << rank % 64; }
  void entered(Record& record) {
    record.listed = true;
    const std::uint32_t rank = rank_[cell(record)];
    filled_[rank / 64] |= bit(rank);
  }
  std::uint32_t next_filled(std::uint32_t rank) const {
    for (std::size_t word = rank / 64; word < filled_.size(); ++word) {
      std::uint64_t bits = filled_[word];
      if (word == rank / 64) bits &= ~std::uint64_t{0} << rank % 64;
      if (bits != 0) return static_cast<std::uint32_t>(word * 64) + std::countr_zero(bits);
    }
    return static_cast<std::uint32_t>(order_.size());
  }

  std::vector<RecordList> lists_;         // by cell
  std::vector<std::uint32_t> order_;      // cells by price
  std::vector<std::uint32_t> rank_;       // by cell: its place in order_
  std::vector<std::uint32_t> group_end_;  // by rank: where cells of the same price end
  std::vector<std::uint64_t> filled_;     // by rank, bits: cells that are not empty
  std::vector<double> prices_;            // scratch of sort()
  std::vector<RecordId> heads_;           // scratch of first()
};

}  // namespace kvcache::evict
