/* What a C99 server keeps between two steps of speculative decoding: hidden rows and drafts, each
 * good for its sequence as it was, and prompt lookup. */
#include "c_toy.h"

enum { kHidden = 3, kRows = 8 };

static float hidden[kRows][kHidden];

static kvcache_hidden_rows hidden_rows(size_t first, size_t count) {
  kvcache_hidden_rows rows;
  rows.data = hidden[first];
  rows.dtype = KVCACHE_F32;
  rows.rows = count;
  rows.width = kHidden;
  rows.row_stride = sizeof hidden[0];
  return rows;
}

static int is_row(const kvcache_hidden_rows* rows, size_t row, size_t expected) {
  const char* data = (const char*)rows->data + (ptrdiff_t)row * rows->row_stride;
  return rows->dtype == KVCACHE_F32 && rows->width == kHidden &&
         memcmp(data, hidden[expected], sizeof hidden[0]) == 0;
}

/* A sequence of `count` tokens, all but the last of which have run. */
static int make_sequence(kvcache_cache* cache, const int32_t* tokens, size_t count,
                         kvcache_sequence** out) {
  OK(kvcache_sequence_open(cache, tokens, count, NULL, NULL, out));
  return toy_run(*out, tokens, count - 1);
}

/* Runs a session's rows; what the rows hold does not matter here. */
static int fill_verify(kvcache_verify* verify) {
  static toy_rows rows;
  kvcache_run_rows run = {.struct_size = sizeof run};
  kvcache_rows components[2];
  void* state = NULL;
  uint64_t bytes = 0;
  size_t i;
  OK(kvcache_verify_rows(verify, &run));
  for (i = 0; i < run.rows; ++i) OK(kvcache_verify_state(verify, i, 1, TOY_STATE, &state, &bytes));
  toy_components(&rows, 0, run.rows, components);
  OK(kvcache_verify_write(verify, 0, components, 2));
  return 0;
}

/* The rows of a prompt in two chunks, read once the positions are complete. */
static int capture_test(kvcache_cache* cache, const kvcache_hidden_options* options) {
  const int32_t tokens[6] = {1, 2, 3, 4, 5, 6};
  kvcache_capture_state state = {.struct_size = sizeof state};
  kvcache_stats stats = {.struct_size = sizeof stats};
  kvcache_hidden_rows rows = hidden_rows(0, 3), out = hidden_rows(0, 0);
  kvcache_hidden_capture* capture = NULL;
  kvcache_sequence *sequence = NULL, *other = NULL;
  uint64_t kept = 9;
  OK(kvcache_hidden_capture_create(options, &capture));
  OK(kvcache_hidden_capture_read(capture, &state));
  CHECK(state.captured == 0 && state.bytes == 4 * sizeof hidden[0]);
  OK(kvcache_cache_stats(cache, &stats));
  CHECK(stats.reserved_bytes == state.bytes);
  OK(kvcache_sequence_open(cache, tokens, 6, NULL, NULL, &sequence));
  CHECK(kvcache_hidden_capture_write(capture, 0, &rows, &kept) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_hidden_capture_begin(capture, sequence));
  CHECK(kvcache_hidden_capture_write(capture, 1, &rows, &kept) == KVCACHE_INVALID_ARGUMENT);
  rows.dtype = KVCACHE_F16;
  CHECK(kvcache_hidden_capture_write(capture, 0, &rows, &kept) == KVCACHE_INVALID_ARGUMENT);
  rows.dtype = (kvcache_dtype)55;
  CHECK(kvcache_hidden_capture_write(capture, 0, &rows, &kept) == KVCACHE_INVALID_ARGUMENT);
  rows.dtype = KVCACHE_F32;
  rows.data = NULL;
  CHECK(kvcache_hidden_capture_write(capture, 0, &rows, &kept) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kept == 9);
  rows.data = hidden[0];
  OK(kvcache_hidden_capture_write(capture, 0, &rows, &kept));
  CHECK(kept == 3);
  CHECK(kvcache_hidden_capture_rows(capture, &out) == KVCACHE_INVALID_ARGUMENT); /* not run yet */
  CHECK(strstr(kvcache_last_error(), "advance() it first") != NULL && out.rows == 0);
  CHECK(toy_run(sequence, tokens, 5) == 0);
  rows = hidden_rows(3, 2);
  OK(kvcache_hidden_capture_write(capture, 3, &rows, &kept));
  CHECK(kept == 1); /* as far as there is room */
  OK(kvcache_hidden_capture_rows(capture, &out));
  CHECK(out.rows == 4 && is_row(&out, 0, 0) && is_row(&out, 3, 3));
  OK(kvcache_sequence_open(cache, tokens, 1, NULL, NULL, &other));
  CHECK(kvcache_hidden_capture_begin(capture, other) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_hidden_capture_consume(capture));
  OK(kvcache_hidden_capture_read(capture, &state));
  CHECK(state.captured == 0 && state.position == 5);
  OK(kvcache_hidden_capture_release(capture));
  OK(kvcache_hidden_capture_begin(capture, other));
  kvcache_sequence_destroy(other);
  CHECK(kvcache_hidden_capture_rows(capture, &out) == KVCACHE_INVALID_ARGUMENT);
  kvcache_sequence_destroy(sequence);
  kvcache_hidden_capture_destroy(capture);
  OK(kvcache_cache_stats(cache, &stats));
  CHECK(stats.reserved_bytes == 0);
  return 0;
}

