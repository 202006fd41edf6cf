/* Speculative decoding: verify sessions, token trees and the tables of kernels; see
 * kvcache/verify.h and batch_verify.h. Conventions: kvcache/c.h. */
#ifndef KVCACHE_C_VERIFY_H
#define KVCACHE_C_VERIFY_H

#include "kvcache/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvcache_verify_strategy KVCACHE_ENUM {
  KVCACHE_STEPS = 0,
  KVCACHE_REPLAY = 1,
  KVCACHE_CARRY = 2
} kvcache_verify_strategy;

typedef struct kvcache_verify kvcache_verify;
typedef struct kvcache_batch_verify kvcache_batch_verify;
typedef struct kvcache_tree kvcache_tree;
typedef struct kvcache_verify_table kvcache_verify_table;
typedef struct kvcache_carry_table kvcache_carry_table;

typedef struct kvcache_verify_options {
  size_t struct_size;
  /* The tree that the drafts form: the parent of each row, -1 of row 0; of a batch those of all
   * sequences, one after the other. NULL: each draft follows the one before it. */
  const int32_t* parents;
  size_t parent_count;
  kvcache_verify_strategy strategy;
  /* Of a batch: where kernels find the state. */
  kvcache_verify_table* table;
  kvcache_carry_table* carry;
} kvcache_verify_options;

/* What to run: the rows of all sequences, one after the other. Valid until the session is
 * destroyed. */
typedef struct kvcache_run_rows {
  size_t struct_size;
  size_t rows;
  const int32_t* tokens;    /* [rows] */
  const int64_t* positions; /* [rows] */
  size_t sequences;
  const int32_t* offsets; /* [sequences + 1]: rows offsets[i]..offsets[i + 1] are sequence i's */
  const int64_t* starts;  /* [sequences]: where row 0 of each is stored */
} kvcache_run_rows;

/* StashInputs in kvcache/verify.h; NULL: not given. */
typedef struct kvcache_stash_inputs {
  size_t struct_size;
  const kvcache_rows* gate;
  const kvcache_rows* left;
  const kvcache_rows* right;
  const kvcache_rows* window;
} kvcache_stash_inputs;

/* PendingRows in kvcache/verify.h: of each kind [rows, elements], contiguous. */
typedef struct kvcache_pending_rows {
  size_t struct_size;
  uint64_t rows;
  const void* gate;
  uint64_t gate_elements;
  const void* left;
  uint64_t left_elements;
  const void* right;
  uint64_t right_elements;
} kvcache_pending_rows;

/* ---- Of one sequence: row 0 is its one known token that has not run -------------------------- */

KVCACHE_API kvcache_status kvcache_sequence_begin_verify(kvcache_sequence* sequence,
                                                         const int32_t* drafts, size_t draft_count,
                                                         const kvcache_verify_options* options,
                                                         kvcache_verify** out);
KVCACHE_API void kvcache_verify_destroy(kvcache_verify* verify); /* rolls back unless committed */
KVCACHE_API kvcache_status kvcache_verify_rows(const kvcache_verify* verify, kvcache_run_rows* out);
KVCACHE_API kvcache_status kvcache_verify_write(kvcache_verify* verify, int32_t layer,
                                                const kvcache_rows* components,
                                                size_t component_count);
KVCACHE_API kvcache_status kvcache_verify_write_records(kvcache_verify* verify, int32_t layer,
                                                        const char* name, const kvcache_rows* rows);
/* A tensor after `row`, to be filled, and that before row 0, to be read only. Valid until the
 * session ends. */
KVCACHE_API kvcache_status kvcache_verify_state(kvcache_verify* verify, uint64_t row, int32_t layer,
                                                const char* name, void** out_data,
                                                uint64_t* out_bytes);
KVCACHE_API kvcache_status kvcache_verify_live(const kvcache_verify* verify, int32_t layer,
                                               const char* name, const void** out_data,
                                               uint64_t* out_bytes);
KVCACHE_API kvcache_status kvcache_verify_pending(const kvcache_verify* verify, int32_t layer,
                                                  const char* name, kvcache_pending_rows* out);
KVCACHE_API kvcache_status kvcache_verify_stash(kvcache_verify* verify, int32_t layer,
                                                const char* name,
                                                const kvcache_stash_inputs* inputs);
/* Keeps the first rows, or those of a path from row 0 on, and gives the sequence's length. */
KVCACHE_API kvcache_status kvcache_verify_commit(kvcache_verify* verify, uint64_t accepted,
                                                 uint64_t* out_length);
KVCACHE_API kvcache_status kvcache_verify_commit_path(kvcache_verify* verify, const int32_t* rows,
                                                      size_t row_count, uint64_t* out_length);
KVCACHE_API kvcache_status kvcache_verify_rollback(kvcache_verify* verify);

/* ---- Of a batch: counts[i] drafts of sequence i, NULL: 1 each -------------------------------- */

KVCACHE_API kvcache_status kvcache_batch_begin_verify(kvcache_batch* batch, const int32_t* drafts,
                                                      size_t draft_count, const uint64_t* counts,
                                                      const kvcache_verify_options* options,
                                                      kvcache_batch_verify** out);
KVCACHE_API void kvcache_batch_verify_destroy(kvcache_batch_verify* verify); /* rolls back unless
                                                                                committed */
KVCACHE_API kvcache_status kvcache_batch_verify_rows(const kvcache_batch_verify* verify,
                                                     kvcache_run_rows* out);
KVCACHE_API kvcache_status kvcache_batch_verify_write(kvcache_batch_verify* verify, int32_t layer,
                                                      const kvcache_rows* components,
                                                      size_t component_count);
