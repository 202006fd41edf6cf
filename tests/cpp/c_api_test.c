/* A C99 program serves a prompt of a hybrid model twice: the second time state comes back. */
#include "c_toy.h"

enum { kTokens = 21, kHeads = kToyHeads, kWidth = kToyWidth };

/* A sequence of kTokens - 1 positions goes back to the state it had when it was recorded. */
static int ring_test(kvcache_sequence* sequence) {
  void* state = NULL;
  uint64_t state_bytes = 0, positions[2];
  size_t count = 9;
  CHECK(kvcache_sequence_rollback(sequence, kTokens - 1) == KVCACHE_UNSUPPORTED);
  CHECK(kvcache_sequence_record(sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_state(sequence, 1, "state.recurrent", &state, &state_bytes) == KVCACHE_OK);
  memset(state, 0x11, state_bytes);
  CHECK(kvcache_sequence_recorded(sequence, positions, 0, &count) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_sequence_recorded(sequence, positions, 2, &count) == KVCACHE_OK);
  CHECK(count == 1 && positions[0] == kTokens - 1);
  CHECK(kvcache_sequence_rollback(sequence, kTokens) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_sequence_rollback(sequence, kTokens - 1) == KVCACHE_OK);
  CHECK(((const unsigned char*)state)[5] == 0x3f);
  CHECK(kvcache_sequence_record(NULL) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_sequence_rollback(NULL, 0) == KVCACHE_INVALID_ARGUMENT);
  return 0;
}

/* Two sequences decode six tokens: their rows are stored in place, through the batch's table. */
static int decode_in_place(kvcache_cache* cache) {
  const int32_t prompt[2] = {1, 2};
  const uint64_t counts[2] = {2, 2};
  const int32_t* table = NULL;
  int32_t own[8], copied[6];
  size_t columns = 0, blocks = 0;
  uint64_t lengths[2];
  uint16_t half;
  kvcache_sequence* sequences[2] = {NULL, NULL};
  kvcache_sequence* twice[2];
  kvcache_batch* batch = NULL;
  kvcache_page_memory pages = {.struct_size = sizeof pages};
  const kvcache_space a = {.struct_size = sizeof a, .name = {"a", 1}};
  const kvcache_space b = {.struct_size = sizeof b, .name = {"b", 1}};
  static uint16_t read[2][6][kHeads][kWidth];
  kvcache_rows rows[2] = {
      {read[0], KVCACHE_F16, 6, kHeads, kWidth, sizeof read[0][0], sizeof read[0][0][0]},
      {read[1], KVCACHE_F16, 6, kHeads, kWidth, sizeof read[0][0], sizeof read[0][0][0]}};
  const uint64_t starts[2] = {0, 2}, each[2] = {4, 2};
  uint64_t p;
  int i;
  CHECK(kvcache_sequence_open(cache, prompt, 2, &a, NULL, &sequences[0]) == KVCACHE_OK);
  CHECK(kvcache_sequence_open(cache, prompt, 2, &b, NULL, &sequences[1]) == KVCACHE_OK);
  twice[0] = twice[1] = sequences[0];
  CHECK(kvcache_batch_create(twice, 2, &batch) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_batch_create(sequences, 2, &batch) == KVCACHE_OK);
  CHECK(kvcache_cache_pages(cache, 0, "attention.latent", &pages) == KVCACHE_NOT_FOUND);
  CHECK(kvcache_cache_pages(cache, 0, "attention.keys", &pages) == KVCACHE_OK);
  CHECK(pages.block_tokens == 4 && pages.heads == kHeads && pages.width == kWidth);
  CHECK(pages.dtype == KVCACHE_F16 && pages.scales == NULL);
  CHECK(kvcache_batch_advance_in_place(batch, counts) == KVCACHE_INVALID_ARGUMENT);
  for (p = 0; p < 6; ++p) {
    const int32_t next[2] = {3, 4};
    CHECK(kvcache_batch_prepare(batch, NULL) == KVCACHE_OK);
    CHECK(kvcache_batch_block_table(batch, pages.group, &table, &columns) == KVCACHE_OK);
    for (i = 0; i < 2; ++i) {
      char* row = (char*)pages.rows +
                  (uint64_t)table[(size_t)i * columns + p / 4] * pages.page_stride +
                  p % 4 * pages.token_stride;
      half = (uint16_t)(p * 2 + (uint64_t)i);
      memcpy(row, &half, sizeof half);
    }
    CHECK(kvcache_batch_advance_in_place(batch, NULL) == KVCACHE_OK);
    CHECK(kvcache_batch_extend(batch, next, 2, NULL) == KVCACHE_OK);
  }
  CHECK(kvcache_batch_lengths(batch, lengths) == KVCACHE_OK);
  CHECK(lengths[0] == 6 && lengths[1] == 6);
  CHECK(kvcache_batch_read(batch, 0, starts, each, rows, 2) == KVCACHE_OK);
  CHECK(read[0][3][0][0] == 6 && read[0][4][0][0] == 5 && read[0][5][0][0] == 7);
  CHECK(kvcache_sequence_block_table(sequences[1], 0, own, 1, &blocks) == KVCACHE_INVALID_ARGUMENT);
  CHECK(blocks == 2);
  CHECK(kvcache_sequence_block_table(sequences[1], 0, own, 8, &blocks) == KVCACHE_OK);
  CHECK(own[0] == table[columns] && own[1] == table[columns + 1]);
  CHECK(kvcache_batch_copy_block_table(batch, 0, copied, 2, 3) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_batch_copy_block_table(batch, 0, copied, 1, 2) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_batch_copy_block_table(batch, 0, copied, 3, 6) == KVCACHE_OK);
  CHECK(copied[0] == table[0] && copied[2] == -1 && copied[4] == own[1]);
  kvcache_sequence_destroy(sequences[0]);
  CHECK(kvcache_batch_prepare(batch, NULL) == KVCACHE_INVALID_ARGUMENT);
  kvcache_batch_destroy(batch);
  CHECK(kvcache_sequence_prepare(sequences[1], 1) == KVCACHE_OK);
  CHECK(kvcache_sequence_advance_in_place(sequences[1], 1) == KVCACHE_OK);
  kvcache_sequence_destroy(sequences[1]);
  return 0;
}

/* A window of 2 with a sink, and records of 4 positions beside it. */
static int records_test(void) {
  const uint64_t shape[2] = {1, kWidth};
  const char* name = "state.pooling.0.pooled";
  const kvcache_state_decl decls[2] = {{.struct_size = sizeof decls[0],
                                        .id = "l0.k",
                                        .component = "attention.keys",
                                        .kind = KVCACHE_PAGED_KV,
                                        .dtype = KVCACHE_F16,
                                        .shape = shape,
                                        .shape_axes = 2,
                                        .window = 2,
                                        .sinks = 1},
                                       {.struct_size = sizeof decls[0],
                                        .id = "l0.p",
                                        .component = name,
                                        .kind = KVCACHE_PAGED_KV,
                                        .dtype = KVCACHE_F16,
                                        .shape = shape,
                                        .shape_axes = 2,
                                        .record_tokens = 4}};
  kvcache_options options = {
      .struct_size = sizeof options, .memory_bytes = 1 << 20, .block_tokens = 6, .sequences = 1};
  static float rows[kTokens][kWidth], read[kTokens][kWidth];
  kvcache_rows keys = {rows, KVCACHE_F32, kTokens, 1, kWidth, sizeof rows[0], sizeof rows[0]};
  kvcache_rows records = keys, back = keys;
  int32_t tokens[kTokens];
  kvcache_cache* cache = NULL;
  kvcache_sequence* sequence = NULL;
  uint64_t written = 0;
  int i;
  for (i = 0; i < kTokens; ++i) {
    tokens[i] = i;
    rows[i][0] = (float)i;
  }
  records.tokens = back.tokens = kTokens / 4;
  back.data = read;
  CHECK(kvcache_cache_create(decls, 2, &options, &cache) == KVCACHE_INVALID_ARGUMENT);
  CHECK(strstr(kvcache_last_error(), "block_tokens to a multiple") != NULL);
  options.block_tokens = 8;
  CHECK(kvcache_cache_create(decls, 2, &options, &cache) == KVCACHE_OK);
  CHECK(kvcache_sequence_open(cache, tokens, kTokens, NULL, NULL, &sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_write(sequence, 0, 0, &keys, 1) == KVCACHE_OK);
  CHECK(kvcache_sequence_advance(sequence, kTokens) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_sequence_write_records(sequence, 0, "none", 0, &records) == KVCACHE_NOT_FOUND);
  CHECK(kvcache_sequence_write_records(sequence, 0, name, 0, NULL) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_sequence_write_records(sequence, 0, name, 0, &records) == KVCACHE_OK);
  CHECK(kvcache_sequence_advance(sequence, kTokens) == KVCACHE_OK);
  CHECK(kvcache_sequence_written_records(sequence, 0, "none", &written) == KVCACHE_NOT_FOUND);
  CHECK(kvcache_sequence_written_records(sequence, 0, name, &written) == KVCACHE_OK);
  CHECK(written == kTokens / 4);
  CHECK(kvcache_sequence_read_records(sequence, 0, name, 0, &back) == KVCACHE_OK);
  CHECK(memcmp(read, rows, (size_t)(kTokens / 4) * sizeof rows[0]) == 0);
  CHECK(kvcache_sequence_read_records(sequence, 0, name, 1, &back) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_sequence_read_records(NULL, 0, name, 0, &back) == KVCACHE_INVALID_ARGUMENT);
  back.tokens = 1;
  CHECK(kvcache_sequence_read(sequence, 0, 0, &back, 1) == KVCACHE_OK); /* the sink */
  CHECK(kvcache_sequence_read(sequence, 0, 1, &back, 1) == KVCACHE_NOT_FOUND);
  CHECK(kvcache_sequence_read(sequence, 0, kTokens - 1, &back, 1) == KVCACHE_OK);
  kvcache_sequence_destroy(sequence);
  kvcache_cache_destroy(cache);
  return 0;
}

int main(void) {
  const kvcache_space other = {.struct_size = sizeof other, .name = {"other", 5}};
  kvcache_options options = toy_options();
  kvcache_cache* cache = NULL;
  kvcache_sequence* sequence = NULL;
  kvcache_sequence* child = NULL;
  static float keys[kTokens][kHeads][kWidth], values[kTokens][kHeads][kWidth],
      read[2][kTokens][kHeads][kWidth];
  const ptrdiff_t token_stride = sizeof keys[0], head_stride = sizeof keys[0][0];
  const kvcache_rows rows[2] = {
      {keys, KVCACHE_F32, kTokens, kHeads, kWidth, token_stride, head_stride},
      {values, KVCACHE_F32, kTokens, kHeads, kWidth, token_stride, head_stride}};
  kvcache_rows back[2] = {
      {read[0], KVCACHE_F32, kTokens - 1, kHeads, kWidth, token_stride, head_stride},
      {read[1], KVCACHE_F32, kTokens - 1, kHeads, kWidth, token_stride, head_stride}};
  int32_t tokens[kTokens];
  void* state = NULL;
  uint64_t state_bytes = 0;
  kvcache_stats stats = {.struct_size = sizeof stats};
  kvcache_plan plan = {.struct_size = sizeof plan};
  int i;
  for (i = 0; i < kTokens; ++i) tokens[i] = i;
  for (i = 0; i < kTokens * kHeads * kWidth; ++i) {
    (&keys[0][0][0])[i] = (float)i;
    (&values[0][0][0])[i] = (float)-i;
  }

  options.ring_depth = 2;
  CHECK(toy_cache(&options, &cache) == KVCACHE_OK);
  CHECK(kvcache_cache_plan(cache, &plan) == KVCACHE_OK);
  CHECK(plan.block_tokens == 4 && plan.slot_bytes >= kToyState * sizeof(float));
  CHECK(plan.block_bytes >= (uint64_t)(4 * 2 * kHeads * kWidth * 2) && plan.stash_bytes == 0);
  CHECK(plan.ring_bytes > 0 && strncmp(plan.fingerprint, "sha256:", 7) == 0);
  CHECK(kvcache_sequence_open(cache, tokens, kTokens, NULL, NULL, &sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_cached_tokens(sequence) == 0);
  CHECK(kvcache_sequence_write(sequence, 0, 0, rows, 2) == KVCACHE_OK);
  CHECK(kvcache_sequence_write(sequence, 0, 0, rows, 1) == KVCACHE_INVALID_ARGUMENT);
  CHECK(strstr(kvcache_last_error(), "2 components") != NULL);
  CHECK(kvcache_sequence_advance(sequence, kTokens - 1) == KVCACHE_OK);
  CHECK(kvcache_sequence_state(sequence, 1, "state.recurrent", &state, &state_bytes) == KVCACHE_OK);
  CHECK(state_bytes == kToyState * sizeof(float));
  memset(state, 0x3f, state_bytes);
  CHECK(kvcache_sequence_snapshot(sequence, KVCACHE_SNAPSHOT_EXACT) == KVCACHE_OK);
  CHECK(kvcache_sequence_publish(sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_fork(sequence, &child) == KVCACHE_OK);
  CHECK(kvcache_sequence_truncate(child, 7) == KVCACHE_UNSUPPORTED);
  kvcache_sequence_destroy(child);
  CHECK(ring_test(sequence) == 0);
  kvcache_sequence_destroy(sequence);

  CHECK(kvcache_sequence_open(cache, tokens, kTokens, &other, NULL, &sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_cached_tokens(sequence) == 0);
  kvcache_sequence_destroy(sequence);
  CHECK(kvcache_sequence_open(cache, tokens, kTokens, NULL, NULL, &sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_cached_tokens(sequence) == kTokens - 1);
  CHECK(kvcache_sequence_read(sequence, 0, 0, back, 2) == KVCACHE_OK);
  CHECK(memcmp(read[0], keys, (kTokens - 1) * sizeof keys[0]) == 0);
  CHECK(memcmp(read[1], values, (kTokens - 1) * sizeof keys[0]) == 0);
  CHECK(kvcache_sequence_state(sequence, 1, "state.recurrent", &state, &state_bytes) == KVCACHE_OK);
  CHECK(((const unsigned char*)state)[5] == 0x3f);
  CHECK(decode_in_place(cache) == 0);
  kvcache_cache_destroy(cache); /* before its sequence: allowed */
  CHECK(kvcache_sequence_length(sequence) == kTokens - 1);
  kvcache_sequence_destroy(sequence);
  CHECK(kvcache_cache_stats(NULL, &stats) == KVCACHE_INVALID_ARGUMENT);
  CHECK(records_test() == 0);
  puts("c_api_test passed");
  return 0;
}