/* A band of a verify's rows, of which the verdict says how many count; an accept stash after it. */
static int bands_and_stash_test(kvcache_cache* cache, const kvcache_hidden_options* options) {
  const int32_t prompt[3] = {7, 8, 9}, drafts[2] = {10, 11}, offsets[2] = {1, 4};
  const int32_t negative[2] = {-1, 2};
  const uint64_t row[1] = {5}, catch_up[2] = {2, 3}, two[1] = {2}, outside[1] = {kRows};
  const kvcache_hidden_rows rows = hidden_rows(0, kRows);
  kvcache_hidden_rows out = hidden_rows(0, 0);
  kvcache_hidden_bands* bands = NULL;
  kvcache_accept_stash* stash = NULL;
  kvcache_sequence *sequence = NULL, *missing = NULL;
  kvcache_verify* verify = NULL;
  uint64_t length = 0;
  CHECK(make_sequence(cache, prompt, 3, &sequence) == 0);
  OK(kvcache_hidden_bands_create(options, 2, &bands));
  CHECK(kvcache_accept_stash_create(options, 5, &stash) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_accept_stash_create(options, 2, &stash));
  CHECK(kvcache_hidden_bands_store(bands, &sequence, 1, &rows, offsets) ==
        KVCACHE_INVALID_ARGUMENT); /* no verify */
  OK(kvcache_sequence_begin_verify(sequence, drafts, 2, NULL, &verify));
  CHECK(kvcache_hidden_bands_store(bands, &sequence, 1, &rows, negative) ==
        KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_hidden_bands_store(bands, &missing, 1, &rows, offsets) == KVCACHE_INVALID_ARGUMENT);
  CHECK(strcmp(kvcache_last_error(), "sequences[0] is NULL") == 0);
  OK(kvcache_hidden_bands_store(bands, &sequence, 1, &rows, offsets));
  CHECK(kvcache_hidden_bands_accepted(bands, 0, &out) == KVCACHE_INVALID_ARGUMENT); /* open */
  CHECK(kvcache_accept_stash_store(stash, &sequence, 1, &rows, row, NULL, 0, NULL) ==
        KVCACHE_INVALID_ARGUMENT);
  CHECK(fill_verify(verify) == 0);
  OK(kvcache_verify_commit(verify, 2, &length));
  kvcache_verify_destroy(verify);
  OK(kvcache_hidden_bands_accepted(bands, 0, &out));
  CHECK(out.rows == 2 && is_row(&out, 0, 1) && is_row(&out, 1, 2));
  CHECK(kvcache_hidden_bands_accepted(bands, 1, &out) == KVCACHE_INVALID_ARGUMENT);

  CHECK(kvcache_accept_stash_store(stash, &sequence, 1, &rows, outside, NULL, 0, NULL) ==
        KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_accept_stash_store(stash, &sequence, 1, &rows, row, catch_up, 1, two) ==
        KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_accept_stash_store(stash, &sequence, 1, &rows, row, catch_up, 2, NULL) ==
        KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_accept_stash_store(stash, &sequence, 1, &rows, row, catch_up, 2, two));
  OK(kvcache_accept_stash_rows(stash, 1, &out));
  CHECK(out.rows == 1 && is_row(&out, 0, 5));
  OK(kvcache_accept_stash_row(stash, 0, &out));
  CHECK(is_row(&out, 0, 5));
  OK(kvcache_accept_stash_catch_up(stash, 0, &out));
  CHECK(out.rows == 2 && is_row(&out, 0, 2) && is_row(&out, 1, 3));
  CHECK(kvcache_accept_stash_rows(stash, 2, &out) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_accept_stash_row(stash, UINT64_MAX, &out) == KVCACHE_INVALID_ARGUMENT);

  /* Both end with the next verify, each with an error that says so. */
  OK(kvcache_sequence_extend(sequence, drafts, 1, NULL, 0));
  OK(kvcache_sequence_begin_verify(sequence, drafts, 1, NULL, &verify));
  CHECK(kvcache_accept_stash_row(stash, 0, &out) == KVCACHE_INVALID_ARGUMENT);
  CHECK(strstr(kvcache_last_error(), "next verify of its sequence began") != NULL);
  CHECK(kvcache_hidden_bands_accepted(bands, 0, &out) == KVCACHE_INVALID_ARGUMENT);
  kvcache_verify_destroy(verify);
  kvcache_sequence_destroy(sequence);
  CHECK(kvcache_accept_stash_row(stash, 0, &out) == KVCACHE_INVALID_ARGUMENT);
  CHECK(strstr(kvcache_last_error(), "sequence was closed") != NULL);
  kvcache_accept_stash_destroy(stash);
  kvcache_hidden_bands_destroy(bands);
  return 0;
}

