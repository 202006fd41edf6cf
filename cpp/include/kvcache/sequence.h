// The live decoder state of one sequence: rows of every layer, fixed-size state, snapshots.
// Thread safety: thread-safe; a sequence's calls run one at a time, calls on different sequences
// run side by side. Copies and encoding happen outside the cache's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/codec.h"
#include "kvcache/engine_layout.h"
#include "kvcache/pages.h"
#include "kvcache/placement.h"
#include "kvcache/prefix_space.h"
#include "kvcache/request.h"
#include "kvcache/state_plan.h"
#include "kvcache/status.h"

namespace kvcache {

class Cache;
class CacheCore;
class SequenceMoment;
class TokenTree;
class VerifySession;
struct SequenceCore;

// Keeps a slot alive while somebody looks at a tensor inside it, beyond close().
struct StateView {
  std::byte* data = nullptr;
  const FixedComponent* component = nullptr;
  std::shared_ptr<void> pin;
};

// The rows of one layer, for calls that take several: one view for each component in declared
// order.
struct LayerRows {
  std::int32_t layer = -1;
  std::span<const codec::RowsView> components;
};
struct MutableLayerRows {
  std::int32_t layer = -1;
  std::span<const codec::MutableRowsView> components;
};

// The live state of one sequence, made by Cache::open(). Once it is closed, every call that returns
// a status or a result is kInvalidArgument.
class Sequence {
 public:
  Sequence() = default;  // closed
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();  // closes

  std::uint64_t cached_tokens() const;   // positions restored by open()
  std::uint64_t matched_tokens() const;  // positions whose tokens the index knew
  std::uint64_t length() const;          // positions complete in every layer
  // Positions written in one layer, complete or not. kInvalidArgument: it keeps no pages.
  Result<std::uint64_t> written(std::int32_t layer) const;
  std::vector<std::int32_t> tokens() const;

