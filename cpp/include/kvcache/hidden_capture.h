// Hidden rows that a drafter reads later, in two forms.
//
// HiddenCapture: the rows of a prompt, written chunk by chunk during its prefill, consumed by the
// drafter's prefill:
//
//   capture->begin(sequence);                       // from the position where the prefill starts
//   capture->write(position, rows);                 // each chunk, as far as there is room
//   auto rows = capture->rows();                    // once the positions are complete
//   capture->consume();                             // the drafter has read them
//
// HiddenBands: for drafters that work in blocks, a band of up to K rows of each sequence of a
// verify, of which commit() decides how many count:
//
//   bands->store(sequences, hidden, offsets);       // while the verifies are open
//   ... commit ...
//   auto rows = bands->accepted(i);                 // the first n rows of band i
//
// Rows end with their sequence, and as each call says; using them later is an error that says which
// lifetime has ended. A view stays in memory, which counts against the cache's budget as long as
// that, but shows what is written next.
// Thread safety: thread-safe. In a child of fork() every call is kInvalidArgument, every count 0.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kvcache/hidden_rows.h"
#include "kvcache/sequence.h"
#include "kvcache/status.h"

namespace kvcache {

class HiddenCapture {
 public:
  // Errors as of AcceptStash::create().
  static Result<std::unique_ptr<HiddenCapture>> create(const HiddenRowsOptions& options);
  ~HiddenCapture();

  // The rows are those of `sequence` now, from position length() on. kInvalidArgument: it is
  // closed, or another open sequence's rows were not released.
  Status begin(const Sequence& sequence);
  // Keeps the rows of positions from `position` on, which follow those kept before, until the
  // capacity is reached. Returns how many rows were kept. kInvalidArgument: a gap or an overlap,
  // another element or width, the sequence is closed, or nothing was begun.
  Result<std::uint64_t> write(std::uint64_t position, const HiddenView& rows);
  // The rows of positions position() on. kInvalidArgument: nothing was begun, the sequence is
  // closed or went back, its verify is open, or it is not complete up to the last row: advance()
  // first.
  Result<HiddenView> rows() const;
  // Ends the rows; those of the positions that follow may be written. Errors as of rows().
  Status consume();
  // Ends the rows and gives the memory free for any sequence. Nothing needs to be begun.
  Status release();

  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  std::uint64_t captured() const;  // rows that are kept
  std::uint64_t position() const;  // of the first
  std::uint64_t bytes() const;     // of all rows: what the state kind hidden_capture says
  const HiddenRowsOptions& options() const;

 private:
  struct State;
  explicit HiddenCapture(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

class HiddenBands {
 public:
  // `bands` of options.rows rows each, one after the other: row r of band i is row i * rows + r.
  // Errors as of AcceptStash::create().
  static Result<std::unique_ptr<HiddenBands>> create(std::uint64_t bands,
                                                     const HiddenRowsOptions& options);
  ~HiddenBands();

  // Copies hidden rows offsets[i]..offsets[i + 1] to band i, for all sequences or for none; what
  // was stored before ends. kInvalidArgument, naming the sequence: too many of them or one of them
  // twice, offsets that are not within the rows, a band that has not one row for each of its
  // sequence's verify, which must be open, or another element or width. kUnsupported: its drafts
  // form a tree.
  Status store(std::span<const Sequence* const> sequences, const HiddenView& hidden,
               std::span<const std::uint64_t> offsets);
  // The rows of band i that the verify kept, the first of them. kInvalidArgument: it is open still,
  // was rolled back, or a later one has begun; the sequence has gone on, or is closed; band i was
  // not stored.
  Result<HiddenView> accepted(std::uint64_t band) const;

  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  std::uint64_t stored() const;  // bands of the latest store()
  std::uint64_t bytes() const;   // of all rows
  std::uint64_t bands() const;
  const HiddenRowsOptions& options() const;

 private:
  struct State;
  explicit HiddenBands(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace kvcache
