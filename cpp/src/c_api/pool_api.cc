// Page pools through C.
#include <utility>

#include "c_api/convert.h"
#include "c_api/handles.h"

using kvcache::PagePool;
using kvcache::PagePoolOptions;
using kvcache::Status;
using kvcache::c_api::answer;
using kvcache::c_api::choose;
using kvcache::c_api::entry;
using kvcache::c_api::hand_over;
using kvcache::c_api::read_struct;
using kvcache::c_api::some;
using kvcache::c_api::write_struct;

extern "C" {

kvcache_status kvcache_pool_create(const kvcache_pool_options* options, kvcache_pool** out) {
  return entry({{"options", options}, {"out", out}}, [&]() -> Status {
    const auto from = read_struct("options", options);
    if (!from) return from.status();
    PagePoolOptions to = {
        .blocks = from->blocks, .block_bytes = from->block_bytes, .backing = from->ledger == 0};
    if (Status status = kvcache::c_api::read_memory(from->huge_pages, from->numa_node,
                                                    from->lock_memory, &to.memory);
        !status) {
      return status;
    }
    if (from->prefault_threads > UINT32_MAX) {
      return Status::invalid_argument("prefault_threads is ", from->prefault_threads);
    }
    to.memory.prefault_threads = static_cast<std::uint32_t>(from->prefault_threads);
    return hand_over(PagePool::create(to), out);
  });
}

void kvcache_pool_destroy(kvcache_pool* pool) { delete pool; }

kvcache_status kvcache_pool_allocate(kvcache_pool* pool, int32_t* out, size_t count) {
  return entry({{"pool", pool}, some("out", out, count)},
               [&] { return pool->pool->allocate_many({out, count}); });
}

kvcache_status kvcache_pool_retain(kvcache_pool* pool, const int32_t* ids, size_t count) {
  return entry({{"pool", pool}, some("ids", ids, count)},
               [&] { return pool->pool->retain({ids, count}); });
}

kvcache_status kvcache_pool_free(kvcache_pool* pool, const int32_t* ids, size_t count) {
  return entry({{"pool", pool}, some("ids", ids, count)},
               [&] { return pool->pool->free({ids, count}); });
}

kvcache_status kvcache_pool_refs(const kvcache_pool* pool, int32_t id, uint32_t* out) {
  return entry({{"pool", pool}, {"out", out}}, [&] { return answer(pool->pool->refs(id), out); });
}

kvcache_status kvcache_pool_data(const kvcache_pool* pool, int32_t id, void** out) {
  return entry({{"pool", pool}, {"out", out}}, [&] { return answer(pool->pool->data(id), out); });
}

kvcache_status kvcache_pool_pin(kvcache_pool* pool, int32_t id, kvcache_block_pin** out,
                                void** out_data) {
  return entry({{"pool", pool}, {"out", out}, {"out_data", out_data}}, [&] {
    const Status status = hand_over(pool->pool->pin(id), out);
    if (status) *out_data = (*out)->block.get();
    return status;
  });
}

void kvcache_block_pin_destroy(kvcache_block_pin* pin) { delete pin; }

kvcache_status kvcache_pool_memory(const kvcache_pool* pool, kvcache_block_memory* out) {
  return entry({{"pool", pool}, {"out", out}}, [&]() -> Status {
    const auto memory = pool->pool->memory();
    if (!memory) return memory.status();
    return write_struct(out, {.struct_size = sizeof(kvcache_block_memory),
                              .data = memory->data,
                              .blocks = memory->blocks,
                              .stride = memory->stride,
                              .bytes = memory->bytes,
                              .settled = memory->settled});
  });
}

kvcache_status kvcache_pool_stats(const kvcache_pool* pool, kvcache_block_stats* out) {
  return entry({{"pool", pool}, {"out", out}}, [&]() -> Status {
    if (Status status = pool->pool->check_process(); !status) return status;
    const std::uint64_t live = pool->pool->live_blocks();
    return write_struct(out, {.struct_size = sizeof(kvcache_block_stats),
                              .blocks = pool->pool->blocks(),
                              .live_blocks = live,
                              .free_blocks = pool->pool->blocks() - live,
                              .block_bytes = pool->pool->block_bytes(),
                              .metadata_bytes = pool->pool->metadata_bytes()});
  });
}

}  // extern "C"