static int drafts_test(kvcache_cache* cache) {
  const int32_t prompt[2] = {1, 2}, proposed[3] = {30, 31, 32};
  const float sure[3] = {1, 0.5f, 0.25f}, wrong[3] = {1, 2, 0};
  int32_t out[4] = {0, 0, 0, 0};
  float confidences[4] = {0, 0, 0, 0};
  size_t count = 9, confident = 9;
  uint64_t pending = 9;
  kvcache_drafts* drafts = NULL;
  kvcache_sequence *sequence = NULL, *second = NULL;
  CHECK(kvcache_drafts_create(1, 0, &drafts) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_drafts_create(UINT64_MAX, 2, &drafts) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_drafts_create(1, 4, &drafts));
  CHECK(make_sequence(cache, prompt, 2, &sequence) == 0);
  CHECK(make_sequence(cache, prompt, 2, &second) == 0);
  CHECK(kvcache_drafts_put(drafts, sequence, proposed, 3, wrong) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_drafts_put(drafts, sequence, proposed, 3, sure));
  CHECK(kvcache_drafts_put(drafts, second, proposed, 1, NULL) == KVCACHE_OUT_OF_CAPACITY);
  OK(kvcache_drafts_pending(drafts, sequence, &pending));
  CHECK(pending == 3);
  CHECK(kvcache_drafts_take(drafts, sequence, out, NULL, 3, &count, &confident) ==
        KVCACHE_INVALID_ARGUMENT);
  CHECK(strcmp(kvcache_last_error(), "a sequence has up to 4 drafts, out has room for 3") == 0);
  CHECK(count == 9);
  OK(kvcache_drafts_take(drafts, sequence, out, confidences, 4, &count, &confident));
  CHECK(count == 3 && memcmp(out, proposed, sizeof proposed) == 0);
  CHECK(confident == 3 && memcmp(confidences, sure, sizeof sure) == 0);
  OK(kvcache_drafts_take(drafts, sequence, out, NULL, 4, &count, &confident));
  CHECK(count == 0 && confident == 0);
  OK(kvcache_drafts_put_back(drafts, sequence));
  CHECK(kvcache_drafts_put_back(drafts, sequence) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_drafts_clear(drafts, sequence));
  OK(kvcache_drafts_pending(drafts, sequence, &pending));
  CHECK(pending == 0);
  OK(kvcache_drafts_put(drafts, sequence, proposed, 2, NULL));
  OK(kvcache_drafts_take(drafts, sequence, out, confidences, 4, &count, &confident));
  CHECK(count == 2 && confident == 0);
  OK(kvcache_drafts_put_back(drafts, sequence));
  CHECK(toy_run(sequence, prompt, 2) == 0); /* it moves */
  CHECK(kvcache_drafts_take(drafts, sequence, out, NULL, 4, &count, &confident) ==
        KVCACHE_INVALID_ARGUMENT);
  kvcache_sequence_destroy(sequence);
  OK(kvcache_drafts_put(drafts, second, proposed, 1, NULL));
  kvcache_drafts_destroy(drafts);
  kvcache_sequence_destroy(second);
  return 0;
}

