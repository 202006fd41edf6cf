"""Declarations of kvcache/c_verify.h, speculative decoding: cimport them from ``kvcache.c``."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kvcache.c_base cimport (
    kvcache_batch,
    kvcache_cache,
    kvcache_rows,
    kvcache_sequence,
    kvcache_status,
)

cdef extern from "kvcache/c_verify.h" nogil:
    ctypedef enum kvcache_verify_strategy:
        KVCACHE_STEPS
        KVCACHE_REPLAY
        KVCACHE_CARRY

    ctypedef struct kvcache_verify:
        pass

    ctypedef struct kvcache_batch_verify:
        pass

    ctypedef struct kvcache_tree:
        pass

    ctypedef struct kvcache_verify_table:
        pass

    ctypedef struct kvcache_carry_table:
        pass

    ctypedef struct kvcache_verify_options:
        size_t struct_size
        const int32_t* parents
        size_t parent_count
        kvcache_verify_strategy strategy
        kvcache_verify_table* table
        kvcache_carry_table* carry

    ctypedef struct kvcache_run_rows:
        size_t struct_size
        size_t rows
        const int32_t* tokens
        const int64_t* positions
        size_t sequences
        const int32_t* offsets
        const int64_t* starts

    ctypedef struct kvcache_stash_inputs:
        size_t struct_size
        const kvcache_rows* gate
        const kvcache_rows* left
        const kvcache_rows* right
        const kvcache_rows* window

    ctypedef struct kvcache_pending_rows:
        size_t struct_size
        uint64_t rows
        const void* gate
        uint64_t gate_elements
        const void* left
        uint64_t left_elements
        const void* right
        uint64_t right_elements

    kvcache_status kvcache_sequence_begin_verify(
        kvcache_sequence* sequence, const int32_t* drafts, size_t draft_count,
        const kvcache_verify_options* options, kvcache_verify** out
    )
    void kvcache_verify_destroy(kvcache_verify* verify)
    kvcache_status kvcache_verify_rows(const kvcache_verify* verify, kvcache_run_rows* out)
    kvcache_status kvcache_verify_write(
        kvcache_verify* verify, int32_t layer, const kvcache_rows* components,
        size_t component_count
    )
    kvcache_status kvcache_verify_write_records(
        kvcache_verify* verify, int32_t layer, const char* name, const kvcache_rows* rows
    )
    kvcache_status kvcache_verify_state(
        kvcache_verify* verify, uint64_t row, int32_t layer, const char* name, void** out_data,
        uint64_t* out_bytes
    )
    kvcache_status kvcache_verify_live(
        const kvcache_verify* verify, int32_t layer, const char* name, const void** out_data,
        uint64_t* out_bytes
    )
    kvcache_status kvcache_verify_pending(
        const kvcache_verify* verify, int32_t layer, const char* name, kvcache_pending_rows* out
    )
    kvcache_status kvcache_verify_stash(
        kvcache_verify* verify, int32_t layer, const char* name, const kvcache_stash_inputs* inputs
    )
    kvcache_status kvcache_verify_commit(
        kvcache_verify* verify, uint64_t accepted, uint64_t* out_length
    )
    kvcache_status kvcache_verify_commit_path(
        kvcache_verify* verify, const int32_t* rows, size_t row_count, uint64_t* out_length
    )
    kvcache_status kvcache_verify_rollback(kvcache_verify* verify)
    kvcache_status kvcache_batch_begin_verify(
        kvcache_batch* batch, const int32_t* drafts, size_t draft_count, const uint64_t* counts,
        const kvcache_verify_options* options, kvcache_batch_verify** out
    )
    void kvcache_batch_verify_destroy(kvcache_batch_verify* verify)
    kvcache_status kvcache_batch_verify_rows(
        const kvcache_batch_verify* verify, kvcache_run_rows* out
    )
    kvcache_status kvcache_batch_verify_write(
        kvcache_batch_verify* verify, int32_t layer, const kvcache_rows* components,
        size_t component_count
    )
    kvcache_status kvcache_batch_verify_write_records(
        kvcache_batch_verify* verify, int32_t layer, const char* name, const kvcache_rows* rows
    )
    kvcache_status kvcache_batch_verify_state(
        kvcache_batch_verify* verify, size_t sequence, uint64_t row, int32_t layer,
        const char* name, void** out_data, uint64_t* out_bytes
    )
    kvcache_status kvcache_batch_verify_live(
        const kvcache_batch_verify* verify, size_t sequence, int32_t layer, const char* name,
        const void** out_data, uint64_t* out_bytes
    )
    kvcache_status kvcache_batch_verify_pending(
        const kvcache_batch_verify* verify, size_t sequence, int32_t layer, const char* name,
        kvcache_pending_rows* out
    )
    kvcache_status kvcache_batch_verify_stash(
        kvcache_batch_verify* verify, int32_t layer, const char* name,
        const kvcache_stash_inputs* inputs
    )
    kvcache_status kvcache_batch_verify_commit(
        kvcache_batch_verify* verify, const uint64_t* accepted, uint32_t in_place,
        uint64_t* out_lengths
    )
    kvcache_status kvcache_batch_verify_commit_paths(
        kvcache_batch_verify* verify, const int32_t* rows, size_t row_count, const uint64_t* counts,
        uint32_t in_place, uint64_t* out_lengths
    )
    kvcache_status kvcache_batch_verify_rollback(kvcache_batch_verify* verify)
    kvcache_status kvcache_verify_table_create(
        const kvcache_cache* cache, uint64_t batch_rows, uint64_t tables, kvcache_verify_table** out
    )
    void kvcache_verify_table_destroy(kvcache_verify_table* table)
    kvcache_status kvcache_verify_table_pointers(
        const kvcache_verify_table* table, int32_t layer, const char* name, const uint64_t** out
    )
    kvcache_status kvcache_carry_table_create(
        const kvcache_cache* cache, uint64_t batch_rows, kvcache_carry_table** out
    )
    void kvcache_carry_table_destroy(kvcache_carry_table* table)
    kvcache_status kvcache_carry_table_layer(
        const kvcache_carry_table* table, int32_t layer, const uint64_t** out_stashes,
        uint32_t** out_engaged
    )
    kvcache_status kvcache_carry_table_live(
        const kvcache_carry_table* table, int32_t layer, const char* name, const uint64_t** out
    )
    kvcache_status kvcache_tree_create(const int32_t* parents, size_t nodes, kvcache_tree** out)
    void kvcache_tree_destroy(kvcache_tree* tree)

    ctypedef struct kvcache_tree_nodes:
        size_t struct_size
        size_t nodes
        size_t leaves
        size_t depth
        const int32_t* parents
        const int32_t* depths
        const int32_t* first_child
        const int32_t* next_sibling

    kvcache_status kvcache_tree_read(const kvcache_tree* tree, kvcache_tree_nodes* out)
    kvcache_status kvcache_tree_retrieval_indices(
        const kvcache_tree* tree, int32_t* out, size_t capacity, size_t* out_count
    )
    kvcache_status kvcache_tree_mask(
        const kvcache_tree* tree, uint64_t prefix, uint8_t* out, size_t count
    )
    kvcache_status kvcache_tree_bias(
        const kvcache_tree* tree, uint64_t prefix, float* out, size_t count
    )
    kvcache_status kvcache_tree_packed_mask(
        const kvcache_tree* tree, uint64_t prefix, uint32_t* out, size_t count
    )
    kvcache_status kvcache_tree_accept(
        const kvcache_tree* tree, const int32_t* tokens, const int32_t* picks, int32_t* out,
        size_t capacity, size_t* out_count, int32_t* out_bonus
    )
