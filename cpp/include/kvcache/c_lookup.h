/* Drafts without a draft model, from what a sequence or earlier ones have said; see
 * kvcache/prompt_lookup.h and prompt_lookup_cache.h. Conventions: kvcache/c.h. */
#ifndef KVCACHE_C_LOOKUP_H
#define KVCACHE_C_LOOKUP_H

#include "kvcache/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which of several earlier occurrences is continued; see Occurrence. */
typedef enum kvcache_occurrence KVCACHE_ENUM {
  KVCACHE_OCCURRENCE_LATEST = 0,
  KVCACHE_OCCURRENCE_EARLIEST = 1,
  KVCACHE_OCCURRENCE_REPEATING = 2
} kvcache_occurrence;

typedef struct kvcache_lookup kvcache_lookup;
typedef struct kvcache_lookup_cache kvcache_lookup_cache;
typedef struct kvcache_lookup_scope kvcache_lookup_scope;

/* ---- Of one sequence ------------------------------------------------------------------------ */

typedef struct kvcache_lookup_options {
  size_t struct_size;
  uint64_t min_match;        /* tokens that must be equal; 0: 2 */
  uint64_t max_match;        /* that are compared; 0: 4 */
  uint64_t max_drafts;       /* of one proposal; 0: 16 */
  uint64_t history_tokens;   /* whose n-grams are kept at once; 0: 131072 */
  const uint64_t* max_pause; /* rounds without a proposal after misses; NULL: 32 */
  kvcache_occurrence occurrence;
  uint32_t reserve; /* not 0: takes the memory for all of history_tokens now */
} kvcache_lookup_options;

typedef struct kvcache_lookup_state {
  size_t struct_size;
  uint64_t observed;  /* tokens of the history that are indexed */
  uint64_t window;    /* most tokens of the next proposal */
  uint64_t pause;     /* rounds that will pass without one */
  uint64_t in_flight; /* drafts that are not settled */
  uint64_t entries;
  uint64_t bytes;
} kvcache_lookup_state;

/* `history` is all tokens of the sequence, the last one included. `out` gets as many drafts as
 * there are, up to `capacity`, and `out_count` their number; 0 without a match. */
KVCACHE_API kvcache_status kvcache_lookup_create(const kvcache_lookup_options* options,
                                                 kvcache_lookup** out);
KVCACHE_API void kvcache_lookup_destroy(kvcache_lookup* lookup);
KVCACHE_API kvcache_status kvcache_lookup_observe(kvcache_lookup* lookup, const int32_t* history,
                                                  size_t history_count);
KVCACHE_API kvcache_status kvcache_lookup_truncate(kvcache_lookup* lookup, uint64_t length);
KVCACHE_API kvcache_status kvcache_lookup_find(const kvcache_lookup* lookup, const int32_t* history,
                                               size_t history_count, int32_t* out, size_t capacity,
                                               size_t* out_count);
/* `shared` is looked into when the history has no match; NULL: nothing else is. */
KVCACHE_API kvcache_status kvcache_lookup_propose(kvcache_lookup* lookup, const int32_t* history,
                                                  size_t history_count,
                                                  const kvcache_lookup_scope* shared, int32_t* out,
                                                  size_t capacity, size_t* out_count);
KVCACHE_API kvcache_status kvcache_lookup_settle(kvcache_lookup* lookup, uint64_t accepted);
KVCACHE_API kvcache_status kvcache_lookup_abandon(kvcache_lookup* lookup);
/* Of `count` lookups, for all or for none: up to most[i] drafts of each, one after the other, and
 * their numbers to out_counts[i]. `capacity` holds the most that there can be, which max_drafts of
 * each limits too; else KVCACHE_INVALID_ARGUMENT, and nothing is proposed. */
KVCACHE_API kvcache_status kvcache_lookup_propose_batch(kvcache_lookup* const* lookups,
                                                        size_t count,
                                                        const int32_t* const* histories,
                                                        const size_t* history_counts,
                                                        const uint64_t* most, int32_t* out,
                                                        size_t capacity, uint64_t* out_counts);
/* Of those that have drafts in flight; accepted[i] of the others is 0. */
KVCACHE_API kvcache_status kvcache_lookup_settle_batch(kvcache_lookup* const* lookups, size_t count,
                                                       const uint64_t* accepted);
KVCACHE_API kvcache_status kvcache_lookup_read(const kvcache_lookup* lookup,
                                               kvcache_lookup_state* out);

/* ---- Of finished sequences, by scope -------------------------------------------------------- */

typedef struct kvcache_lookup_cache_options {
  size_t struct_size;
  uint64_t memory_bytes; /* of all scopes; 0: 64 MiB */
  uint64_t scope_bytes;  /* of one; 0: 1 MiB */
  uint64_t match;        /* tokens of a match; 0: 3 */
} kvcache_lookup_cache_options;

/* Sequences share n-grams when all four are equal. */
typedef struct kvcache_lookup_key {
  size_t struct_size;
  kvcache_bytes model;
  kvcache_bytes tokenizer;
  kvcache_bytes adapter;
  kvcache_bytes tenant;
} kvcache_lookup_key;

typedef struct kvcache_lookup_cache_state {
  size_t struct_size;
  uint64_t scopes; /* that hold tokens */
  uint64_t bytes;
} kvcache_lookup_cache_state;

KVCACHE_API kvcache_status kvcache_lookup_cache_create(const kvcache_lookup_cache_options* options,
                                                       kvcache_lookup_cache** out);
KVCACHE_API void kvcache_lookup_cache_destroy(kvcache_lookup_cache* cache); /* scopes stay */
/* A name for one scope, which stays valid when the scope is dropped: it is empty then. */
KVCACHE_API kvcache_status kvcache_lookup_cache_scope(const kvcache_lookup_cache* cache,
                                                      const kvcache_lookup_key* key,
                                                      kvcache_lookup_scope** out);
KVCACHE_API kvcache_status kvcache_lookup_cache_drop(kvcache_lookup_cache* cache,
                                                     const kvcache_lookup_key* key);
KVCACHE_API kvcache_status kvcache_lookup_cache_read(const kvcache_lookup_cache* cache,
                                                     kvcache_lookup_cache_state* out);
KVCACHE_API void kvcache_lookup_scope_destroy(kvcache_lookup_scope* scope);
KVCACHE_API kvcache_status kvcache_lookup_scope_insert(kvcache_lookup_scope* scope,
                                                       const int32_t* tokens, size_t token_count);
KVCACHE_API kvcache_status kvcache_lookup_scope_find(const kvcache_lookup_scope* scope,
                                                     const int32_t* history, size_t history_count,
                                                     int32_t* out, size_t capacity,
                                                     size_t* out_count);
KVCACHE_API kvcache_status kvcache_lookup_scope_tokens(const kvcache_lookup_scope* scope,
                                                       uint64_t* out);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_LOOKUP_H */
