// Kernels for state in the memory of an NVIDIA device, and moves between it and the host: rows of
// attention state in and out of pages through block tables, INT8 included, copies of pages and
// snapshots, and folds. They give the bytes of the CPU (kvcache/codec.h, kvcache/fold.h); pages are
// those of FORMAT.md, so that a page moves between host and device as it is.
//
// Built with -DKVCACHE_CUDA=ON. Otherwise, and where no device answers, available() is false and
// every call that would need one is kUnsupported and says why; callers need no #ifdef, and no
// header of CUDA is needed here.
//
// Calls put work on the caller's stream and return. They check what the host can see before
// anything is launched: shapes, strides, alignment. What only the device can see, ids in its own
// memory and elements that are not finite, a kernel reports in a fault word: it skips that row or
// item, does all others, and never reads or writes outside of what it was given.
// Thread safety: functions may be called from any thread, as far as their memory and stream allow;
// classes are thread-compatible. Handles do not survive fork().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kvcache/codec.h"
#include "kvcache/fold.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache::cuda {

// A cudaStream_t; null is the default stream. Borrowed: it must live until its work is done.
using Stream = void*;

// kUnsupported: this build has no kernels, or there is no device or driver for them.
Status availability();
inline bool available() { return availability().is_ok(); }

// ---- Faults -----------------------------------------------------------------------------------

// Eight bytes of device memory, aligned to eight, where kernels keep the first row or item that
// they had to skip. One word may serve many launches; it then holds the first of all.
using FaultWord = std::uint64_t;
inline constexpr FaultWord kNoFault = ~FaultWord{0};

// Sets the word to kNoFault, in the order of the stream. Kernels only ever lower it.
Status clear_faults(FaultWord* word, Stream stream);
// Waits for the stream and says what the word holds, as fault_status() does.
Status check_faults(const FaultWord* word, Stream stream);
// What a word means, on the host. kNonFinite: a row as codec::encode_int8() refuses it.
// kInvalidArgument: a position without a page, or an id that is no item's.
Status fault_status(FaultWord word);

// ---- Rows -------------------------------------------------------------------------------------

// All pointers below are to memory that the device can reach, elements of `RowsView` included.

// Items of equal size by id: item i begins at data + i * stride. Pages of a group, slots,
// snapshots; on the device, or on the host where it is pinned.
struct Items {
  void* data = nullptr;
  std::uint64_t count = 0;   // ids are below, and at most 2^31-1
  std::uint64_t stride = 0;  // bytes from one to the next
};

// One component in every page of a group, as in codec::PagedRows: each page keeps
// [block_tokens, heads, width] at `rows_offset` and, for INT8 (stored kI8), their scales
// [block_tokens, heads] at `scales_offset`; heads and width are those of the engine's rows.
struct Pages {
  Items items;
  DType stored = DType::kF16;  // kF32, kF16, kBf16 or kI8
  std::uint32_t block_tokens = 0;
  std::uint64_t rows_offset = 0;
  std::uint64_t scales_offset = 0;
};

// Where the engine's rows belong: those of several sequences, back to back. Token t is of the
// sequence s with offsets[s] <= t < offsets[s + 1], and its position is first[s] + t - offsets[s].
// Tokens from offsets[sequences] on are padding and left alone. A table may have holes (-1) where
// no token of the call is.
struct BlockTables {
  std::size_t sequences = 1;
  const std::int32_t* blocks = nullptr;  // [sequences, table_blocks]
  std::uint64_t table_blocks = 0;
  const std::int64_t* first = nullptr;    // [sequences]
  const std::int64_t* offsets = nullptr;  // [sequences + 1]; the first is 0, and they ascend
  // The host can read the three arrays as well (pinned or managed memory), and they are complete:
  // they are checked before anything is launched, as check_tables() does.
  bool host_visible = false;
};

// For arrays in host memory, before they are sent to the device: offsets that do not ascend from
// 0, or end elsewhere than at or before `tokens`; positions below 0 or behind the table; ids
// without a page. kInvalidArgument, naming the sequence.
Status check_tables(const BlockTables& tables, const Pages& pages, std::size_t tokens);

// Rows [tokens, heads, width] into contiguous codes and scales, as codec::encode_int8(). A row that
// is not finite after F16 rounding is a fault; its codes and scale stay as they were.
// kInvalidArgument, here and below, and nothing was launched: null pointers, strides or sizes whose
// bytes do not fit the address space, memory that its element type does not find aligned, more than
// 2^31-1 rows of threads. kUnsupported: see availability(). kIoError: the runtime refused the
// launch, or reports what an earlier one did.
Status encode_int8(const codec::RowsView& in, std::int8_t* codes, float* scales, FaultWord* faults,
                   Stream stream);
