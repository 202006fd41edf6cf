// Speculative decoding of one sequence: K rows run at once, some of them are accepted.
//
//   auto session = sequence.begin_verify(drafts);     // K = drafts + 1 rows
//   for each row: session->state(row, layer, name)    // the state after that row
//   session->write(layer, {keys, values});            // rows of all K positions
//   session->commit(accepted);                        // 1..K; or rollback()
//
// Row 0 is the last known token, which has not run yet and is accepted by construction; row i is
// draft i - 1. It follows row i - 1, or its parent in the TokenTree that the drafts form: then
// commit() takes the accepted path, whose rows become those of consecutive positions. Nothing of
// the sequence changes before commit(): its state stays where it was, in its own place, and rows
// beyond length() belong to nobody else. Whatever ends a session without commit(), the destructor
// included, leaves the sequence at its last committed position. Windows are trimmed after it.
//
// By VerifyStrategy::kSteps an open session holds rows() copies of the fixed-size state. By kReplay
// and kCarry it holds the inputs of its rows instead, which stash() hands over for each tensor that
// folds (kvcache/fold.h): commit() then folds the accepted ones into the state, or by kCarry lets
// them wait in the stash, where the kernels of later verifies add them to what they read (live(),
// pending()) without writing the state. They are folded at the latest when somebody else reads it,
// or when the rows of a verify no longer fit beside them. Layers whose inputs are not handed over
// use state() as by kSteps, which takes room for copies when first asked; a model with a tensor
// that nothing folds has taken it. Either way the state is, bit for bit, that of decoding one by
// one.
//
// Thread safety: VerifySession is thread-safe; its calls and those of its sequence run one at a
// time, sessions of different sequences side by side. Copies happen outside the cache's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/codec.h"
#include "kvcache/sequence.h"
#include "kvcache/stash.h"
#include "kvcache/token_tree.h"

namespace kvcache {

// Inputs of all rows for one tensor, as kvcache/fold.h has them: [rows, heads, width] of any
// floating type. gate is [rows, 1, heads] or [rows, heads, lines], a gate an element [rows, heads *
// lines, columns]; left [rows, heads, lines] and right [rows, heads, columns] may have fewer heads,
// which divide those of the state; a state of one axis has no left. A convolution takes `window`,
// its rows as [rows, 1, elements], and nothing else.
struct StashInputs {
  std::optional<codec::RowsView> gate;
  std::optional<codec::RowsView> left;
  std::optional<codec::RowsView> right;
  std::optional<codec::RowsView> window = {};
};

// Accepted rows of one tensor that wait to be folded, oldest first, each kind contiguous; to be
// read only. gate and left are null for a convolution, whose rows are `right`.
struct PendingRows {
  std::uint64_t rows = 0;
  const FixedComponent* component = nullptr;
  StashRow row;
  const std::byte* gate = nullptr;
  const std::byte* left = nullptr;
  const std::byte* right = nullptr;
  std::shared_ptr<void> pin;
};

class VerifySession {
 public:
  VerifySession() = default;  // ended
  VerifySession(VerifySession&& other) noexcept;
  VerifySession& operator=(VerifySession&& other) noexcept;
  ~VerifySession();  // rolls back, unless committed

  // What to run: the rows' tokens and positions; a row stands as far after start() as it is deep.
  std::uint64_t rows() const { return tokens_.size(); }
  std::uint64_t start() const { return start_; }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  const std::vector<std::int64_t>& positions() const { return positions_; }
  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  // False after commit() or rollback(), once the sequence is closed, and in a child of fork().
  bool is_open() const;

  // One layer's rows, one view for each component of the layer in declared order. They are stored
  // one after the other: Sequence::read() sees row i at start() + i at once. May be repeated.
  // kNonFinite, kInvalidArgument: the layer is as it was, but for rows past length().
  Status write(std::int32_t layer, std::span<const codec::RowsView> components);
  // The records of one stream that the session's rows complete, from start() / record_tokens on.
  // commit() keeps those that the accepted rows complete. Errors as of write(). kNotFound: the
  // layer has no such stream.
  Status write_records(std::int32_t layer, std::string_view name, const codec::RowsView& rows);
  // A tensor of the state after `row`, to be filled. Taken for the first time it holds a copy of
  // the tensor of the row it follows, or of the live one where that was not taken: rows may be
  // updated in place one after the other. kNotFound: no such tensor.
  // kOutOfCapacity: by another strategy than kSteps, no room for copies of the state.
  // kInvalidArgument: no such row, or the inputs of this tensor were handed over: one or the other.
  Result<StateView> state(std::uint64_t row, std::int32_t layer, std::string_view name);
  // A tensor of the state before row 0, to be read only: without the rows that are pending().
  Result<StateView> live(std::int32_t layer, std::string_view name) const;
  // The rows that a kernel adds to live(); none by another strategy than kCarry. They lie where
  // later verifies store theirs: good until the session ends.
  Result<PendingRows> pending(std::int32_t layer, std::string_view name) const;
  // Hands over the inputs of all rows() for one tensor; of a layer all tensors that fold, or none.
  // Copied; may be repeated. kInvalidArgument: inputs that do not fit, the strategy is kSteps, or
  // state() of this tensor was taken for a row: one or the other.
  // kUnsupported: nothing folds this tensor; fill state(). kNotFound: no such tensor.
  Status stash(std::int32_t layer, std::string_view name, const StashInputs& inputs);
  VerifyStrategy strategy() const { return strategy_; }

  // Keeps the first `accepted` rows: their positions, their tokens, and the state after the last of
  // them. Ends the session and returns the sequence's length.
  // kInvalidArgument, and nothing changed: `accepted` is not within 1..rows(), the drafts are a
  // tree of several paths, a layer or a stream is not written, a tensor of the last accepted row
  // was neither taken nor stashed, or one of two that fold together was not stashed.
  Result<std::uint64_t> commit(std::uint64_t accepted);
  // The same for the rows of a path, which begins with row 0. Errors likewise; kInvalidArgument: a
  // row does not follow the one before it.
  Result<std::uint64_t> commit(std::span<const std::int32_t> path);
  // Ends the session; the sequence is as it was before begin_verify().
  Status rollback();

 private:
  friend class Sequence;

  // Why the session cannot be used. REQUIRES: the sequence's lock is held, core_ is not null.
  Status check_open(std::string_view call) const;
  Result<std::uint64_t> commit_rows(std::uint64_t count, std::span<const std::int32_t> path);

  std::shared_ptr<SequenceCore> core_;
  std::uint64_t serial_ = 0;  // tells this session from later ones of the sequence
  std::uint64_t start_ = 0;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> positions_;
  VerifyStrategy strategy_ = VerifyStrategy::kSteps;
};

}  // namespace kvcache