/* Drafts from the history of a sequence: alone, and of several by one call. */
static int lookup_test(void) {
  const int32_t history[8] = {1, 2, 3, 4, 5, 1, 2, 3}, nothing[3] = {1, 2, 3};
  const int32_t* const histories[2] = {history, nothing};
  const size_t lengths[2] = {8, 3};
  const uint64_t most[2] = {3, 3}, accepted[2] = {1, 0}, never = 0;
  kvcache_lookup_options options = {.struct_size = sizeof options, .max_drafts = 4};
  kvcache_lookup_state state = {.struct_size = sizeof state};
  kvcache_lookup* lookups[2] = {NULL, NULL};
  kvcache_lookup* missing = NULL;
  int32_t out[8];
  uint64_t counts[2] = {9, 9};
  size_t count = 9;
  options.occurrence = (kvcache_occurrence)3;
  CHECK(kvcache_lookup_create(&options, &missing) == KVCACHE_INVALID_ARGUMENT);
  options.occurrence = KVCACHE_OCCURRENCE_LATEST;
  options.min_match = 5; /* more than max_match, which is 4 */
  CHECK(kvcache_lookup_create(&options, &missing) == KVCACHE_INVALID_ARGUMENT);
  options.min_match = 0;
  options.max_pause = &never;
  OK(kvcache_lookup_create(&options, &lookups[0]));
  OK(kvcache_lookup_create(NULL, &lookups[1]));
  OK(kvcache_lookup_propose(lookups[0], history, 8, NULL, out, 2, &count));
  CHECK(count == 2 && out[0] == 4 && out[1] == 5);
  CHECK(kvcache_lookup_propose(lookups[0], history, 8, NULL, out, 2, &count) ==
        KVCACHE_INVALID_ARGUMENT); /* in flight */
  OK(kvcache_lookup_read(lookups[0], &state));
  CHECK(state.observed == 8 && state.in_flight == 2 && state.entries > 0 && state.bytes > 0);
  CHECK(kvcache_lookup_settle(lookups[0], 3) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_lookup_settle(lookups[0], 2));
  CHECK(kvcache_lookup_settle(lookups[0], 0) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_lookup_truncate(lookups[0], 2));
  OK(kvcache_lookup_read(lookups[0], &state));
  CHECK(state.observed == 2);
  OK(kvcache_lookup_observe(lookups[0], history, 8));
  OK(kvcache_lookup_find(lookups[0], history, 8, out, 8, &count));
  CHECK(count == 5 && out[0] == 4 && out[4] == 3);

  CHECK(kvcache_lookup_propose_batch(lookups, 2, histories, lengths, most, out, 5, counts) ==
        KVCACHE_INVALID_ARGUMENT);
  CHECK(strcmp(kvcache_last_error(), "there may be 6 drafts, out has room for 5") == 0);
  CHECK(kvcache_lookup_propose_batch(&missing, 1, histories, lengths, most, out, 8, counts) ==
        KVCACHE_INVALID_ARGUMENT);
  CHECK(counts[0] == 9);
  OK(kvcache_lookup_propose_batch(lookups, 2, histories, lengths, most, out, 6, counts));
  CHECK(counts[0] == 3 && counts[1] == 0 && out[2] == 1);
  OK(kvcache_lookup_settle_batch(lookups, 2, accepted));
  CHECK(kvcache_lookup_settle_batch(lookups, 2, accepted) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_lookup_propose(lookups[0], history, 8, NULL, out, 8, &count));
  CHECK(count > 0);
  OK(kvcache_lookup_abandon(lookups[0]));
  OK(kvcache_lookup_read(lookups[0], &state));
  CHECK(state.in_flight == 0 && state.pause == 0);
  kvcache_lookup_destroy(lookups[0]);
  kvcache_lookup_destroy(lookups[1]);
  return 0;
}

