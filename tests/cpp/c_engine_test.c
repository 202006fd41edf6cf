/* Rows of an engine's own tensors go into pages and come back, from C99, and pages are read where
 * they lie. */
#include "c_toy.h"

enum { kTokens = 7, kEngineBlocks = 3 };

/* [kv, blocks, block, heads, dim], as FlashAttention has it in vLLM. */
static float paged[2][kEngineBlocks][kToyBlock][kToyHeads][kToyWidth];
static const int32_t table[2] = {2, 0};
static const int32_t layer = 0;

static const float* paged_row(size_t kv, size_t position, size_t head) {
  return paged[kv][table[position / kToyBlock]][position % kToyBlock][head];
}

static kvcache_engine_tensor paged_tensor(void) {
  static const uint64_t shape[5] = {2, kEngineBlocks, kToyBlock, kToyHeads, kToyWidth};
  const kvcache_engine_tensor tensor = {.struct_size = sizeof tensor,
                                        .data = paged,
                                        .dtype = KVCACHE_F32,
                                        .layout = "kv blocks block heads dim",
                                        .shape = shape,
                                        .axes = 5};
  return tensor;
}

static int refused_test(kvcache_sequence* sequence) {
  const kvcache_engine_tensor right = paged_tensor();
  const int32_t outside[2] = {2, kEngineBlocks};
  const uint64_t huge[5] = {2, UINT64_MAX / 2, kToyBlock, kToyHeads, kToyWidth};
  kvcache_engine_places places = {
      .struct_size = sizeof places, .block_table = table, .block_count = 1};
  kvcache_engine_tensor tensors[2] = {right, right};
  uint64_t written = 9;
  const kvcache_status wrong = KVCACHE_INVALID_ARGUMENT;
  /* Too few blocks, one that is not there, no table at all. */
  CHECK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, tensors, 1, &places) ==
        wrong);
  places.block_table = outside;
  places.block_count = 2;
  CHECK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, tensors, 1, &places) ==
        wrong);
  CHECK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, tensors, 1, NULL) == wrong);
  places.block_table = NULL;
  CHECK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, tensors, 1, &places) ==
        wrong);
  CHECK(strcmp(kvcache_last_error(), "places.block_table is NULL") == 0);
  places.block_table = table;
  /* Two tensors for both components, one that has no such place, sizes that differ. */
  CHECK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, tensors, 2, &places) ==
        wrong);
  tensors[1].struct_size += sizeof(void*);
  CHECK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, tensors, 2, &places) ==
        wrong);
  CHECK(strstr(kvcache_last_error(), "tensors[1]: struct_size is") != NULL);
  tensors[0].layout = "tokens head dim";
  CHECK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, tensors, 1, &places) ==
        wrong);
  CHECK(strstr(kvcache_last_error(), "tensors[0]: layout \"tokens head dim\": unknown") != NULL);
  tensors[0] = right;
  tensors[0].axes = 4;
  CHECK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, tensors, 1, &places) ==
        wrong);
  tensors[0] = right;
  tensors[0].shape = huge;
  CHECK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, tensors, 1, &places) ==
        wrong);
  tensors[0] = right;
  tensors[0].data = NULL;
  CHECK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, tensors, 1, &places) ==
        wrong);
  CHECK(strcmp(kvcache_last_error(), "tensors[0]: data is NULL") == 0);
  tensors[0] = right;
  tensors[0].dtype = KVCACHE_I32;
  CHECK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, tensors, 1, &places) ==
        wrong);
  OK(kvcache_sequence_written(sequence, 0, &written));
  CHECK(written == 0);
  CHECK(kvcache_sequence_written(sequence, 1, &written) == wrong); /* it keeps no pages */
  return 0;
}

