/* Speculative decoding from C99: one sequence, a tree, a batch. */
#include "c_toy.h"

/* Fills the rows of a session as a model would: row i follows row parents[i]. `hash` is that of
 * the tokens before row 0, hashes[i] becomes that after row i. */
static int run_rows(kvcache_verify* verify, const int32_t* parents, uint32_t hash,
                    uint32_t* hashes) {
  static toy_rows rows;
  kvcache_run_rows run = {sizeof run, 0, NULL, NULL, 0, NULL, NULL};
  kvcache_rows components[2];
  void* state = NULL;
  uint64_t bytes = 0;
  size_t i;
  OK(kvcache_verify_rows(verify, &run));
  CHECK(run.sequences == 1 && run.offsets[0] == 0 && (size_t)run.offsets[1] == run.rows);
  CHECK(run.starts[0] == run.positions[0]);
  for (i = 0; i < run.rows; ++i) {
    const int32_t parent = parents == NULL ? (int32_t)i - 1 : parents[i];
    const uint32_t before = parent < 0 ? hash : hashes[parent];
    hashes[i] = toy_mix(before, run.tokens[i]);
    toy_row(&rows, i, hashes[i]);
    OK(kvcache_verify_state(verify, i, 1, TOY_STATE, &state, &bytes));
    CHECK(bytes == kToyState * sizeof(float));
    CHECK(toy_is_state((const float*)state, before)); /* a copy, to be updated in place */
    toy_state((float*)state, hashes[i]);
  }
  toy_components(&rows, 0, run.rows, components);
  OK(kvcache_verify_write(verify, 0, components, 2));
  return 0;
}

/* Three drafts, the second of which is wrong. */
static int rejected_draft_test(kvcache_sequence* sequence, int32_t* tokens, size_t* length) {
  const int32_t sampled = 900, drafts[3] = {901, 902, 903};
  const size_t start = *length;
  const uint32_t hash = toy_hash(tokens, start);
  uint32_t hashes[4];
  kvcache_verify* verify = NULL;
  const void* live = NULL;
  void* state = NULL;
  uint64_t bytes = 0, out = 7;
  OK(kvcache_sequence_extend(sequence, &sampled, 1, NULL, 0));
  OK(kvcache_sequence_begin_verify(sequence, drafts, 3, NULL, &verify));
  CHECK(kvcache_sequence_publish(sequence) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_verify_live(verify, 1, TOY_STATE, &live, &bytes));
  CHECK(toy_is_state((const float*)live, hash));
  CHECK(kvcache_verify_commit(verify, 2, &out) == KVCACHE_INVALID_ARGUMENT); /* not written */
  CHECK(run_rows(verify, NULL, hash, hashes) == 0);
  CHECK(kvcache_verify_state(verify, 4, 1, TOY_STATE, &state, &bytes) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_verify_commit(verify, 0, &out) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_verify_commit(verify, 5, &out) == KVCACHE_INVALID_ARGUMENT && out == 7);
  OK(kvcache_verify_commit(verify, 2, &out)); /* the sampled token and the first draft */
  CHECK(out == start + 2);
  CHECK(kvcache_verify_rollback(verify) == KVCACHE_INVALID_ARGUMENT);
  kvcache_verify_destroy(verify);
  tokens[start] = sampled;
  tokens[start + 1] = drafts[0];
  *length = start + 2;
  return toy_check(sequence, tokens, *length);
}

/* Sessions that keep nothing: rolled back, and destroyed. */
static int dropped_test(kvcache_sequence* sequence, const int32_t* tokens, size_t length) {
  const int32_t sampled = 77, draft = 78;
  uint32_t hashes[2];
  kvcache_verify* verify = NULL;
  int i;
  OK(kvcache_sequence_extend(sequence, &sampled, 1, NULL, 0));
  for (i = 0; i < 2; ++i) {
    OK(kvcache_sequence_begin_verify(sequence, &draft, 1, NULL, &verify));
    CHECK(run_rows(verify, NULL, toy_hash(tokens, length), hashes) == 0);
    if (i == 0) OK(kvcache_verify_rollback(verify));
    kvcache_verify_destroy(verify);
    CHECK(toy_check(sequence, tokens, length) == 0);
  }
  return 0;
}

