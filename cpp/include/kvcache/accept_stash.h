// The hidden rows of accepted positions, from the verdict of a verify to the propose that reads
// them. A propose overwrites the hidden rows of the forward pass, which all sequences share, so
// those that it starts from are copied here first:
//
//   session.commit(accepted);                        // the verdict
//   stash->store(sequences, hidden, rows);           // hidden row rows[i] is that of sequence i
//   auto view = stash->rows(sequences.size());       // [n, width], row i at a fixed address
//
// With catch-up rows a drafter can append exact state for the drafts that were accepted: up to 4
// rows of each sequence before its last one.
//
// Rows are good until the next verify of their sequence begins, it moves, or it is closed; using
// them later is an error that says which. A view stays in memory, which counts against the cache's
// budget as long as that, but shows what is stored next.
// Thread safety: thread-safe. In a child of fork() every call is kInvalidArgument, every count 0.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kvcache/hidden_rows.h"
#include "kvcache/sequence.h"
#include "kvcache/status.h"

namespace kvcache {

struct AcceptStashOptions : HiddenRowsOptions {  // rows: sequences of a batch
  std::uint64_t catch_up = 0;                    // further rows of each, up to 4
};

class AcceptStash {
 public:
  // kInvalidArgument: no rows, no width, no floating element, or more catch-up rows.
  // kOutOfCapacity: no memory, or no room in the cache's budget.
  static Result<std::unique_ptr<AcceptStash>> create(const AcceptStashOptions& options);
  ~AcceptStash();

  // Copies hidden row rows[i] to stash row i, for all sequences or for none; what was stored before
  // ends. `catch_up`: catch_counts[i] hidden rows of sequence i, one sequence after the other.
  // kInvalidArgument, naming the sequence, and nothing changed: too many sequences or catch-up
  // rows, a row that is not there, another element or width, or a sequence that is there twice, is
  // closed or whose verify is open still.
  Status store(std::span<const Sequence* const> sequences, const HiddenView& hidden,
               std::span<const std::uint64_t> rows, std::span<const std::uint64_t> catch_up = {},
               std::span<const std::uint64_t> catch_counts = {});
  // Stash rows 0..count-1 where they lie. kInvalidArgument: one of them was not stored, or has
  // ended.
  Result<HiddenView> rows(std::uint64_t count) const;
  // Stash row `index` alone, and its catch-up rows. Errors likewise.
  Result<HiddenView> row(std::uint64_t index) const;
  Result<HiddenView> catch_up(std::uint64_t index) const;

  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  std::uint64_t stored() const;  // rows of the latest store()
  // Of rows * (1 + catch_up): what the state kind accept_stash says of so many.
  std::uint64_t bytes() const;
  const AcceptStashOptions& options() const;

 private:
  struct State;
  explicit AcceptStash(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace kvcache
