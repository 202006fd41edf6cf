// Where kernels find the state that a batched verify reads and writes: tables of addresses that
// never move, so that a captured graph or a compiled kernel keeps them.
//
// For each tensor of each layer [tables, batch_rows] of 64-bit addresses: table 0 holds the live
// state of each sequence, table t + 1 its state after row t, to be written. Entries past a
// sequence's rows and past the batch are 0, and so is everything while nothing is staged.
// Batch::begin_verify() stages a table, the end of the session zeroes it.
// Thread safety: thread-safe. One session at a time; who reads the entries must not outlive it. In
// a child of fork() no session can use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kvcache/state_plan.h"
#include "kvcache/status.h"

namespace kvcache {

class BatchVerifySession;
struct VerifyTableCore;

// [tables, batch_rows], row-major; the memory stays where it is as long as `owner` lives.
struct PointerTable {
  const std::uint64_t* data = nullptr;
  std::uint64_t tables = 0;
  std::uint64_t batch_rows = 0;
  std::shared_ptr<const void> owner;
};

class VerifyTable {
 public:
  // For sequences of caches of this plan: batches of up to `batch_rows`, of up to tables - 1 rows
  // each. kInvalidArgument: the plan has no fixed-size state, batch_rows is 0, tables less than 2,
  // or all of it more than 2^30 bytes. kOutOfCapacity: the system has not so much memory.
  static Result<VerifyTable> create(const StatePlan& plan, std::uint64_t batch_rows = 128,
                                    std::uint64_t tables = 16);

  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  std::uint64_t batch_rows() const;
  std::uint64_t tables() const;
  // Of all its entries: what the state kind verify_table says.
  std::uint64_t bytes() const;
  bool is_staged() const;
  // kNotFound: the layer keeps no such tensor.
  Result<PointerTable> pointers(std::int32_t layer, std::string_view name) const;

 private:
  friend class BatchVerifySession;

  explicit VerifyTable(std::shared_ptr<VerifyTableCore> core) : core_(std::move(core)) {}
  std::shared_ptr<VerifyTableCore> core_;
};

}  // namespace kvcache