/* The token 77 waits. Its drafts are 1 and 2, then 3 after the second; the model picks 2 and 3. */
static int tree_test(kvcache_sequence* sequence, int32_t* tokens, size_t* length) {
  const int32_t parents[4] = {-1, 0, 0, 2}, drafts[3] = {1, 2, 3};
  const int32_t ids[4] = {77, 1, 2, 3}, picks[4] = {2, 50, 3, 60};
  const uint8_t expected[4][5] = {
      {1, 1, 0, 0, 0}, {1, 1, 1, 0, 0}, {1, 1, 0, 1, 0}, {1, 1, 0, 1, 1}};
  kvcache_verify_options options = {sizeof options, NULL, 0, KVCACHE_STEPS, NULL, NULL};
  const int32_t leaves[6] = {0, 1, -1, 0, 2, 3};
  kvcache_tree_nodes nodes = {.struct_size = sizeof nodes};
  int32_t paths[6];
  kvcache_tree* tree = NULL;
  kvcache_verify* verify = NULL;
  uint8_t mask[4][5];
  uint32_t packed[4], hashes[4];
  float bias[4][5];
  int32_t path[4], bonus = 0;
  size_t count = 0;
  uint64_t out = 0;
  OK(kvcache_tree_create(parents, 4, &tree));
  OK(kvcache_tree_read(tree, &nodes));
  CHECK(nodes.nodes == 4 && nodes.leaves == 2 && nodes.depth == 2 && nodes.parents[3] == 2);
  CHECK(nodes.depths[3] == 2 && nodes.first_child[2] == 3 && nodes.first_child[3] == -1);
  CHECK(nodes.next_sibling[1] == 2 && nodes.next_sibling[2] == -1);
  CHECK(kvcache_tree_retrieval_indices(tree, paths, 5, &count) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_tree_retrieval_indices(tree, paths, 6, &count));
  CHECK(count == 6 && memcmp(paths, leaves, sizeof leaves) == 0);
  OK(kvcache_tree_mask(tree, 1, &mask[0][0], sizeof mask));
  CHECK(memcmp(mask, expected, sizeof mask) == 0);
  OK(kvcache_tree_packed_mask(tree, 1, packed, 4));
  CHECK(packed[3] == 0x1b);
  OK(kvcache_tree_bias(tree, 1, &bias[0][0], 20));
  CHECK(bias[0][1] == 0 && bias[0][2] < -1e30f);
  CHECK(kvcache_tree_bias(tree, 1, &bias[0][0], 19) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_tree_accept(tree, ids, picks, path, 2, &count, &bonus) == KVCACHE_INVALID_ARGUMENT);
  CHECK(count == 3 && bonus == 0);
  OK(kvcache_tree_accept(tree, ids, picks, path, 4, &count, &bonus));
  CHECK(count == 3 && path[0] == 0 && path[1] == 2 && path[2] == 3 && bonus == 60);
  kvcache_tree_destroy(tree);

  options.parents = parents;
  options.parent_count = 3;
  CHECK(kvcache_sequence_begin_verify(sequence, drafts, 3, &options, &verify) ==
        KVCACHE_INVALID_ARGUMENT);
  options.parent_count = 4;
  OK(kvcache_sequence_begin_verify(sequence, drafts, 3, &options, &verify));
  CHECK(run_rows(verify, parents, toy_hash(tokens, *length), hashes) == 0);
  CHECK(kvcache_verify_commit(verify, 2, &out) == KVCACHE_INVALID_ARGUMENT); /* not one path */
  OK(kvcache_verify_commit_path(verify, path, count, &out));
  kvcache_verify_destroy(verify);
  CHECK(out == *length + 3);
  tokens[(*length)++] = 77;
  tokens[(*length)++] = 2;
  tokens[(*length)++] = 3;
  return toy_check(sequence, tokens, *length);
}

