// The memory of a carry table, and how a session fills it.
// Thread safety: claim() and give_back() are thread-safe, the rest is its claimant's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/malloced.h"
#include "kvcache/carry_table.h"
#include "speculate/table_claim.h"

namespace kvcache {

struct CarryTableCore {
  struct Tensor {
    std::string name;
    std::uint64_t offset = 0;            // in the slot
    std::uint64_t* addresses = nullptr;  // [batch_rows]
  };
  struct Layer {
    std::int32_t layer = -1;
    std::vector<Tensor> tensors;
    std::uint64_t* stashes = nullptr;  // [batch_rows]
    std::uint32_t* engaged = nullptr;  // [batch_rows]
  };

  std::vector<FixedComponent> fixed;
  std::uint64_t stash_bytes = 0;
  std::uint64_t batch_rows = 0;
  std::uint64_t bytes = 0;
  Malloced<std::uint64_t[]> entries;
  std::vector<Layer> layers;  // by StashLayout::layers

  // kInvalidArgument: it is of another plan, too small, or staged by another session already. Else
  // the caller's until give_back().
  Status claim(const StatePlan& plan, std::uint64_t sequences);
  // One sequence of the batch. REQUIRES: claimed, row < batch_rows.
  void stage(std::uint64_t row, std::uint64_t slot, std::uint64_t stash);
  void give_back();  // zeroes what was staged
  bool is_staged() const { return claimed_.is_taken(); }
  Status check_process() const { return claimed_.check_process(); }

 private:
  TableClaim claimed_{"carry table"};
  std::uint64_t staged_rows_ = 0;
};

}  // namespace kvcache