  // Declares the tokens of further positions, before they run, and the media among them, at
  // positions of the sequence. kInvalidArgument: media that do not lie in them.
  Status extend(std::span<const std::int32_t> tokens, std::span<const MediaSpan> media = {});
  // One layer's rows of [start, start + rows), one view for each component of the layer in declared
  // order. `start` is within length()..positions written. Copied, never kept.
  // kOutOfCapacity, kNonFinite, kInvalidArgument: no position became readable.
  Status write(std::int32_t layer, std::uint64_t start,
               std::span<const codec::RowsView> components);
  // Decodes positions [start, start + components[i].tokens) into the views.
  // kNotFound: they have left the layer's window.
  Status read(std::int32_t layer, std::uint64_t start,
              std::span<const codec::MutableRowsView> components) const;
  // The same for several layers at once, for all or for none: pages are taken for all of them
  // first. kNonFinite: rows of these layers at and past `start` that were there must be written
  // again. kInvalidArgument: also a layer named twice.
  Status write_layers(std::uint64_t start, std::span<const LayerRows> layers);
  Status read_layers(std::uint64_t start, std::span<const MutableLayerRows> layers) const;
  // Makes the pages of the next positions the sequence's own, in every group, so that kernels may
  // store their rows in place and no later write() of them runs out of pages. Entries of the block
  // tables for these positions stay as they are until truncate() or close().
  // kInvalidArgument: more positions than known tokens. kOutOfCapacity: nothing changed.
  Status prepare(std::uint64_t positions);
  // Records of pooled state, each of which stands for the `record_tokens` positions of its
  // declaration: record j for those from j * record_tokens on. One is written once all of its
  // positions are known; `first` is within the complete..written records of the stream `name`.
  // Errors as of write(). kNotFound: the layer has no such stream.
  Status write_records(std::int32_t layer, std::string_view name, std::uint64_t first,
                       const codec::RowsView& rows);
  // Decodes records [first, first + rows.tokens). kInvalidArgument: not all of them are written.
  Status read_records(std::int32_t layer, std::string_view name, std::uint64_t first,
                      const codec::MutableRowsView& rows) const;
  // Records written of one stream, complete or not. kNotFound: the layer has no such stream.
  Result<std::uint64_t> written_records(std::int32_t layer, std::string_view name) const;
  // The pages of one group by block, -1 where a window has passed: a copy, which no later call
  // changes. Pages stay where they are until the sequence is truncated or closed, but for two:
  // those behind a window, and the last one while it is shared, which the next write copies.
  // kInvalidArgument: no such group.
  Result<std::vector<std::int32_t>> block_table(std::size_t group) const;
  // Positions [start, stop) of one layer where they lie: for each component of the layer, in
  // declared order, one view for each page. kNotFound: they have left the layer's window.
  Result<std::vector<std::vector<PageView>>> views(std::int32_t layer, std::uint64_t start,
                                                   std::uint64_t stop) const;
  // The same for tensors of an engine: rows of [start, stop) of one layer, or of several whose
  // tensors have an axis `layers`. One tensor a component, or one for those that its layout joins
  // by `kv`. Everything is checked before anything changes. kInvalidArgument: a tensor that does
  // not fit its layout or the plan, or places outside of it; for an export also elements or places
  // that meet. kNonFinite: the rows of [start, stop) count as unwritten in all `layers`.
  Status import_rows(std::span<const std::int32_t> layers, std::uint64_t start, std::uint64_t stop,
                     std::span<const EngineTensor> tensors, const EnginePlaces& places);
  Status export_rows(std::span<const std::int32_t> layers, std::uint64_t start, std::uint64_t stop,
                     std::span<const EngineTensor> tensors, const EnginePlaces& places) const;
  // A tensor of the live fixed-size state, to be updated in place, at a time when no other thread
  // takes a snapshot or a fork of the sequence. kNotFound: no such tensor.
  // Here and in write(), read() and views(), kUnsupported: the cache is a ledger without bytes.
  Result<StateView> state(std::int32_t layer, std::string_view name) const;
  // The next `positions` are complete. What they leave behind a window goes when the next write
  // begins, so that publish() makes every window of the step usable and truncate() can undo it.
  // kInvalidArgument: rows of a layer, or records of a stream that are complete then, are missing.
  Status advance(std::uint64_t positions);
  // The same for rows that kernels have stored in the pages themselves. kInvalidArgument: the pages
  // are not the sequence's own; prepare() makes them so.
  Status advance_in_place(std::uint64_t positions);
  // Makes length() a position that others can resume, once publish() has made it visible: copies
  // the fixed-size state and keeps what windows need. Returns length(). Without windows and such
  // state every position can be resumed, and this does nothing. `format` says how precisely; what
  // that loses of each tensor replaces `errors`, where given. At a position with more than one
  // snapshot the most precise is used. kOutOfCapacity: no room for the copy. kNonFinite: an element
  // that the format does not keep exactly is not finite in f16. After an error nothing has changed.
  Result<std::uint64_t> snapshot(SnapshotFormat format = SnapshotFormat::kExact,
                                 std::vector<SnapshotError>* errors = nullptr);
  // Says what ends at `position`, before or during prefill, so that the first repeat of what comes
  // before it can resume there. A position that has run already, or was restored, is no error and
  // changes nothing; of two kinds the one of more worth counts. kInvalidArgument: beyond the known
  // tokens, or closed.
  Status mark(std::uint64_t position, MarkKind kind);
  // Positions after length(), ascending, at which a prefill chunk should end with a snapshot():
  // what was marked, where other prompts parted from this one, before the last token, and for a
  // model with fixed-size state each PlacementOptions::interval_tokens, within the limit of a path.
  std::vector<std::uint64_t> prefill_stops() const;
  // Makes complete blocks, the tail and the snapshots usable by others; of a shifted sequence only
  // what is before the shift.
  Status publish();
  // A second sequence in the same state; pages are shared until written.
  // kOutOfCapacity: no slot, or sequences are at their limit.
  Result<Sequence> fork();
  // Forgets positions from `position` on, their tokens included. With fixed-size state a snapshot
  // at `position` must exist. kUnsupported: it does not, or a window has passed.
  // kInvalidArgument: beyond length().
  Status truncate(std::uint64_t position);
  // Copies the fixed-size state at length() into the sequence's decode ring, over the oldest copy
  // once there are StatePlan's ring_depth; rollback() returns to it. Returns length(). For a model
  // without such state there is nothing to copy. A fork() starts with an empty ring; close() and
  // truncate() drop what they leave behind. kUnsupported: ring_depth is 0. kOutOfCapacity: no room
  // for one more copy; the ring is as it was.
  Result<std::uint64_t> record();
  // Restores the fixed-size state from the copy recorded last at exactly `position` and forgets
  // positions from there on, their tokens included. A model without fixed-size state returns to any
  // position. kInvalidArgument: beyond length(). kUnsupported: there is no such copy, ring_depth is
  // 0, or a window has passed. Nothing is changed then.
  Status rollback(std::uint64_t position);
  // Positions in the decode ring, oldest record first.
  std::vector<std::uint64_t> recorded() const;
  // Context shift: drops positions [keep, keep + drop), tokens included, and numbers those after
  // them anew; the engine rotates keys by their new positions as it reads them. Later rows have
  // seen what was dropped, so publish() stores positions below `keep` only, until truncate() has
  // taken them away. kUnsupported: keys are stored after rotation (PlanOptions::rotated_keys), the
  // model has fixed-size state, or a window would see positions it has dropped. kOutOfCapacity: no
  // page for rows that change their place. kInvalidArgument: not within length(), or a layer is
  // written beyond it. After a failure nothing has changed.
  Status shift(std::uint64_t keep, std::uint64_t drop);
  // Starts a verify of the one known token that has not run and of `drafts` after it; see
  // kvcache/verify.h: one path, or those of `tree`, whose root is the waiting token. While it is
  // open every other call that changes the sequence, and state(), is kInvalidArgument; close() ends
  // both. kInvalidArgument: not exactly one token waits, or the tree has not drafts + 1 nodes.
  // kUnsupported: a tree of several paths, and state pooled over several positions.
  // kOutOfCapacity: no room for drafts + 1 rows and as many copies of the fixed-size state.
  // By a `strategy` other than kSteps the rows' inputs go to the carry stash of the sequence;
  // kUnsupported: the plan has none. kInvalidArgument: more rows than its stash_rows.
  Result<VerifySession> begin_verify(std::span<const std::int32_t> drafts,
                                     const TokenTree* tree = nullptr,
                                     VerifyStrategy strategy = VerifyStrategy::kSteps);
  // Gives everything back; what was published stays, and eviction learns how the request ended.
  void close(const CloseOptions& options = {});
  bool is_open() const;
  // kInvalidArgument: it is closed; or what check_process() says.
  Status check_open() const;
  // kInvalidArgument: this is a child of the process that opened the sequence. Calls that return a
  // status fail likewise, others answer as if it were closed, and close() does nothing.
  Status check_process() const;

 private:
  friend class Batch;
  friend class Cache;
  friend class SequenceMoment;

  explicit Sequence(std::shared_ptr<SequenceCore> core);
  std::shared_ptr<SequenceCore> core_;
};

}  // namespace kvcache