/* In by a block table, out as [heads, tokens, dim] and [heads, dim, tokens], out by slots. */
static int round_trip_test(kvcache_sequence* sequence) {
  static float keys[kToyHeads][kTokens][kToyWidth], values[kToyHeads][kToyWidth][kTokens];
  static float slots[16][2][kToyHeads][kToyWidth];
  const int64_t places_of[kTokens] = {15, 3, 4, 0, 9, 8, 7};
  const uint64_t keys_shape[3] = {kToyHeads, kTokens, kToyWidth};
  const uint64_t values_shape[3] = {kToyHeads, kToyWidth, kTokens};
  const uint64_t slots_shape[2] = {16, 2 * kToyHeads * kToyWidth};
  const ptrdiff_t slots_strides[2] = {sizeof slots[0], sizeof(float)};
  const kvcache_engine_tensor in = paged_tensor();
  const kvcache_engine_tensor out[2] = {{.struct_size = sizeof in,
                                         .data = keys,
                                         .dtype = KVCACHE_F32,
                                         .layout = "heads tokens dim",
                                         .shape = keys_shape,
                                         .axes = 3},
                                        {.struct_size = sizeof in,
                                         .data = values,
                                         .dtype = KVCACHE_F32,
                                         .layout = "heads dim tokens",
                                         .shape = values_shape,
                                         .axes = 3}};
  const kvcache_engine_tensor mapped = {.struct_size = sizeof mapped,
                                        .data = slots,
                                        .dtype = KVCACHE_F32,
                                        .layout = "tokens (kv heads dim)",
                                        .shape = slots_shape,
                                        .strides = slots_strides,
                                        .axes = 2};
  const kvcache_engine_places blocks = {
      .struct_size = sizeof blocks, .block_table = table, .block_count = 2};
  const kvcache_engine_places by_slot = {
      .struct_size = sizeof by_slot, .slot_mapping = places_of, .slot_count = kTokens};
  uint64_t written = 0;
  size_t p, h, i;
  OK(kvcache_sequence_import_rows(sequence, &layer, 1, 0, kTokens, &in, 1, &blocks));
  OK(kvcache_sequence_written(sequence, 0, &written));
  CHECK(written == kTokens);
  OK(kvcache_sequence_advance(sequence, kTokens));
  OK(kvcache_sequence_export_rows(sequence, &layer, 1, 0, kTokens, out, 2, NULL));
  OK(kvcache_sequence_export_rows(sequence, &layer, 1, 0, kTokens, &mapped, 1, &by_slot));
  for (p = 0; p < kTokens; ++p) {
    for (h = 0; h < kToyHeads; ++h) {
      const float *key = paged_row(0, p, h), *value = paged_row(1, p, h);
      CHECK(memcmp(keys[h][p], key, sizeof keys[h][p]) == 0);
      CHECK(memcmp(slots[places_of[p]][0][h], key, sizeof keys[h][p]) == 0);
      CHECK(memcmp(slots[places_of[p]][1][h], value, sizeof keys[h][p]) == 0);
      for (i = 0; i < kToyWidth; ++i) CHECK(values[h][i][p] == value[i]);
    }
  }
  CHECK(kvcache_sequence_export_rows(sequence, &layer, 1, 0, kTokens + 1, out, 2, NULL) ==
        KVCACHE_INVALID_ARGUMENT);
  return 0;
}

