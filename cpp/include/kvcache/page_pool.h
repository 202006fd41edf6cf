// Blocks of equal size by id, counted by references: the allocator of the cache's pages alone, for
// a program that keeps its own block tables.
//
//   auto pool = PagePool::create({.blocks = 4096, .block_bytes = 64 << 10});
//   auto id = (*pool)->allocate();           // one reference
//   (*pool)->retain({&*id, 1});              // a second sequence shares it
//   (*pool)->free({&*id, 1});                // gone with the last reference
//
// Thread safety: thread-safe. In a child of fork() every call is kInvalidArgument, every count 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvcache/memory_options.h"
#include "kvcache/state_plan.h"
#include "kvcache/status.h"

namespace kvcache {

struct PagePoolOptions {
  std::uint64_t blocks = 0;       // most that are live at once, up to 2^31-1
  std::uint64_t block_bytes = 0;  // payload of one
  bool backing = true;            // false: a ledger that hands out ids and stores nothing
  MemoryOptions memory = {};      // of a pool with backing
};

// Where the blocks of a pool lie: block `id` begins at data + id * stride. Valid while `owner`
// lives, also past the pool.
struct BlockMemory {
  std::byte* data = nullptr;
  std::uint64_t blocks = 0;
  std::uint64_t stride = 0;
  std::uint64_t bytes = 0;  // from the first block to the end of the last
  // All of it was touched at creation (MemoryOptions::prefault_threads) and stays where it is, so
  // that it can be registered with a device. Otherwise only what lies in live blocks is memory.
  bool settled = false;
  std::shared_ptr<void> owner;
};

class PagePool {
 public:
  // Takes addresses; memory is taken when blocks are first touched.
  // kInvalidArgument: no blocks, too many, blocks of 0 bytes, or more bytes than addresses.
  // kOutOfCapacity: the system refuses the addresses. Also what MemoryOptions says.
  static Result<std::unique_ptr<PagePool>> create(const PagePoolOptions& options);
  // The blocks of one group that the plan's memory holds when nothing else takes of it.
  // kInvalidArgument: the plan has no such group. kOutOfCapacity: not one block fits.
  static Result<std::unique_ptr<PagePool>> for_group(const StatePlan& plan, std::size_t group,
                                                     bool backing,
                                                     const MemoryOptions& memory = {});
  ~PagePool();

  // One block with one reference, contents unspecified; the free block of lowest id. O(log64 n).
  // kOutOfCapacity: every block is live.
  Result<std::int32_t> allocate();
  // ids.size() of them, ascending. kOutOfCapacity: fewer are free; nothing was taken.
  Status allocate_many(std::span<std::int32_t> ids);

  // One more reference to each, to as many as an id is repeated. kInvalidArgument: an id that is
  // not live; nothing was changed. kOutOfCapacity: a block would have 2^32 references.
  Status retain(std::span<const std::int32_t> ids);
  // One reference less to each; a block without any is free. kInvalidArgument: an id that is not
  // live, or that is repeated more often than it is referenced; nothing was changed.
  Status free(std::span<const std::int32_t> ids);

  // References to a block; 0 when it is free. kInvalidArgument: not an id of this pool.
  Result<std::uint32_t> refs(std::int32_t id) const;
  // First byte of a live block, stable while it lives. kInvalidArgument: the id is not live.
  // kUnsupported: a ledger.
  Result<std::byte*> data(std::int32_t id) const;
  // The same, with a reference that lives as long as the pointer and that free() cannot take.
  Result<std::shared_ptr<std::byte>> pin(std::int32_t id);

  // Of all blocks, for code that goes by ids. kUnsupported: a ledger.
  Result<BlockMemory> memory() const;

  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  std::uint64_t blocks() const;       // in all
  std::uint64_t live_blocks() const;  // with a reference
  std::uint64_t free_blocks() const { return blocks() - live_blocks(); }
  std::uint64_t block_bytes() const;
  std::uint64_t metadata_bytes() const;  // what the pool itself takes, beside the blocks

 private:
  struct State;
  struct Pin;
  explicit PagePool(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace kvcache
