/* A toy hybrid model for C programs: attention in layer 0, fixed-size state in layer 1. Rows and
 * state follow from every token up to their position, so that none can pass for another's. */
#ifndef KVCACHE_TESTS_C_TOY_H
#define KVCACHE_TESTS_C_TOY_H

#include <kvcache/c.h>
#include <stdio.h>
#include <string.h>

/* In functions that return 0 when all is well. */
#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, kvcache_last_error()); \
      return 1;                                                                                 \
    }                                                                                           \
  } while (0)
#define OK(call) CHECK((call) == KVCACHE_OK)

enum { kToyHeads = 2, kToyWidth = 8, kToyState = 6, kToyMost = 64, kToyBlock = 4 };

#define TOY_STATE "state.recurrent"

typedef struct toy_rows {
  float keys[kToyMost][kToyHeads][kToyWidth];
  float values[kToyMost][kToyHeads][kToyWidth];
} toy_rows;

static inline uint32_t toy_mix(uint32_t hash, int32_t token) {
  return (hash ^ (uint32_t)token) * 2654435761u + 40503u;
}

static inline uint32_t toy_hash(const int32_t* tokens, size_t count) {
  uint32_t hash = 1;
  size_t i;
  for (i = 0; i < count; ++i) hash = toy_mix(hash, tokens[i]);
  return hash;
}

/* Element `i` of whatever follows from a hash; whole numbers that f16 holds. */
static inline float toy_element(uint32_t hash, size_t i) {
  return (float)(toy_mix(hash, (int32_t)i) >> 22);
}

static inline void toy_row(toy_rows* rows, size_t row, uint32_t hash) {
  size_t i;
  for (i = 0; i < kToyHeads * kToyWidth; ++i) {
    (&rows->keys[row][0][0])[i] = toy_element(hash, i);
    (&rows->values[row][0][0])[i] = toy_element(hash, i + 100);
  }
}

static inline void toy_state(float* state, uint32_t hash) {
  size_t i;
  for (i = 0; i < kToyState; ++i) state[i] = toy_element(hash, i + 200);
}

static inline int toy_is_state(const float* state, uint32_t hash) {
  float expected[kToyState];
  toy_state(expected, hash);
  return memcmp(state, expected, sizeof expected) == 0;
}

/* Rows [first, first + count) as the two components of layer 0. */
static inline void toy_components(toy_rows* rows, size_t first, size_t count, kvcache_rows out[2]) {
  const kvcache_rows keys = {
      rows->keys[first],      KVCACHE_F32, count, kToyHeads, kToyWidth, sizeof rows->keys[0],
      sizeof rows->keys[0][0]};
  out[0] = out[1] = keys;
  out[1].data = rows->values[first];
}

static inline kvcache_options toy_options(void) {
  kvcache_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.memory_bytes = 1 << 20;
  options.block_tokens = kToyBlock;
  options.sequences = 8;
  return options;
}

/* Rows are stored as `dtype`. */
static inline kvcache_status toy_cache_of(kvcache_dtype dtype, const kvcache_options* options,
                                          kvcache_cache** out) {
  static const uint64_t kv_shape[2] = {kToyHeads, kToyWidth}, state_shape[1] = {kToyState};
  kvcache_state_decl decls[3];
  memset(decls, 0, sizeof decls);
  decls[0].struct_size = decls[1].struct_size = decls[2].struct_size = sizeof decls[0];
  decls[0].id = "l0.k";
  decls[0].component = "attention.keys";
  decls[0].kind = KVCACHE_PAGED_KV;
  decls[0].dtype = dtype;
  decls[0].shape = kv_shape;
  decls[0].shape_axes = 2;
  decls[1] = decls[0];
  decls[1].id = "l0.v";
  decls[1].component = "attention.values";
  decls[2].id = "l1.h";
  decls[2].layer = 1;
  decls[2].component = TOY_STATE;
  decls[2].dtype = KVCACHE_F32;
  decls[2].shape = state_shape;
  decls[2].shape_axes = 1;
  decls[2].verify = KVCACHE_H_STEPS;
  decls[2].gate = KVCACHE_GATE_ELEMENT;
  return kvcache_cache_create(decls, 3, options, out);
}

static inline kvcache_status toy_cache(const kvcache_options* options, kvcache_cache** out) {
  return toy_cache_of(KVCACHE_F16, options, out);
}

/* Runs tokens [length, end) of a sequence: the forward pass. */
static inline int toy_run(kvcache_sequence* sequence, const int32_t* tokens, size_t end) {
  static toy_rows rows;
  const size_t start = (size_t)kvcache_sequence_length(sequence);
  uint32_t hash = toy_hash(tokens, start);
  kvcache_rows components[2];
  void* state = NULL;
  uint64_t bytes = 0;
  size_t i;
  for (i = start; i < end; ++i) {
    hash = toy_mix(hash, tokens[i]);
    toy_row(&rows, i - start, hash);
  }
  toy_components(&rows, 0, end - start, components);
  OK(kvcache_sequence_write(sequence, 0, start, components, 2));
  OK(kvcache_sequence_state(sequence, 1, TOY_STATE, &state, &bytes));
  CHECK(bytes == kToyState * sizeof(float));
  toy_state((float*)state, hash);
  OK(kvcache_sequence_advance(sequence, end - start));
  return 0;
}

/* Everything that a sequence holds is that of `tokens`. */
static inline int toy_check(const kvcache_sequence* sequence, const int32_t* tokens,
                            size_t length) {
  static toy_rows read, expected;
  uint32_t hash = 1;
  kvcache_rows components[2];
  void* state = NULL;
  uint64_t bytes = 0;
  size_t i;
  CHECK(kvcache_sequence_length(sequence) == length);
  for (i = 0; i < length; ++i) {
    hash = toy_mix(hash, tokens[i]);
    toy_row(&expected, i, hash);
  }
  toy_components(&read, 0, length, components);
  OK(kvcache_sequence_read(sequence, 0, 0, components, 2));
  CHECK(memcmp(read.keys, expected.keys, length * sizeof read.keys[0]) == 0);
  CHECK(memcmp(read.values, expected.values, length * sizeof read.values[0]) == 0);
  OK(kvcache_sequence_state(sequence, 1, TOY_STATE, &state, &bytes));
  CHECK(toy_is_state((const float*)state, hash));
  return 0;
}

/* A prompt served once, all but its last token stored, and closed. */
static inline int toy_serve(kvcache_cache* cache, const int32_t* tokens, size_t count,
                            const kvcache_space* space, const kvcache_open_options* options) {
  kvcache_sequence* sequence = NULL;
  OK(kvcache_sequence_open(cache, tokens, count, space, options, &sequence));
  CHECK(toy_run(sequence, tokens, count - 1) == 0);
  OK(kvcache_sequence_snapshot(sequence, KVCACHE_SNAPSHOT_EXACT));
  OK(kvcache_sequence_publish(sequence));
  kvcache_sequence_destroy(sequence);
  return 0;
}

#endif /* KVCACHE_TESTS_C_TOY_H */