// Rounds to out.dtype as codec::decode_int8() does.
Status decode_int8(const std::int8_t* codes, const float* scales, const codec::MutableRowsView& out,
                   Stream stream);

// Encodes rows into their pages, or decodes them out of them, as codec::scatter() and gather() do;
// plain rows are converted, or kept bit for bit where the types agree. Tokens of one call must not
// share a position of a page. Also kInvalidArgument: pages too short for their rows.
Status scatter(const codec::RowsView& in, const Pages& to, const BlockTables& at, FaultWord* faults,
               Stream stream);
Status gather(const Pages& from, const BlockTables& at, const codec::MutableRowsView& out,
              FaultWord* faults, Stream stream);

// ---- Copies -----------------------------------------------------------------------------------

struct ItemPair {
  std::int32_t from = 0;
  std::int32_t to = 0;
};

// Copies `bytes` of items by one kernel: pages to be written by another sequence (copy-on-write;
// `from` and `to` are then the same items), slots to snapshots and back. `pairs` is in device
// memory. Pairs run side by side: no item may be written twice, or written and read.
Status copy_items(const Items& from, const Items& to, std::uint64_t bytes, const ItemPair* pairs,
                  std::size_t count, FaultWord* faults, Stream stream);

// Moves `bytes` of items by the copy engine, between host and device in either direction or within
// one of them, in the order of the pairs, which are read before it returns. Neighbours go together.
// From or to host memory that is not pinned it is right as well, but may wait for the copy.
// kInvalidArgument: also an id that is no item's; nothing was moved.
Status move_items(const Items& from, const Items& to, std::uint64_t bytes,
                  std::span<const ItemPair> pairs, Stream stream);

// ---- Recurrent state --------------------------------------------------------------------------

// The states of several sequences: that of sequence s is the FoldState whose data lies
// ids[s] * stride bytes behind the one that is given, that of item 0. The inputs of s begin at
// gate + s * gate_step and so on, in floats; of them rows[s] apply, at most FoldRows.rows.
struct FoldBatch {
  std::size_t sequences = 1;           // at most 65,535
  const std::int32_t* ids = nullptr;   // [sequences]; null: sequence s has item s
  std::uint64_t items = 1;             // ids are below
  std::uint64_t stride = 0;            // bytes from one item to the next
  const std::int32_t* rows = nullptr;  // [sequences]; null: all
  std::uint64_t gate_step = 0;
  std::uint64_t left_step = 0;
  std::uint64_t right_step = 0;
};

// As codec::fold(): the same products and sums, each rounded, in the same order. Bits equal the
// CPU's but for the sign and payload of a NaN. No two ids may be equal. An id that is no item's is
// a fault; `faults` may be null without ids.
Status fold(const codec::FoldState& state, const codec::FoldRows& rows,
            codec::FoldRounding rounding, const FoldBatch& batch, FaultWord* faults, Stream stream);

// ---- Host memory and events -------------------------------------------------------------------

// Host memory that is registered with the device (page-locked) while this lives: moves from and to
// it do not wait, and kernels reach it by its own address. It must stay mapped where it is. Blocks
// of a PagePool do when all were touched at creation (MemoryOptions::prefault_threads), and
// PagePool::memory() says where they are; a Cache moves memory between its pools, so of a cache
// only what is pinned (PageView) may be registered.
class PinnedMemory {
 public:
  // `owner` keeps the memory alive and is released after it is unregistered, with the last copy of
  // the answer. kInvalidArgument: no bytes, or registered already. kOutOfCapacity: the system locks
  // no more.
  static Result<PinnedMemory> create(void* data, std::uint64_t bytes,
                                     std::shared_ptr<void> owner = {});

 private:
  explicit PinnedMemory(std::shared_ptr<void> memory) : memory_(std::move(memory)) {}
  std::shared_ptr<void> memory_;
};

// A point in a stream's work. Copies are the same event.
class Event {
 public:
  static Result<Event> create();

  Status record(Stream stream);
  // The stream does nothing further before the event. Does not wait itself.
  Status block(Stream stream) const;
  Result<bool> is_done() const;
  // Waits for the event. Also what the work before it failed with.
  Status wait() const;

 private:
  explicit Event(std::shared_ptr<void> event) : event_(std::move(event)) {}
  std::shared_ptr<void> event_;
};

}  // namespace kvcache::cuda
