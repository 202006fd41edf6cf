// The memory of a verify table, and how a session fills it.
// Thread safety: claim() and give_back() are thread-safe, the rest is its claimant's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/malloced.h"
#include "kvcache/verify_table.h"
#include "speculate/table_claim.h"

namespace kvcache {

struct VerifyTableCore {
  std::vector<FixedComponent> fixed;
  std::uint64_t batch_rows = 0;
  std::uint64_t tables = 0;
  Malloced<std::uint64_t[]> entries;  // [fixed, tables, batch_rows]

  // kInvalidArgument: it is of another plan, or staged by another session already. Else the
  // caller's until give_back().
  Status claim(const StatePlan& plan);
  // kInvalidArgument: a batch that is too wide, or a sequence of it with too many rows.
  Status check_fits(std::uint64_t sequences, std::uint64_t most_rows) const;
  // Addresses of slots, [tables used, sequences], null past a sequence's rows. REQUIRES: they fit.
  void stage(std::span<const std::uint64_t> slots, std::uint64_t sequences);
  // Zeroes what was staged.
  void give_back();
  bool is_staged() const { return claimed_.is_taken(); }
  Status check_process() const { return claimed_.check_process(); }

 private:
  TableClaim claimed_{"verify table"};
  std::uint64_t staged_tables_ = 0;
  std::uint64_t staged_rows_ = 0;
};

}  // namespace kvcache
