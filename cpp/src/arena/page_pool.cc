#include "kvcache/page_pool.h"

#include <mutex>
#include <utility>

#include "arena/arena.h"
#include "base/process.h"
#include "layout/spans.h"

namespace kvcache {

using arena::ItemId;

struct PagePool::State {
  const std::uint64_t blocks;
  const bool settled;  // no other pool takes what was touched at creation
  const std::unique_ptr<arena::Arena> arena;
  arena::Pool& pool = arena->pool(0);
  mutable ProcessMutex mutex;  // guards arena and pool

  State(const PagePoolOptions& options, std::unique_ptr<arena::Arena> owned)
      : blocks(options.blocks),
        settled(options.memory.prefault_threads > 0),
        arena(std::move(owned)) {}

  Status not_live(const char* call, ItemId id, std::size_t index) const {
    return Status::invalid_argument(call, ": id ", id, " at index ", index,
                                    " is not live: freed before, or no id of this pool of ", blocks,
                                    " blocks; nothing was changed");
  }

  // Locked.
  Result<std::byte*> bytes(ItemId id) const {
    if (!pool.is_live(id)) return not_live("data", id, 0);
    std::byte* first = pool.data(id);
    if (first == nullptr) return Status::unsupported("data: a pool without backing has no bytes");
    return first;
  }
};

// Holds one block for as long as somebody looks at it.
struct PagePool::Pin {
  explicit Pin(std::shared_ptr<State> state_value) : state(std::move(state_value)) {}
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  ~Pin() {
    if (id == arena::kNoItem || !state->mutex.is_own_process()) return;
    const std::lock_guard lock(state->mutex);
    state->pool.release_indexed(id);
  }

  const std::shared_ptr<State> state;
  ItemId id = arena::kNoItem;  // nothing is held yet
};

PagePool::PagePool(std::shared_ptr<State> state) : state_(std::move(state)) {}
PagePool::~PagePool() = default;

Result<std::unique_ptr<PagePool>> PagePool::create(const PagePoolOptions& options) {
  if (options.blocks == 0 || options.blocks > arena::kMaxItems) {
    return Status::invalid_argument("blocks must be 1..", arena::kMaxItems, ", got ",
                                    options.blocks);
  }
  const SpanGeometry geometry = span_geometry(options.block_bytes);
  const auto budget = geometry.bytes == 0
                          ? std::nullopt
                          : checked_mul(ceil_div(options.blocks, geometry.items), geometry.bytes);
  if (!budget) {
    return Status::invalid_argument("block_bytes: ", options.blocks, " blocks of ",
                                    options.block_bytes, " bytes cannot be stored");
  }
  auto made = arena::Arena::create(*budget, {{"blocks", options.block_bytes, options.blocks}},
                                   options.backing, options.memory, *budget);
  if (!made) return made.status();
  std::shared_ptr<State> state(new State(options, std::move(made).value()), DeleteInOwnProcess());
  return std::unique_ptr<PagePool>(new PagePool(std::move(state)));
}

Result<std::unique_ptr<PagePool>> PagePool::for_group(const StatePlan& plan, std::size_t group,
                                                      bool backing, const MemoryOptions& memory) {
  if (group >= plan.groups().size()) {
    return Status::invalid_argument("group ", group, ": the plan has ", plan.groups().size(),
                                    " groups of pages");
  }
  const std::uint64_t block_bytes = plan.groups()[group].page_bytes;
  const SpanGeometry geometry = span_geometry(block_bytes);
  const std::uint64_t spans = plan.options().memory_bytes / geometry.bytes;
  if (spans == 0) {
    return Status::out_of_capacity("group ", group, ": a block of ", block_bytes,
                                   " bytes does not fit the plan's ", plan.options().memory_bytes,
                                   " bytes; raise memory or lower block_tokens");
  }
  const std::uint64_t blocks =
      spans > arena::kMaxItems / geometry.items ? arena::kMaxItems : spans * geometry.items;
  return create(
      {.blocks = blocks, .block_bytes = block_bytes, .backing = backing, .memory = memory});
}

Result<std::int32_t> PagePool::allocate() {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  return state_->pool.allocate();
}

Status PagePool::allocate_many(std::span<std::int32_t> ids) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  return state_->pool.allocate_many(ids);
}

Status PagePool::retain(std::span<const std::int32_t> ids) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!state_->pool.is_live(ids[i])) return state_->not_live("retain", ids[i], i);
    if (ids.size() > UINT32_MAX - state_->pool.refs(ids[i])) {
      return Status::out_of_capacity("retain: block ", ids[i], " has ", state_->pool.refs(ids[i]),
                                     " references; they are counted up to ", UINT32_MAX);
    }
  }
  state_->pool.retain_many(ids);
  return Status::ok();
}

Status PagePool::free(std::span<const std::int32_t> ids) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  const std::size_t live = state_->pool.try_release(ids);
  return live == ids.size() ? Status::ok() : state_->not_live("free", ids[live], live);
}

Result<std::uint32_t> PagePool::refs(std::int32_t id) const {
  if (Status status = state_->mutex.check_process(); !status) return status;
  if (id < 0 || static_cast<std::uint64_t>(id) >= state_->blocks) {
    return Status::invalid_argument("refs: ids are 0..", state_->blocks - 1, ", got ", id);
  }
  const std::lock_guard lock(state_->mutex);
  return state_->pool.is_live(id) ? state_->pool.refs(id) : 0;
}

Result<std::byte*> PagePool::data(std::int32_t id) const {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  return state_->bytes(id);
}

Result<std::shared_ptr<std::byte>> PagePool::pin(std::int32_t id) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  // Made before the lock: its end takes it, and may come when there is no memory for it.
  const auto pin = std::make_shared<Pin>(state_);
  const std::lock_guard lock(state_->mutex);
  const auto bytes = state_->bytes(id);
  if (!bytes) return bytes.status();
  state_->pool.retain_indexed(id);
  pin->id = id;
  return std::shared_ptr<std::byte>(pin, *bytes);
}

Result<BlockMemory> PagePool::memory() const {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const arena::Pool& pool = state_->pool;
  std::byte* first = pool.data(0);
  if (first == nullptr) return Status::unsupported("memory: a pool without backing has no bytes");
  return BlockMemory{
      first,           state_->blocks, pool.item_stride(), state_->blocks * pool.item_stride(),
      state_->settled, state_};
}

Status PagePool::check_process() const { return state_->mutex.check_process(); }

std::uint64_t PagePool::blocks() const {
  return state_->mutex.is_own_process() ? state_->blocks : 0;
}

std::uint64_t PagePool::live_blocks() const {
  if (!state_->mutex.is_own_process()) return 0;
  const std::lock_guard lock(state_->mutex);
  return state_->pool.live_items();
}

std::uint64_t PagePool::block_bytes() const { return state_->pool.item_bytes(); }

std::uint64_t PagePool::metadata_bytes() const {
  if (!state_->mutex.is_own_process()) return 0;
  const std::lock_guard lock(state_->mutex);
  return state_->pool.metadata_bytes();
}

}  // namespace kvcache
