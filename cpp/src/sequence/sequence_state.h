// The decoder state of one sequence: its tokens, its block tables, its slot and the snapshots it
// has taken. Splits every operation in two: what changes shared metadata (under the cache's lock)
// and what moves bytes (outside of it, on pages the sequence holds). Thread safety:
// thread-compatible; methods say which of the two locks they need. "locked" means the sequence's
// lock and the cache's lock; "own" means the sequence's lock alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arena/pool_map.h"
#include "kvcache/codec.h"
#include "kvcache/prefix_space.h"
#include "kvcache/state_plan.h"
#include "sequence/block_table.h"
#include "sequence/decode_ring.h"
#include "sequence/engine_rows.h"
#include "sequence/layer_map.h"

namespace kvcache::sequence {

using arena::SnapshotRef;

// Positions [start, stop) in tensors of an engine.
struct EngineTransfer {
  std::uint64_t start = 0;
  std::uint64_t stop = 0;
  std::span<const EngineTensor> tensors;
  const EnginePlaces& places;
};

// One component of one layer, and where its rows are in the engine's tensor.
struct EngineMove {
  std::int32_t layer = -1;
  PagedRef ref;
  EngineRows rows;
};

// A context shift: positions [keep, keep + drop) go.
struct ShiftSpan {
  std::uint64_t keep = 0;
  std::uint64_t drop = 0;
};

struct RowMove {
  ItemId from = kNoItem;
  ItemId to = kNoItem;
  std::uint32_t from_row = 0;
  std::uint32_t to_row = 0;
  std::uint32_t rows = 0;
};

// What a shift makes of one group.
struct GroupShift {
  std::vector<ItemId> pages;
  std::vector<bool> owned;
  std::vector<ItemId> fresh;    // ascending by block; taken for the shift
  std::vector<RowMove> copies;  // in the order to do them
  std::uint64_t private_from = UINT64_MAX;
};

class SequenceState {
 public:
  SequenceState(const StatePlan& plan, const LayerMap& layers, arena::PoolMap pools,
                std::string space, std::vector<MediaSpan> media, std::vector<std::int32_t> tokens);

  // ---- What it is (own) ----
  SpaceRef space() const { return {space_, media_, epoch_}; }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  std::uint64_t length() const { return length_; }  // positions complete in every layer
  std::uint64_t written(std::int32_t layer) const;  // positions written in one layer
  ItemId slot() const { return slot_; }
  const std::vector<BlockTable>& tables() const { return tables_; }
  std::vector<std::vector<ItemId>> block_tables(std::uint64_t end) const;
  const std::vector<SnapshotRef>& snapshots() const { return snapshots_; }
  DecodeRing& ring() { return ring_; }

  // ---- Life (locked) ----
  void join_epoch(std::uint64_t epoch) { epoch_ = epoch; }
  // Shares pages of [0, length). Where memory runs out, none is.
  void adopt(std::vector<std::vector<ItemId>> pages, std::uint64_t length);
  Status take_slot(arena::ItemSource& source);
  // Gives everything back. The object is spent.
  void release();
  // Shares every page; the child's slot is to be copied from this one's.
  Result<SequenceState> fork(arena::ItemSource& source);

  // ---- Writing ----
  // Own. The media lie in the tokens.
  void extend(std::span<const std::int32_t> tokens, std::span<const MediaSpan> media = {});
  void reserve_tokens(std::size_t count);  // own: extend() by `count` cannot fail
  // Own. Shapes alone.
  template <typename View>  // codec::RowsView or codec::MutableRowsView
  Status check_rows(std::int32_t layer, std::span<const View> components) const;
  // Own. Shapes and positions are checked before anything changes.
  Status check_write(std::int32_t layer, std::uint64_t start,
                     std::span<const codec::RowsView> components) const;
  // Own. Positions alone, of rows whose shapes are known to be right.
  Status check_start(std::int32_t layer, std::uint64_t start, std::uint64_t positions) const;
  // What it takes to make the blocks of [start, stop) writable, see BlockTable and pages_ahead.h.
  // Missing: own; the others: locked.
  std::size_t missing_blocks(std::size_t group, std::uint64_t start, std::uint64_t stop) const;
  void reserve_blocks(std::size_t group, std::uint64_t stop);
  void take_blocks(std::size_t group, std::uint64_t start, std::uint64_t stop,
                   std::span<const ItemId> fresh, std::vector<PageCopy>& copies);
  // Own. Copies the rows of shared pages, then encodes. kNonFinite leaves the rows unwritten.
  void copy_pages(std::span<const PageCopy> copies) const;
  Status encode(std::int32_t layer, std::uint64_t start,
                std::span<const codec::RowsView> components);
  // Locked. References that take_blocks kept for the copies.
  void drop_sources(std::span<const PageCopy> copies);
  // Own. Rows of one layer at and past `start` must be written again.
  void forget_rows(std::int32_t layer, std::uint64_t start);
  Status advance(std::uint64_t positions, bool check_written);  // own
  // Own. The tokens of the next `positions` are known; written, so are their rows in each layer.
  Status check_known(std::uint64_t positions) const;
  Status check_advance(std::uint64_t positions, bool check_written) const;
  // Own. Why `target` positions are not complete: a layer's rows or a stream's records are missing.
  Status check_complete(std::string_view call, std::uint64_t target) const;
  // Own. Why something is written past length().
  Status check_nothing_ahead(std::string_view call) const;
  void trim_windows() { trim_windows(length_); }  // locked
  void trim_windows(std::uint64_t length);        // locked: as the query at `length` needs them
  void drop_unfinished();  // locked: forgets rows past length() and the pages only they need
  // Own. Moves the rows at start + path[i] to start + i, in every group of positions. REQUIRES:
  // `path` begins with 0 and ascends; the pages of all these positions are the sequence's own.
  void compact_rows(std::uint64_t start, std::span<const std::int32_t> path) const;

