// Many sequences advanced by one call: what an engine does for each decoded token.
//
//   auto batch = Batch::create(sequences);            // rows of the batch, in this order
//   batch->extend(tokens, {});                        // one more token each
//   batch->prepare({});                               // pages for its rows
//   auto table = batch->block_table(group);           // [sequences, columns]
//   ... rows go in by write(), or in place by kernels
//   batch->advance({});                               // or advance_in_place()
//
// All or nothing: after a call that failed every sequence has the length, the tokens, the readable
// rows and the pages within its windows that it had before. What any call that takes pages may have
// done stays done: pages behind windows were let go, stored prefixes evicted.
// `counts` has one number for each sequence, 0 among them; empty means 1 each.
// Thread safety: thread-safe. A batch's calls run one at a time. Sequences may be in several
// batches and be used on their own; locks are always taken in the same order, so that no two calls
// wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/codec.h"
#include "kvcache/sequence.h"
#include "kvcache/status.h"

namespace kvcache {

struct BatchCore;
class BatchVerifySession;
struct BatchVerifyOptions;

// [rows, columns], row-major: the page of each block of each sequence in one group, -1 where a
// window has passed and past the last block. Refreshed by the next block_table() of the same batch
// and group and by nothing else; the memory stays valid as long as `owner` lives.
struct BatchTable {
  const std::int32_t* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::shared_ptr<const void> owner;
};

class Batch {
 public:
  // The sequences stay the caller's, to be used and closed as before; once one is closed, calls of
  // the batch are kInvalidArgument. So are here: no sequence, null, a closed one, the same one
  // twice, or sequences of different caches.
  static Result<Batch> create(std::span<Sequence* const> sequences);
  Batch(Batch&&) noexcept = default;
  Batch& operator=(Batch&&) noexcept = default;

  std::size_t size() const;
  // Positions complete, for each sequence.
  Result<std::vector<std::uint64_t>> lengths() const;

  // Declares the next counts[i] tokens of each sequence, given one after the other.
  Status extend(std::span<const std::int32_t> tokens, std::span<const std::uint64_t> counts);
  // As Sequence::prepare() for each.
  Status prepare(std::span<const std::uint64_t> counts);
  // One layer's rows of counts[i] positions from starts[i], given one after the other: each view
  // has [sum of counts] rows. kNonFinite: rows at and past starts[i] that were there before must be
  // written again; for other failures, and otherwise, see Sequence::write().
  Status write(std::int32_t layer, std::span<const std::uint64_t> starts,
               std::span<const std::uint64_t> counts, std::span<const codec::RowsView> components);
  // Decodes the same rows into the views.
  Status read(std::int32_t layer, std::span<const std::uint64_t> starts,
              std::span<const std::uint64_t> counts,
              std::span<const codec::MutableRowsView> components) const;
  // As Sequence::advance() and advance_in_place() for each.
  Status advance(std::span<const std::uint64_t> counts);
  Status advance_in_place(std::span<const std::uint64_t> counts);

  // Starts a verify of the one known token of each sequence that has not run and of counts[i]
  // drafts after it, given one after the other; see kvcache/batch_verify.h. While it is open no
  // other call changes the sequences. Errors of Sequence::begin_verify(), naming the sequence.
  Result<BatchVerifySession> begin_verify(std::span<const std::int32_t> drafts,
                                          std::span<const std::uint64_t> counts,
                                          const BatchVerifyOptions& options);

  // The batch's own table of one group. Only what changed since the last call is written, so that
  // its cost does not grow with the sequences. Columns are doubled when they no longer suffice.
  // kInvalidArgument: no such group.
  Result<BatchTable> block_table(std::size_t group);
  // The same into memory of the caller, rows `columns` apart. kInvalidArgument: a sequence has more
  // blocks than columns, or `out` is not size() * columns.
  Status block_table(std::size_t group, std::span<std::int32_t> out, std::size_t columns) const;

  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;

 private:
  explicit Batch(std::shared_ptr<BatchCore> core) : core_(std::move(core)) {}
  std::shared_ptr<BatchCore> core_;
};

}  // namespace kvcache
