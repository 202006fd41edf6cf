/* A C99 program keeps its own block tables: blocks by id, shared, pinned, given back. */
#include "c_toy.h"

enum { kBlocks = 5, kBytes = 96 };

static kvcache_pool_options pool_options(void) {
  const kvcache_pool_options options = {
      .struct_size = sizeof options, .blocks = kBlocks, .block_bytes = kBytes};
  return options;
}

static kvcache_block_stats stats_of(const kvcache_pool* pool) {
  kvcache_block_stats stats = {.struct_size = sizeof stats};
  if (kvcache_pool_stats(pool, &stats) != KVCACHE_OK) stats.blocks = 0;
  return stats;
}

static int creation_test(void) {
  const kvcache_huge_pages wrong = (kvcache_huge_pages)7;
  const int32_t nowhere = 1 << 20;
  kvcache_pool_options options = pool_options();
  kvcache_pool* pool = NULL;
  options.blocks = 0;
  CHECK(kvcache_pool_create(&options, &pool) == KVCACHE_INVALID_ARGUMENT);
  CHECK(strstr(kvcache_last_error(), "blocks must be 1..") != NULL);
  options.blocks = UINT64_MAX;
  CHECK(kvcache_pool_create(&options, &pool) == KVCACHE_INVALID_ARGUMENT);
  options = pool_options();
  options.block_bytes = 0;
  CHECK(kvcache_pool_create(&options, &pool) == KVCACHE_INVALID_ARGUMENT);
  options.block_bytes = UINT64_MAX / 2;
  CHECK(kvcache_pool_create(&options, &pool) != KVCACHE_OK);
  options = pool_options();
  options.huge_pages = &wrong;
  CHECK(kvcache_pool_create(&options, &pool) == KVCACHE_INVALID_ARGUMENT);
  options = pool_options();
  options.prefault_threads = UINT64_MAX;
  CHECK(kvcache_pool_create(&options, &pool) == KVCACHE_INVALID_ARGUMENT);
  options = pool_options();
  options.numa_node = &nowhere;
  CHECK(kvcache_pool_create(&options, &pool) != KVCACHE_OK);
  CHECK(pool == NULL);
  return 0;
}

/* Two sequences share a block; one goes, then the other. */
static int sharing_test(kvcache_pool* pool) {
  int32_t table[kBlocks], more[2];
  const int32_t twice[2] = {1, 1};
  uint32_t refs = 9;
  size_t i;
  OK(kvcache_pool_allocate(pool, table, 3));
  for (i = 0; i < 3; ++i) CHECK(table[i] == (int32_t)i);
  CHECK(kvcache_pool_allocate(pool, more, 0) == KVCACHE_OK);
  more[0] = more[1] = -7;
  CHECK(kvcache_pool_allocate(pool, table, 3) == KVCACHE_OUT_OF_CAPACITY);
  CHECK(stats_of(pool).free_blocks == 2 && table[0] == 0);
  OK(kvcache_pool_retain(pool, table + 1, 1));
  OK(kvcache_pool_refs(pool, 1, &refs));
  CHECK(refs == 2);
  CHECK(kvcache_pool_refs(pool, kBlocks, &refs) == KVCACHE_INVALID_ARGUMENT && refs == 2);
  OK(kvcache_pool_free(pool, table, 3)); /* the first sequence */
  CHECK(stats_of(pool).live_blocks == 1);
  CHECK(kvcache_pool_free(pool, twice, 2) == KVCACHE_INVALID_ARGUMENT);
  CHECK(strstr(kvcache_last_error(), "id 1 at index 1 is not live") != NULL);
  CHECK(kvcache_pool_retain(pool, table + 2, 1) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_pool_allocate(pool, more, 1)); /* the free one of lowest id */
  CHECK(more[0] == 0 && more[1] == -7);
  OK(kvcache_pool_free(pool, more, 1));
  OK(kvcache_pool_free(pool, twice, 1));
  CHECK(stats_of(pool).live_blocks == 0);
  OK(kvcache_pool_refs(pool, 1, &refs));
  CHECK(refs == 0);
  return 0;
}

/* A pinned block is nobody else's, whatever is given back, the pool included. */
static int bytes_test(kvcache_pool* pool) {
  kvcache_block_memory memory = {.struct_size = sizeof memory};
  kvcache_block_pin *pin = NULL, *none = NULL;
  void *data = NULL, *pinned = NULL;
  int32_t id = -1, other = -1;
  uint32_t refs = 0;
  OK(kvcache_pool_allocate(pool, &id, 1));
  OK(kvcache_pool_data(pool, id, &data));
  memset(data, 0x5a, kBytes);
  OK(kvcache_pool_memory(pool, &memory));
  CHECK(memory.blocks == kBlocks && memory.stride >= kBytes && memory.settled == 0);
  CHECK((char*)memory.data + (uint64_t)id * memory.stride == (char*)data);
  OK(kvcache_pool_pin(pool, id, &pin, &pinned));
  CHECK(pinned == data);
  OK(kvcache_pool_free(pool, &id, 1));
  CHECK(kvcache_pool_free(pool, &id, 1) == KVCACHE_INVALID_ARGUMENT); /* the pin's reference */
  OK(kvcache_pool_refs(pool, id, &refs));
  CHECK(refs == 1);
  OK(kvcache_pool_allocate(pool, &other, 1));
  CHECK(other != id);
  CHECK(kvcache_pool_data(pool, id + 2, &data) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_pool_pin(pool, -1, &none, &data) == KVCACHE_INVALID_ARGUMENT && none == NULL);
  kvcache_pool_destroy(pool);
  CHECK(((const unsigned char*)pinned)[kBytes - 1] == 0x5a);
  kvcache_block_pin_destroy(pin);
  return 0;
}

static int ledger_test(void) {
  kvcache_pool_options options = pool_options();
  kvcache_block_memory memory = {.struct_size = sizeof memory};
  kvcache_block_pin* pin = NULL;
  kvcache_pool* pool = NULL;
  void* data = NULL;
  int32_t id = -1;
  options.ledger = 1;
  OK(kvcache_pool_create(&options, &pool));
  OK(kvcache_pool_allocate(pool, &id, 1));
  CHECK(kvcache_pool_data(pool, id, &data) == KVCACHE_UNSUPPORTED);
  CHECK(kvcache_pool_pin(pool, id, &pin, &data) == KVCACHE_UNSUPPORTED && pin == NULL);
  CHECK(kvcache_pool_memory(pool, &memory) == KVCACHE_UNSUPPORTED);
  CHECK(stats_of(pool).live_blocks == 1 && stats_of(pool).block_bytes == kBytes);
  kvcache_pool_destroy(pool);
  options.ledger = 0;
  options.prefault_threads = 2;
  OK(kvcache_pool_create(&options, &pool));
  OK(kvcache_pool_memory(pool, &memory));
  CHECK(memory.settled != 0);
  kvcache_pool_destroy(pool);
  return 0;
}

int main(void) {
  const kvcache_pool_options options = pool_options();
  kvcache_pool* pool = NULL;
  CHECK(creation_test() == 0);
  OK(kvcache_pool_create(&options, &pool));
  CHECK(stats_of(pool).blocks == kBlocks && stats_of(pool).free_blocks == kBlocks);
  CHECK(stats_of(pool).metadata_bytes > 0);
  CHECK(sharing_test(pool) == 0);
  CHECK(bytes_test(pool) == 0);
  CHECK(ledger_test() == 0);
  puts("c_pool_test passed");
  return 0;
}