/* Two sequences with two drafts and none; the table holds where each one's state lies. */
static int batch_test(kvcache_cache* cache) {
  static toy_rows rows;
  const int32_t prompts[2][3] = {{1, 2, 3}, {4, 5, 6}}, drafts[2] = {30, 31};
  const uint64_t counts[2] = {2, 0}, accepted[2] = {2, 1};
  int32_t kept[4] = {1, 2, 3, 30};
  kvcache_verify_options options = {sizeof options, NULL, 0, KVCACHE_STEPS, NULL, NULL};
  kvcache_run_rows run = {sizeof run, 0, NULL, NULL, 0, NULL, NULL};
  kvcache_sequence* sequences[2] = {NULL, NULL};
  kvcache_batch* batch = NULL;
  kvcache_batch_verify* verify = NULL;
  kvcache_verify* single = NULL;
  const uint64_t* pointers = NULL;
  const void* live = NULL;
  kvcache_rows components[2];
  uint64_t bytes = 0, lengths[2] = {0, 0};
  size_t i, r;
  for (i = 0; i < 2; ++i) {
    OK(kvcache_sequence_open(cache, prompts[i], 3, NULL, NULL, &sequences[i]));
    CHECK(toy_run(sequences[i], prompts[i], 2) == 0);
  }
  OK(kvcache_batch_create(sequences, 2, &batch));
  OK(kvcache_verify_table_create(cache, 2, 4, &options.table));
  OK(kvcache_verify_table_pointers(options.table, 1, TOY_STATE, &pointers));
  CHECK(kvcache_sequence_begin_verify(sequences[0], drafts, 2, &options, &single) ==
        KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_batch_begin_verify(batch, drafts, 2, counts, &options, &verify));
  OK(kvcache_batch_verify_rows(verify, &run));
  CHECK(run.rows == 4 && run.sequences == 2 && run.offsets[1] == 3 && run.offsets[2] == 4);
  CHECK(run.tokens[0] == 3 && run.tokens[2] == 31 && run.positions[2] == 4 && run.starts[1] == 2);
  for (i = 0; i < 2; ++i) {
    uint32_t hash = toy_hash(prompts[i], 2);
    OK(kvcache_batch_verify_live(verify, i, 1, TOY_STATE, &live, &bytes));
    CHECK((uint64_t)(uintptr_t)live == pointers[i] && toy_is_state((const float*)live, hash));
    for (r = 0; r < (i == 0 ? 3u : 1u); ++r) {
      void* state = NULL;
      const size_t row = (size_t)run.offsets[i] + r;
      hash = toy_mix(hash, run.tokens[row]);
      toy_row(&rows, row, hash);
      OK(kvcache_batch_verify_state(verify, i, r, 1, TOY_STATE, &state, &bytes));
      CHECK((uint64_t)(uintptr_t)state == pointers[(r + 1) * 2 + i]);
      toy_state((float*)state, hash);
    }
  }
  toy_components(&rows, 0, 4, components);
  OK(kvcache_batch_verify_write(verify, 0, components, 2));
  OK(kvcache_batch_verify_commit(verify, accepted, 0, lengths));
  CHECK(lengths[0] == 4 && lengths[1] == 3 && pointers[0] == 0);
  kvcache_batch_verify_destroy(verify);
  CHECK(toy_check(sequences[0], kept, 4) == 0 && toy_check(sequences[1], prompts[1], 3) == 0);
  CHECK(kvcache_batch_begin_verify(batch, drafts, 2, NULL, &options, &verify) ==
        KVCACHE_INVALID_ARGUMENT); /* nothing waits */
  kvcache_verify_table_destroy(options.table);
  kvcache_batch_destroy(batch);
  for (i = 0; i < 2; ++i) kvcache_sequence_destroy(sequences[i]);
  return 0;
}