KVCACHE_API kvcache_status kvcache_batch_verify_write_records(kvcache_batch_verify* verify,
                                                              int32_t layer, const char* name,
                                                              const kvcache_rows* rows);
KVCACHE_API kvcache_status kvcache_batch_verify_state(kvcache_batch_verify* verify, size_t sequence,
                                                      uint64_t row, int32_t layer, const char* name,
                                                      void** out_data, uint64_t* out_bytes);
KVCACHE_API kvcache_status kvcache_batch_verify_live(const kvcache_batch_verify* verify,
                                                     size_t sequence, int32_t layer,
                                                     const char* name, const void** out_data,
                                                     uint64_t* out_bytes);
KVCACHE_API kvcache_status kvcache_batch_verify_pending(const kvcache_batch_verify* verify,
                                                        size_t sequence, int32_t layer,
                                                        const char* name,
                                                        kvcache_pending_rows* out);
KVCACHE_API kvcache_status kvcache_batch_verify_stash(kvcache_batch_verify* verify, int32_t layer,
                                                      const char* name,
                                                      const kvcache_stash_inputs* inputs);
/* Keeps the first accepted[i] rows of each; 0 leaves it as it was. `in_place`, not 0: kernels have
 * stored the rows. `out_lengths` has room for one number each. */
KVCACHE_API kvcache_status kvcache_batch_verify_commit(kvcache_batch_verify* verify,
                                                       const uint64_t* accepted, uint32_t in_place,
                                                       uint64_t* out_lengths);
/* counts[i] rows of sequence i, numbered from its root, one after the other. */
KVCACHE_API kvcache_status kvcache_batch_verify_commit_paths(kvcache_batch_verify* verify,
                                                             const int32_t* rows, size_t row_count,
                                                             const uint64_t* counts,
                                                             uint32_t in_place,
                                                             uint64_t* out_lengths);
KVCACHE_API kvcache_status kvcache_batch_verify_rollback(kvcache_batch_verify* verify);

/* ---- Tables of addresses for kernels, as large as the plan says: verify_table.h, carry_table.h -
 */

KVCACHE_API kvcache_status kvcache_verify_table_create(const kvcache_cache* cache,
                                                       uint64_t batch_rows, uint64_t tables,
                                                       kvcache_verify_table** out);
KVCACHE_API void kvcache_verify_table_destroy(kvcache_verify_table* table);
/* [tables, batch_rows]. These addresses are valid until the table is destroyed. */
KVCACHE_API kvcache_status kvcache_verify_table_pointers(const kvcache_verify_table* table,
                                                         int32_t layer, const char* name,
                                                         const uint64_t** out);
KVCACHE_API kvcache_status kvcache_carry_table_create(const kvcache_cache* cache,
                                                      uint64_t batch_rows,
                                                      kvcache_carry_table** out);
KVCACHE_API void kvcache_carry_table_destroy(kvcache_carry_table* table);
KVCACHE_API kvcache_status kvcache_carry_table_layer(const kvcache_carry_table* table,
                                                     int32_t layer, const uint64_t** out_stashes,
                                                     uint32_t** out_engaged);
KVCACHE_API kvcache_status kvcache_carry_table_live(const kvcache_carry_table* table, int32_t layer,
                                                    const char* name, const uint64_t** out);

/* ---- Token trees: kvcache/token_tree.h ------------------------------------------------------- */

KVCACHE_API kvcache_status kvcache_tree_create(const int32_t* parents, size_t nodes,
                                               kvcache_tree** out);
KVCACHE_API void kvcache_tree_destroy(kvcache_tree* tree);
/* Nodes and their links, which kernels walk; valid until the tree is destroyed. */
typedef struct kvcache_tree_nodes {
  size_t struct_size;
  size_t nodes;
  size_t leaves;
  size_t depth;           /* of the deepest node; the root's is 0 */
  const int32_t* parents; /* these four [nodes]; -1: none */
  const int32_t* depths;
  const int32_t* first_child;
  const int32_t* next_sibling; /* children of a node ascend */
} kvcache_tree_nodes;

KVCACHE_API kvcache_status kvcache_tree_read(const kvcache_tree* tree, kvcache_tree_nodes* out);
/* The nodes from the root to each leaf, [leaves, depth + 1], padded with -1. */
KVCACHE_API kvcache_status kvcache_tree_retrieval_indices(const kvcache_tree* tree, int32_t* out,
                                                          size_t capacity, size_t* out_count);
/* Masks [nodes, prefix + nodes]: 1 where a row sees a column; 0 and -inf, to be added to scores;
 * bits, 32 columns to a word. `count` is the size of `out` in elements. */
KVCACHE_API kvcache_status kvcache_tree_mask(const kvcache_tree* tree, uint64_t prefix,
                                             uint8_t* out, size_t count);
KVCACHE_API kvcache_status kvcache_tree_bias(const kvcache_tree* tree, uint64_t prefix, float* out,
                                             size_t count);
KVCACHE_API kvcache_status kvcache_tree_packed_mask(const kvcache_tree* tree, uint64_t prefix,
                                                    uint32_t* out, size_t count);
/* The path that the model's choices accept, `tokens` and `picks` of each node, and its token after
 * the last row. */
KVCACHE_API kvcache_status kvcache_tree_accept(const kvcache_tree* tree, const int32_t* tokens,
                                               const int32_t* picks, int32_t* out, size_t capacity,
                                               size_t* out_count, int32_t* out_bonus);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_VERIFY_H */
