// The process runs out of memory in the middle of calls of the C face: a status, never an
// exception.
#include <gtest/gtest.h>
#include <kvcache/c.h>

#include <array>
#include <functional>
#include <string>

#include "failing_new.h"

namespace {

// Lets the first, second, ... allocation of a call fail until none is left that would.
void expect_statuses(const char* what, const std::function<kvcache_status()>& call) {
  for (long at = 0; at < 1000; ++at) {
    remaining = at;
    const kvcache_status status = call();
    const bool reached = remaining < 0;
    remaining = -1;
    if (!reached) {
      EXPECT_EQ(status, KVCACHE_OK) << what << ": " << kvcache_last_error();
      EXPECT_GT(at, 0) << what << " allocates nothing, so that nothing was tested";
      return;
    }
    // Where a stream or a string inside swallows it, the call may still answer in another way.
    EXPECT_NE(status, KVCACHE_INTERNAL) << what << " " << at << ": " << kvcache_last_error();
    if (status == KVCACHE_OK) return;
    EXPECT_STRNE(kvcache_last_error(), "") << what;
  }
  ADD_FAILURE() << what << " never ended";
}

class CApiMemory : public testing::Test {
 protected:
  void SetUp() override {
    const std::array<uint64_t, 2> shape = {2, 8};
    kvcache_state_decl decl = {};
    decl.struct_size = sizeof decl;
    decl.id = "k";
    decl.component = "attention.keys";
    decl.kind = KVCACHE_PAGED_KV;
    decl.dtype = KVCACHE_F16;
    decl.shape = shape.data();
    decl.shape_axes = shape.size();
    kvcache_options options = {};
    options.struct_size = sizeof options;
    options.memory_bytes = 1 << 20;
    options.event_capacity = 100;
    options.block_tokens = 4;
    options.sequences = 4;
    expect_statuses("create", [&] { return kvcache_cache_create(&decl, 1, &options, &cache_); });
    ASSERT_NE(cache_, nullptr) << kvcache_last_error();
  }
  void TearDown() override { kvcache_cache_destroy(cache_); }

