/* A C99 program serves a prompt of a hybrid model twice: the second time state comes back. */
#include <kvcache/c.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, kvcache_last_error()); \
      return 1;                                                                                 \
    }                                                                                           \
  } while (0)

enum { kTokens = 21, kHeads = 2, kWidth = 8 };

/* A sequence of kTokens - 1 positions goes back to the state it had when it was recorded. */
static int ring_test(kvcache_sequence* sequence) {
  void* state = NULL;
  uint64_t state_bytes = 0;
  CHECK(kvcache_sequence_rollback(sequence, kTokens - 1) == KVCACHE_UNSUPPORTED);
  CHECK(kvcache_sequence_record(sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_state(sequence, 1, "state.recurrent", &state, &state_bytes) == KVCACHE_OK);
  memset(state, 0x11, state_bytes);
  CHECK(kvcache_sequence_rollback(sequence, kTokens) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_sequence_rollback(sequence, kTokens - 1) == KVCACHE_OK);
  CHECK(((const unsigned char*)state)[5] == 0x3f);
  CHECK(kvcache_sequence_record(NULL) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_sequence_rollback(NULL, 0) == KVCACHE_INVALID_ARGUMENT);
  return 0;
}

int main(void) {
  const uint64_t kv_shape[2] = {kHeads, kWidth};
  const uint64_t state_shape[3] = {2, 4, 4};
  const kvcache_state_decl decls[3] = {
      {"l0.k", 0, "attention.keys", KVCACHE_PAGED_KV, KVCACHE_F16, kv_shape, 2, 0, 0, 0, 0, 0},
      {"l0.v", 0, "attention.values", KVCACHE_PAGED_KV, KVCACHE_F16, kv_shape, 2, 0, 0, 0, 0, 0},
      {"l1.h", 1, "state.recurrent", KVCACHE_RECURRENT, KVCACHE_F32, state_shape, 3, 0, 0, 0, 0,
       0}};
  const kvcache_options options = {1 << 20, 4, 8, NULL, 2};
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
  kvcache_stats stats;
  int i;
  for (i = 0; i < kTokens; ++i) tokens[i] = i;
  for (i = 0; i < kTokens * kHeads * kWidth; ++i) {
    (&keys[0][0][0])[i] = (float)i;
    (&values[0][0][0])[i] = (float)-i;
  }

  CHECK(kvcache_cache_create(decls, 3, &options, &cache) == KVCACHE_OK);
  CHECK(kvcache_sequence_open(cache, tokens, kTokens, NULL, 0, &sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_cached_tokens(sequence) == 0);
  CHECK(kvcache_sequence_write(sequence, 0, 0, rows, 2) == KVCACHE_OK);
  CHECK(kvcache_sequence_write(sequence, 0, 0, rows, 1) == KVCACHE_INVALID_ARGUMENT);
  CHECK(strstr(kvcache_last_error(), "2 components") != NULL);
  CHECK(kvcache_sequence_advance(sequence, kTokens - 1) == KVCACHE_OK);
  CHECK(kvcache_sequence_state(sequence, 1, "state.recurrent", &state, &state_bytes) == KVCACHE_OK);
  CHECK(state_bytes == 2 * 4 * 4 * sizeof(float));
  memset(state, 0x3f, state_bytes);
  CHECK(kvcache_sequence_snapshot(sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_publish(sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_fork(sequence, &child) == KVCACHE_OK);
  CHECK(kvcache_sequence_truncate(child, 7) == KVCACHE_UNSUPPORTED);
  kvcache_sequence_close(child);
  CHECK(ring_test(sequence) == 0);
  kvcache_sequence_close(sequence);

  CHECK(kvcache_sequence_open(cache, tokens, kTokens, "other", 5, &sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_cached_tokens(sequence) == 0);
  kvcache_sequence_close(sequence);
  CHECK(kvcache_sequence_open(cache, tokens, kTokens, NULL, 0, &sequence) == KVCACHE_OK);
  CHECK(kvcache_sequence_cached_tokens(sequence) == kTokens - 1);
  CHECK(kvcache_sequence_read(sequence, 0, 0, back, 2) == KVCACHE_OK);
  CHECK(memcmp(read[0], keys, (kTokens - 1) * sizeof keys[0]) == 0);
  CHECK(memcmp(read[1], values, (kTokens - 1) * sizeof keys[0]) == 0);
  CHECK(kvcache_sequence_state(sequence, 1, "state.recurrent", &state, &state_bytes) == KVCACHE_OK);
  CHECK(((const unsigned char*)state)[5] == 0x3f);
  kvcache_cache_destroy(cache); /* before its sequence: allowed */
  CHECK(kvcache_sequence_length(sequence) == kTokens - 1);
  kvcache_sequence_close(sequence);
  CHECK(kvcache_cache_stats(NULL, &stats) == KVCACHE_INVALID_ARGUMENT);
  puts("c_api_test passed");
  return 0;
}