  // ---- Reading (own) ----
  Status check_read(std::int32_t layer, std::uint64_t start, std::uint64_t stop) const;
  Status decode(std::int32_t layer, std::uint64_t start,
                std::span<const codec::MutableRowsView> components) const;
  std::byte* slot_bytes() const;

  // ---- Engine tensors ----
  // Own. Finds the rows in the tensors and checks all that does not depend on positions that are
  // there; `written` when the tensors are what is written.
  Result<std::vector<EngineMove>> find_moves(std::span<const std::int32_t> layers,
                                             const EngineTransfer& transfer, bool written) const;
  // Own. kNonFinite leaves the rows of every layer of the call unwritten.
  Status import_rows(std::span<const EngineMove> moves, const EngineTransfer& transfer);
  Status export_rows(std::span<const EngineMove> moves, const EngineTransfer& transfer) const;

  // ---- Context shift ----
  Status check_shift(std::uint64_t keep, std::uint64_t drop) const;  // own
  // Locked. Takes the pages that rows are to be copied into; after a failure none is taken.
  Result<std::vector<GroupShift>> prepare_shift(const ShiftSpan& span,
                                                arena::ItemSource& source) const;
  void move_rows(std::span<const GroupShift> shifts) const;                  // own
  void finish_shift(const ShiftSpan& span, std::vector<GroupShift> shifts);  // locked
  // Own. Positions whose state depends on their tokens alone: not on what a shift has dropped.
  std::uint64_t publishable() const;

  // ---- Snapshots and rewinding ----
  // Own. hold_snapshot() cannot fail after it.
  void reserve_snapshot();
  // Locked. Takes over a snapshot at length() that the caller has filled; it replaces one of the
  // same format there.
  void hold_snapshot(const SnapshotRef& taken);
  // Own. Whether the model lets positions go, so that not every one can be resumed.
  bool has_windows() const;
  void forget_snapshots();  // locked
  // Own. Whether no media item is cut at `position`.
  Status check_outside_media(std::string_view call, std::uint64_t position) const;
  // Own. Whether the pages allow a cut at `position`; state is the caller's business.
  Status check_truncate(std::string_view call, std::uint64_t position) const;
  void truncate(std::uint64_t position);  // locked
  void mark_seen(std::uint64_t stop);     // own: rows below `stop` are visible to others

  // ---- Records of streams, by their index; what the calls above are to rows -----------------
  std::uint64_t records(const Stream& stream) const { return records_[stream.index]; }  // own
  template <typename View>  // codec::RowsView or codec::MutableRowsView
  Status check_record_shape(const Stream& stream, const View& rows) const;  // own
  Status check_write(const Stream& stream, std::uint64_t first,
                     const codec::RowsView& rows) const;                                   // own
  Status encode(const Stream& stream, std::uint64_t first, const codec::RowsView& rows);   // own
  Status check_read(const Stream& stream, std::uint64_t first, std::uint64_t stop) const;  // own
  Status decode(const Stream& stream, std::uint64_t first,
                const codec::MutableRowsView& rows) const;  // own

 private:
  void set_copy_rows(std::size_t group, std::span<PageCopy> copies) const;
  void clip_frontiers();  // forgets that anything past length() is written
  // Rows in a page of the group: positions or records.
  std::uint32_t page_rows(std::size_t group) const {
    return static_cast<std::uint32_t>(plan_->groups()[group].rows(plan_->block_tokens()));
  }
  // Rows from `start` on of one component.
  Status encode_rows(const PagedRef& ref, std::uint64_t start, const codec::RowsView& rows);
  Status decode_rows(const PagedRef& ref, std::uint64_t start,
                     const codec::MutableRowsView& rows) const;
  std::vector<std::byte*> page_addresses(std::size_t group, std::uint64_t start,
                                         std::uint64_t stop) const;
  Status plan_block(std::size_t group, std::uint64_t block, const ShiftSpan& span,
                    arena::ItemSource& source, GroupShift& shift) const;
  Status missing_rows(std::size_t group, std::uint64_t position, const ShiftSpan& span) const;
  template <typename Move>
  void for_each_run(const EngineMove& move, const EngineTransfer& transfer, const Move& body) const;
  void drop_after(std::uint64_t position);  // locked: snapshots and media of what follows

  const StatePlan* plan_;
  const LayerMap* layers_;
  arena::PoolMap pools_;
  std::string space_;
  std::uint64_t epoch_ = 0;  // of the weights
  std::vector<MediaSpan> media_;
  std::vector<std::int32_t> tokens_;
  std::uint64_t length_ = 0;
  std::uint64_t shared_until_ = 0;           // rows below are visible to others and never rewritten
  std::uint64_t private_from_ = UINT64_MAX;  // rows from here on have seen dropped positions
  // A shift moves only rows that its end needs: in [shifted_from_, shifted_to_) others are not
  // there.
  std::uint64_t shifted_from_ = UINT64_MAX;
  std::uint64_t shifted_to_ = 0;
  std::vector<std::uint64_t> written_;  // by LayerMap::paged_index
  std::vector<std::uint64_t> records_;  // written ones, by Stream::index
  std::vector<BlockTable> tables_;      // by group
  ItemId slot_ = kNoItem;
  std::vector<SnapshotRef> snapshots_;  // not published yet, by ascending position
  DecodeRing ring_;                     // a fork begins with an empty one
};

}  // namespace kvcache::sequence