  kvcache_cache* cache_ = nullptr;
};

TEST_F(CApiMemory, StepsOfABatch) {
  const std::array<int32_t, 2> tokens = {1, 2};
  std::array<kvcache_sequence*, 2> sequences = {};
  for (kvcache_sequence*& sequence : sequences) {
    ASSERT_EQ(kvcache_sequence_open(cache_, tokens.data(), 2, nullptr, nullptr, &sequence),
              KVCACHE_OK);
  }
  kvcache_batch* batch = nullptr;
  expect_statuses("batch", [&] { return kvcache_batch_create(sequences.data(), 2, &batch); });
  ASSERT_NE(batch, nullptr);
  const std::array<uint64_t, 2> counts = {2, 2};
  expect_statuses("prepare", [&] { return kvcache_batch_prepare(batch, counts.data()); });
  std::array<uint64_t, 2> lengths = {9, 9};
  expect_statuses("lengths", [&] { return kvcache_batch_lengths(batch, lengths.data()); });
  EXPECT_EQ(lengths[0], 0U);
  const int32_t* table = nullptr;
  std::size_t columns = 0;
  expect_statuses("table", [&] { return kvcache_batch_block_table(batch, 0, &table, &columns); });
  ASSERT_EQ(kvcache_batch_advance_in_place(batch, counts.data()), KVCACHE_OK);
  const std::array<int32_t, 64> more = {};
  const std::array<uint64_t, 2> half = {32, 32};
  expect_statuses("extend",
                  [&] { return kvcache_batch_extend(batch, more.data(), 64, half.data()); });
  expect_statuses("advance", [&] {
    return kvcache_sequence_advance(sequences[0], std::uint64_t{99}) == KVCACHE_OUT_OF_CAPACITY
               ? KVCACHE_OUT_OF_CAPACITY
               : KVCACHE_OK;
  });
  ASSERT_EQ(kvcache_batch_lengths(batch, lengths.data()), KVCACHE_OK);
  EXPECT_EQ(lengths[1], 2U);
  kvcache_batch_destroy(batch);
  for (kvcache_sequence* sequence : sequences) kvcache_sequence_destroy(sequence);
  kvcache_stats stats = {};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(kvcache_cache_stats(cache_, &stats), KVCACHE_OK);
  EXPECT_EQ(stats.used_bytes, 0U);
}

TEST_F(CApiMemory, WhatIsStored) {
  const std::array<int32_t, 6> tokens = {1, 2, 3, 4, 5, 6};
  kvcache_open_options hints = {};
  hints.struct_size = sizeof hints;
  hints.tenant = "a tenant whose name needs memory of its own";
  kvcache_sequence* sequence = nullptr;
  expect_statuses("open", [&] {
    return kvcache_sequence_open(cache_, tokens.data(), 6, nullptr, &hints, &sequence);
  });
  ASSERT_NE(sequence, nullptr);
  ASSERT_EQ(kvcache_sequence_prepare(sequence, 5), KVCACHE_OK);
  ASSERT_EQ(kvcache_sequence_advance_in_place(sequence, 5), KVCACHE_OK);
  kvcache_verify* verify = nullptr;
  expect_statuses("begin_verify", [&] {
    return kvcache_sequence_begin_verify(sequence, tokens.data(), 2, nullptr, &verify);
  });
  ASSERT_NE(verify, nullptr);
  kvcache_verify_destroy(verify);
  expect_statuses("publish", [&] { return kvcache_sequence_publish(sequence); });
  kvcache_sequence_destroy(sequence);

  kvcache_explanation why = {};
  why.struct_size = sizeof why;
  expect_statuses("explain",
                  [&] { return kvcache_cache_explain(cache_, tokens.data(), 6, nullptr, &why); });
  kvcache_pin* pin = nullptr;
  expect_statuses(
      "pin", [&] { return kvcache_cache_pin(cache_, tokens.data(), 6, nullptr, nullptr, &pin); });
  kvcache_pin_destroy(pin);
  kvcache_tenants* tenants = nullptr;
  expect_statuses("tenants", [&] { return kvcache_cache_tenants(cache_, &tenants); });
  ASSERT_EQ(kvcache_tenants_count(tenants), 1U);
  kvcache_tenants_destroy(tenants);
  kvcache_events* events = nullptr;
  expect_statuses("events", [&] { return kvcache_cache_take_events(cache_, &events); });
  // Those that were taken, and found no memory, are said again.
  kvcache_event event = {};
  event.struct_size = sizeof event;
  ASSERT_EQ(kvcache_events_count(events), 2U);
  ASSERT_EQ(kvcache_events_read(events, 0, &event), KVCACHE_OK);
  EXPECT_EQ(event.kind, KVCACHE_EVENT_CLEARED);
  ASSERT_EQ(kvcache_events_read(events, 1, &event), KVCACHE_OK);
  EXPECT_EQ(event.hash_count, 1U);
  kvcache_events_destroy(events);
}

TEST_F(CApiMemory, RowsOfAnEngine) {
  const std::array<int32_t, 6> tokens = {1, 2, 3, 4, 5, 6};
  const int32_t layer = 0;
  kvcache_sequence* sequence = nullptr;
  ASSERT_EQ(kvcache_sequence_open(cache_, tokens.data(), 6, nullptr, nullptr, &sequence),
            KVCACHE_OK);
  std::array<float, std::size_t{6} * 2 * 8> elements = {};
  const std::array<uint64_t, 3> shape = {6, 2, 8};
  kvcache_engine_tensor tensor = {};
  tensor.struct_size = sizeof tensor;
  tensor.data = elements.data();
  tensor.layout = "tokens heads dim";
  tensor.shape = shape.data();
  tensor.axes = shape.size();
  expect_statuses("import", [&] {
    return kvcache_sequence_import_rows(sequence, &layer, 1, 0, 6, &tensor, 1, nullptr);
  });
  ASSERT_EQ(kvcache_sequence_advance(sequence, 6), KVCACHE_OK);
  expect_statuses("export", [&] {
    return kvcache_sequence_export_rows(sequence, &layer, 1, 0, 6, &tensor, 1, nullptr);
  });
  const kvcache_rows rows = {elements.data(), KVCACHE_F32, 6, 2, 8, 64, 32};
  const kvcache_layer_rows layers = {0, &rows, 1};
  expect_statuses("read_layers",
                  [&] { return kvcache_sequence_read_layers(sequence, 0, &layers, 1); });
  kvcache_page_views* views = nullptr;
  expect_statuses("views", [&] { return kvcache_sequence_views(sequence, 0, 0, 6, &views); });
  ASSERT_EQ(kvcache_page_views_count(views), 2U);
  kvcache_page_views_destroy(views);
  kvcache_sequence_destroy(sequence);
  kvcache_stats stats = {};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(kvcache_cache_stats(cache_, &stats), KVCACHE_OK);
  EXPECT_EQ(stats.used_bytes, 0U);  // nothing stayed pinned
}

TEST_F(CApiMemory, BlocksOfAPool) {
  kvcache_pool_options options = {};
  options.struct_size = sizeof options;
  options.blocks = 8;
  options.block_bytes = 64;
  kvcache_pool* pool = nullptr;
  expect_statuses("pool", [&] { return kvcache_pool_create(&options, &pool); });
  ASSERT_NE(pool, nullptr);
  std::array<int32_t, 3> ids = {};
  ASSERT_EQ(kvcache_pool_allocate(pool, ids.data(), 3), KVCACHE_OK);
  kvcache_block_pin* pin = nullptr;
  void* data = nullptr;
  expect_statuses("pin", [&] { return kvcache_pool_pin(pool, ids[0], &pin, &data); });
  kvcache_block_pin_destroy(pin);
  ASSERT_EQ(kvcache_pool_free(pool, ids.data(), 3), KVCACHE_OK);
  kvcache_block_stats stats = {};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(kvcache_pool_stats(pool, &stats), KVCACHE_OK);
  EXPECT_EQ(stats.live_blocks, 0U);
  kvcache_pool_destroy(pool);
}

TEST_F(CApiMemory, HiddenRowsAndDrafts) {
  const std::array<int32_t, 2> tokens = {1, 2};
  kvcache_sequence* sequence = nullptr;
  ASSERT_EQ(kvcache_sequence_open(cache_, tokens.data(), 2, nullptr, nullptr, &sequence),
            KVCACHE_OK);
  kvcache_hidden_options options = {};
  options.struct_size = sizeof options;
  options.rows = options.width = 2;
  options.cache = cache_;
  const std::array<uint16_t, 4> elements = {};
  const kvcache_hidden_rows rows = {elements.data(), KVCACHE_BF16, 2, 2, 4};
  kvcache_hidden_rows out = {};
  kvcache_hidden_capture* capture = nullptr;
  expect_statuses("capture", [&] { return kvcache_hidden_capture_create(&options, &capture); });
  kvcache_hidden_bands* bands = nullptr;
  expect_statuses("bands", [&] { return kvcache_hidden_bands_create(&options, 1, &bands); });
  kvcache_accept_stash* stash = nullptr;
  expect_statuses("stash", [&] { return kvcache_accept_stash_create(&options, 1, &stash); });
  const std::array<uint64_t, 1> row = {1};
  expect_statuses("store", [&] {
    return kvcache_accept_stash_store(stash, &sequence, 1, &rows, row.data(), row.data(), 1,
                                      row.data());
  });
  expect_statuses("rows", [&] {  // its text, when it is asked for more
    const kvcache_status status = kvcache_accept_stash_rows(stash, 2, &out);
    return status == KVCACHE_INVALID_ARGUMENT ? KVCACHE_OK : status;
  });
  ASSERT_EQ(kvcache_sequence_prepare(sequence, 1), KVCACHE_OK);
  ASSERT_EQ(kvcache_sequence_advance_in_place(sequence, 1), KVCACHE_OK);
  kvcache_drafts* drafts = nullptr;
  expect_statuses("drafts", [&] { return kvcache_drafts_create(2, 2, &drafts); });
  ASSERT_EQ(kvcache_drafts_put(drafts, sequence, tokens.data(), 2, nullptr), KVCACHE_OK);
  std::array<int32_t, 2> taken = {};
  std::size_t count = 0;
  std::size_t confident = 0;
  expect_statuses("take", [&] {
    return kvcache_drafts_take(drafts, sequence, taken.data(), nullptr, 2, &count, &confident);
  });
  EXPECT_EQ(count, 2U);  // a failure has lost none
  kvcache_verify* verify = nullptr;
  ASSERT_EQ(kvcache_sequence_begin_verify(sequence, taken.data(), 1, nullptr, &verify), KVCACHE_OK);
  const std::array<int32_t, 2> offsets = {0, 2};
  expect_statuses("store", [&] {
    return kvcache_hidden_bands_store(bands, &sequence, 1, &rows, offsets.data());
  });
  kvcache_verify_destroy(verify);
  kvcache_drafts_destroy(drafts);
  kvcache_accept_stash_destroy(stash);
  kvcache_hidden_bands_destroy(bands);
  kvcache_hidden_capture_destroy(capture);
  kvcache_sequence_destroy(sequence);
  kvcache_stats stats = {};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(kvcache_cache_stats(cache_, &stats), KVCACHE_OK);
  EXPECT_EQ(stats.reserved_bytes, 0U);
}

TEST_F(CApiMemory, PromptLookup) {
  const std::array<int32_t, 8> history = {1, 2, 3, 4, 1, 2, 3, 4};
  std::array<kvcache_lookup*, 2> lookups = {};
  for (kvcache_lookup*& lookup : lookups) {
    expect_statuses("lookup", [&] { return kvcache_lookup_create(nullptr, &lookup); });
    ASSERT_NE(lookup, nullptr);
  }
  const std::array<const int32_t*, 2> histories = {history.data(), history.data()};
  const std::array<std::size_t, 2> lengths = {8, 6};
  const std::array<uint64_t, 2> most = {2, 2};
  std::array<uint64_t, 2> counts = {};
  std::array<int32_t, 4> drafts = {};
  expect_statuses("propose", [&] {
    return kvcache_lookup_propose_batch(lookups.data(), 2, histories.data(), lengths.data(),
                                        most.data(), drafts.data(), 4, counts.data());
  });
  EXPECT_EQ(counts[0] + counts[1], 4U);  // a failure leaves nothing in flight
  expect_statuses("settle",
                  [&] { return kvcache_lookup_settle_batch(lookups.data(), 2, counts.data()); });
  kvcache_lookup_cache* cache = nullptr;
  expect_statuses("cache", [&] { return kvcache_lookup_cache_create(nullptr, &cache); });
  kvcache_lookup_key key = {};
  key.struct_size = sizeof key;
  key.tenant = {"a tenant whose name needs memory of its own", 43};
  kvcache_lookup_scope* scope = nullptr;
  expect_statuses("scope", [&] { return kvcache_lookup_cache_scope(cache, &key, &scope); });
  ASSERT_NE(scope, nullptr);
  expect_statuses("insert", [&] { return kvcache_lookup_scope_insert(scope, history.data(), 8); });
  uint64_t tokens = 0;
  ASSERT_EQ(kvcache_lookup_scope_tokens(scope, &tokens), KVCACHE_OK);
  EXPECT_GT(tokens, 0U);
  expect_statuses("drop", [&] { return kvcache_lookup_cache_drop(cache, &key); });
  kvcache_lookup_scope_destroy(scope);
  kvcache_lookup_cache_destroy(cache);
  for (kvcache_lookup* lookup : lookups) kvcache_lookup_destroy(lookup);
}

TEST_F(CApiMemory, TooManyElements) {
  const int32_t token = 1;
  kvcache_sequence* sequence = nullptr;
  ASSERT_EQ(kvcache_sequence_open(cache_, &token, 1, nullptr, nullptr, &sequence), KVCACHE_OK);
  // More than there are addresses for; nothing of it is read.
  EXPECT_EQ(kvcache_sequence_extend(sequence, &token, SIZE_MAX / 4, nullptr, 0),
            KVCACHE_OUT_OF_CAPACITY);
  EXPECT_STREQ(kvcache_last_error(), "tokens: more elements than memory can hold");
  kvcache_sequence_destroy(sequence);
}

}  // namespace