/* What a finished sequence said is found by later ones of its scope alone. */
static int scope_test(void) {
  const int32_t said[6] = {10, 11, 12, 13, 14, 15}, history[3] = {10, 11, 12}, bad[1] = {-1};
  const kvcache_lookup_cache_options small = {
      .struct_size = sizeof small, .memory_bytes = 1 << 16, .scope_bytes = 1 << 14};
  const kvcache_lookup_cache_options wrong = {.struct_size = sizeof wrong, .scope_bytes = 1};
  kvcache_lookup_key key = {.struct_size = sizeof key, .model = {"m", 1}, .tenant = {"a", 1}};
  kvcache_lookup_cache_state state = {.struct_size = sizeof state};
  kvcache_lookup_cache* cache = NULL;
  kvcache_lookup_scope *scope = NULL, *other = NULL;
  kvcache_lookup* lookup = NULL;
  int32_t out[4];
  size_t count = 9;
  uint64_t tokens = 9;
  CHECK(kvcache_lookup_cache_create(&wrong, &cache) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_lookup_cache_create(&small, &cache));
  OK(kvcache_lookup_create(NULL, &lookup));
  OK(kvcache_lookup_cache_scope(cache, &key, &scope));
  key.tenant.data = "b";
  OK(kvcache_lookup_cache_scope(cache, &key, &other));
  key.tenant.data = NULL;
  CHECK(kvcache_lookup_cache_drop(cache, &key) == KVCACHE_INVALID_ARGUMENT);
  key.tenant.data = "a";
  CHECK(kvcache_lookup_scope_insert(scope, bad, 1) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_lookup_scope_insert(scope, said, 6));
  OK(kvcache_lookup_cache_read(cache, &state));
  CHECK(state.scopes == 1 && state.bytes == 1 << 14);
  OK(kvcache_lookup_scope_tokens(scope, &tokens));
  CHECK(tokens >= 6);
  OK(kvcache_lookup_scope_find(scope, history, 3, out, 2, &count));
  CHECK(count == 2 && out[0] == 13 && out[1] == 14);
  OK(kvcache_lookup_scope_find(other, history, 3, out, 2, &count));
  CHECK(count == 0);
  OK(kvcache_lookup_propose(lookup, history, 3, scope, out, 4, &count));
  CHECK(count == 2 && out[0] == 13 && out[1] == 14); /* the first window */
  OK(kvcache_lookup_settle(lookup, 2));
  OK(kvcache_lookup_cache_drop(cache, &key));
  kvcache_lookup_cache_destroy(cache); /* before its scopes: allowed */
  OK(kvcache_lookup_scope_tokens(scope, &tokens));
  CHECK(tokens == 0);
  OK(kvcache_lookup_propose(lookup, history, 3, scope, out, 4, &count));
  CHECK(count == 0);
  kvcache_lookup_destroy(lookup);
  kvcache_lookup_scope_destroy(scope);
  kvcache_lookup_scope_destroy(other);
  return 0;
}

int main(void) {
  const kvcache_options cache_options = toy_options();
  const kvcache_dtype f32 = KVCACHE_F32, i8 = KVCACHE_I8;
  kvcache_hidden_options options = {
      .struct_size = sizeof options, .rows = 4, .width = kHidden, .dtype = &i8};
  kvcache_hidden_capture* capture = NULL;
  kvcache_cache* cache = NULL;
  size_t i;
  for (i = 0; i < kRows * kHidden; ++i) (&hidden[0][0])[i] = (float)i;
  OK(toy_cache(&cache_options, &cache));
  CHECK(kvcache_hidden_capture_create(&options, &capture) == KVCACHE_INVALID_ARGUMENT);
  options.dtype = &f32;
  options.rows = (uint64_t)1 << 30;
  options.cache = cache;
  CHECK(kvcache_hidden_capture_create(&options, &capture) == KVCACHE_OUT_OF_CAPACITY);
  options.rows = 4;
  CHECK(capture_test(cache, &options) == 0);
  CHECK(bands_and_stash_test(cache, &options) == 0);
  CHECK(drafts_test(cache) == 0);
  CHECK(lookup_test() == 0);
  CHECK(scope_test() == 0);
  kvcache_cache_destroy(cache);
  puts("c_draft_test passed");
  return 0;
}