/* State of one axis with a gate an element: h = gate * h + right. Two rows, one is accepted. */
static int carry_test(void) {
  kvcache_options options = toy_options();
  kvcache_verify_options how = {sizeof how, NULL, 0, KVCACHE_CARRY, NULL, NULL};
  kvcache_pending_rows pending = {sizeof pending, 9, NULL, 0, NULL, 0, NULL, 0};
  const int32_t prompt[2] = {1, 2}, draft = 3;
  float gate[2][kToyState], right[2][kToyState];
  const kvcache_rows gates = {gate, KVCACHE_F32, 2, 1, kToyState, sizeof gate[0], sizeof gate[0]};
  const kvcache_rows rights = {right,           KVCACHE_F32,    2, 1, kToyState,
                               sizeof right[0], sizeof right[0]};
  kvcache_stash_inputs inputs = {sizeof inputs, NULL, NULL, NULL, NULL};
  static toy_rows rows;
  kvcache_rows components[2];
  kvcache_cache* cache = NULL;
  kvcache_sequence* sequence = NULL;
  kvcache_verify* verify = NULL;
  void* state = NULL;
  uint64_t bytes = 0, length = 0;
  int i;
  for (i = 0; i < 2 * kToyState; ++i) {
    (&gate[0][0])[i] = 0.5f;
    (&right[0][0])[i] = 1;
  }
  options.stash_rows = 4;
  OK(toy_cache(&options, &cache));
  OK(kvcache_sequence_open(cache, prompt, 2, NULL, NULL, &sequence));
  CHECK(toy_run(sequence, prompt, 1) == 0);
  OK(kvcache_sequence_begin_verify(sequence, &draft, 1, &how, &verify));
  OK(kvcache_verify_pending(verify, 1, TOY_STATE, &pending));
  CHECK(pending.rows == 0);
  CHECK(kvcache_verify_stash(verify, 1, TOY_STATE, &inputs) == KVCACHE_INVALID_ARGUMENT);
  inputs.gate = &gates;
  inputs.right = &rights;
  OK(kvcache_verify_stash(verify, 1, TOY_STATE, &inputs));
  toy_components(&rows, 0, 2, components);
  OK(kvcache_verify_write(verify, 0, components, 2));
  OK(kvcache_verify_commit(verify, 1, &length));
  kvcache_verify_destroy(verify);
  OK(kvcache_sequence_state(sequence, 1, TOY_STATE, &state, &bytes)); /* folds */
  for (i = 0; i < kToyState; ++i) {
    const float before = toy_element(toy_hash(prompt, 1), (size_t)i + 200);
    CHECK(((const float*)state)[i] == 0.5f * before + 1);
  }
  kvcache_sequence_destroy(sequence);
  kvcache_cache_destroy(cache);
  return 0;
}

int main(void) {
  const kvcache_options options = toy_options();
  int32_t tokens[kToyMost] = {5, 6, 7, 8, 9, 10};
  size_t length = 6;
  kvcache_cache* cache = NULL;
  kvcache_sequence* sequence = NULL;
  OK(toy_cache(&options, &cache));
  OK(kvcache_sequence_open(cache, tokens, length, NULL, NULL, &sequence));
  CHECK(toy_run(sequence, tokens, length) == 0);
  CHECK(rejected_draft_test(sequence, tokens, &length) == 0);
  CHECK(dropped_test(sequence, tokens, length) == 0);
  CHECK(tree_test(sequence, tokens, &length) == 0);
  kvcache_sequence_destroy(sequence);
  CHECK(batch_test(cache) == 0);
  kvcache_cache_destroy(cache);
  CHECK(carry_test() == 0);
  puts("c_verify_test passed");
  return 0;
}
