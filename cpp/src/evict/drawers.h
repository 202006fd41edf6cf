// What may be evicted now, filed by class and age: one list for each cell, and the cells in the
// order of their prices.
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
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

  // As the youngest of its cell, or as the oldest. A listed record keeps its class and bucket, and
  // whether LRU would have its last block.
  void insert(History& history, RecordId id, bool oldest) {
    RecordList& list = side(history[id]).lists[cell(history[id])];
    oldest ? list.push_front(history, id) : list.push_back(history, id);
    entered(history[id]);
  }
  void insert_before(History& history, RecordId id, RecordId next) {
    side(history[id]).lists[cell(history[id])].insert_before(history, id, next);
    entered(history[id]);
  }
  void remove(History& history, RecordId id) {
    Record& record = history[id];
    const std::uint32_t at = cell(record);
    Side& from = side(record);
    from.lists[at].remove(history, id);
    record.listed = false;
    if (from.lists[at].empty()) from.filled[rank_[at] / 64] &= ~bit(rank_[at]);
  }

  // Takes over the prices, and classes that are new.
  void sort(const HazardTable& hazards);

  // The oldest of the cheapest cell that `accept` takes; of the cells of one price the oldest. With
  // `all`, also of what LRU would have. kNoRecord: it takes none.
  template <typename Accept>
  RecordId first(History& history, bool all, Accept&& accept) {
    const auto next = [&](std::uint32_t rank) {
      const std::uint32_t spare = next_filled(sides_[0], rank);
      return all ? std::min(spare, next_filled(sides_[1], rank)) : spare;
    };
    for (std::uint32_t rank = next(0); rank < order_.size();) {
      const std::uint32_t stop = group_end_[rank];
      heads_.clear();
      for (; rank < stop; rank = next(rank + 1)) {
        for (std::size_t s = 0; s <= std::size_t{all}; ++s) {
          const RecordList& list = sides_[s].lists[order_[rank]];
          if (!list.empty()) heads_.push_back(list.front());
        }
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
  // Those that LRU would not have, and those that it would.
  struct Side {
    std::vector<RecordList> lists;      // by cell
    std::vector<std::uint64_t> filled;  // by rank, bits: cells that are not empty
  };

  static std::uint64_t bit(std::uint32_t rank) { return std::uint64_t{1} << rank % 64; }
  Side& side(const Record& record) { return sides_[record.shadowed() ? 1 : 0]; }
  void entered(Record& record) {
    record.listed = true;
    const std::uint32_t rank = rank_[cell(record)];
    side(record).filled[rank / 64] |= bit(rank);
  }
  std::uint32_t next_filled(const Side& from, std::uint32_t rank) const {
    for (std::size_t word = rank / 64; word < from.filled.size(); ++word) {
      std::uint64_t bits = from.filled[word];
      if (word == rank / 64) bits &= ~std::uint64_t{0} << rank % 64;
      if (bits != 0) return static_cast<std::uint32_t>(word * 64) + std::countr_zero(bits);
    }
    return static_cast<std::uint32_t>(order_.size());
  }

  std::array<Side, 2> sides_;
  std::vector<std::uint32_t> order_;      // cells by price
  std::vector<std::uint32_t> rank_;       // by cell: its place in order_
  std::vector<std::uint32_t> group_end_;  // by rank: where cells of the same price end
  std::vector<double> prices_;            // scratch of sort()
  std::vector<RecordId> heads_;           // scratch of first()
};

}  // namespace kvcache::evict