/* Pages are read where they lie, and stay, whatever becomes of the sequence and the cache. */
static int views_test(kvcache_cache* cache, kvcache_sequence* sequence) {
  kvcache_page_views *views = NULL, *none = NULL;
  kvcache_page_view view = {.struct_size = sizeof view};
  int32_t pages[2];
  size_t count = 0, i, p, h, e;
  OK(kvcache_sequence_block_table(sequence, 0, pages, 2, &count));
  CHECK(kvcache_sequence_views(sequence, 1, 0, 2, &none) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_sequence_views(sequence, 0, 0, kTokens + 1, &none) == KVCACHE_INVALID_ARGUMENT);
  CHECK(none == NULL);
  OK(kvcache_sequence_views(sequence, 0, 3, 3, &none)); /* of nothing */
  CHECK(kvcache_page_views_count(none) == 0);
  CHECK(kvcache_page_views_read(none, 0, &view) == KVCACHE_INVALID_ARGUMENT);
  kvcache_page_views_destroy(none);
  OK(kvcache_sequence_views(sequence, 0, 2, kTokens, &views));
  kvcache_sequence_destroy(sequence);
  kvcache_cache_destroy(cache);
  CHECK(kvcache_page_views_count(views) == 4);
  for (i = 0; i < 4; ++i) {
    OK(kvcache_page_views_read(views, i, &view));
    CHECK(view.component == i / 2 && view.page == pages[i % 2] && view.dtype == KVCACHE_F32);
    CHECK(view.start == (i % 2 == 0 ? 2u : kToyBlock));
    CHECK(view.positions == (i % 2 == 0 ? 2u : 3u) && view.scales == NULL);
    for (p = 0; p < view.positions; ++p) {
      for (h = 0; h < view.heads; ++h) {
        const char* row = (const char*)view.rows + p * view.token_stride + h * view.head_stride;
        const float* expected = paged_row(view.component, view.start + p, h);
        for (e = 0; e < view.width; ++e) CHECK(((const float*)row)[e] == expected[e]);
      }
    }
  }
  CHECK(kvcache_page_views_read(views, 4, &view) == KVCACHE_INVALID_ARGUMENT);
  kvcache_page_views_destroy(views);
  return 0;
}

/* Rows of several layers by one call; of two of the same nothing is written. */
static int layers_test(kvcache_cache* cache) {
  static toy_rows rows, read;
  const int32_t tokens[2] = {1, 2};
  kvcache_rows components[2], back[2];
  kvcache_layer_rows layers[2];
  kvcache_sequence* sequence = NULL;
  uint64_t written = 9;
  toy_row(&rows, 0, 7);
  toy_row(&rows, 1, 8);
  toy_components(&rows, 0, 2, components);
  toy_components(&read, 0, 2, back);
  layers[0].layer = 0;
  layers[0].components = components;
  layers[0].component_count = 2;
  layers[1] = layers[0];
  OK(kvcache_sequence_open(cache, tokens, 2, NULL, NULL, &sequence));
  CHECK(kvcache_sequence_write_layers(sequence, 0, layers, 2) == KVCACHE_INVALID_ARGUMENT);
  layers[1].components = NULL;
  CHECK(kvcache_sequence_write_layers(sequence, 0, layers, 2) == KVCACHE_INVALID_ARGUMENT);
  CHECK(strcmp(kvcache_last_error(), "layers[1].components is NULL") == 0);
  OK(kvcache_sequence_written(sequence, 0, &written));
  CHECK(written == 0);
  OK(kvcache_sequence_write_layers(sequence, 0, layers, 1));
  layers[0].components = back;
  OK(kvcache_sequence_read_layers(sequence, 0, layers, 1));
  CHECK(memcmp(rows.keys, read.keys, 2 * sizeof rows.keys[0]) == 0);
  CHECK(memcmp(rows.values, read.values, 2 * sizeof rows.keys[0]) == 0);
  kvcache_sequence_destroy(sequence);
  return 0;
}

int main(void) {
  const kvcache_options options = toy_options();
  int32_t tokens[kTokens];
  kvcache_cache* cache = NULL;
  kvcache_sequence* sequence = NULL;
  size_t i;
  for (i = 0; i < kTokens; ++i) tokens[i] = (int32_t)i;
  for (i = 0; i < sizeof paged / sizeof(float); ++i) (&paged[0][0][0][0][0])[i] = (float)i;
  OK(toy_cache_of(KVCACHE_F32, &options, &cache));
  OK(kvcache_sequence_open(cache, tokens, kTokens, NULL, NULL, &sequence));
  CHECK(refused_test(sequence) == 0);
  CHECK(round_trip_test(sequence) == 0);
  CHECK(layers_test(cache) == 0);
  CHECK(views_test(cache, sequence) == 0);
  puts("c_engine_test passed");
  return 0;
}
