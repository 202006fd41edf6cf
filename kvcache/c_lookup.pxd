"""Declarations of kvcache/c_lookup.h, prompt lookup: cimport them from ``kvcache.c``."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from kvcache.c_base cimport kvcache_bytes, kvcache_status

cdef extern from "kvcache/c_lookup.h" nogil:
    ctypedef enum kvcache_occurrence:
        KVCACHE_OCCURRENCE_LATEST
        KVCACHE_OCCURRENCE_EARLIEST
        KVCACHE_OCCURRENCE_REPEATING

    ctypedef struct kvcache_lookup:
        pass

    ctypedef struct kvcache_lookup_cache:
        pass

    ctypedef struct kvcache_lookup_scope:
        pass

    ctypedef struct kvcache_lookup_options:
        size_t struct_size
        uint64_t min_match
        uint64_t max_match
        uint64_t max_drafts
        uint64_t history_tokens
        const uint64_t* max_pause
        kvcache_occurrence occurrence
        uint32_t reserve

    ctypedef struct kvcache_lookup_state:
        size_t struct_size
        uint64_t observed
        uint64_t window
        uint64_t pause
        uint64_t in_flight
        uint64_t entries
        uint64_t bytes

    kvcache_status kvcache_lookup_create(
        const kvcache_lookup_options* options, kvcache_lookup** out
    )
    void kvcache_lookup_destroy(kvcache_lookup* lookup)
    kvcache_status kvcache_lookup_observe(
        kvcache_lookup* lookup, const int32_t* history, size_t history_count
    )
    kvcache_status kvcache_lookup_truncate(kvcache_lookup* lookup, uint64_t length)
    kvcache_status kvcache_lookup_find(
        const kvcache_lookup* lookup, const int32_t* history, size_t history_count, int32_t* out,
        size_t capacity, size_t* out_count
    )
    kvcache_status kvcache_lookup_propose(
        kvcache_lookup* lookup, const int32_t* history, size_t history_count,
        const kvcache_lookup_scope* shared, int32_t* out, size_t capacity, size_t* out_count
    )
    kvcache_status kvcache_lookup_settle(kvcache_lookup* lookup, uint64_t accepted)
    kvcache_status kvcache_lookup_abandon(kvcache_lookup* lookup)
    kvcache_status kvcache_lookup_propose_batch(
        kvcache_lookup* const * lookups, size_t count, const int32_t* const * histories,
        const size_t* history_counts, const uint64_t* most, int32_t* out, size_t capacity,
        uint64_t* out_counts
    )
    kvcache_status kvcache_lookup_settle_batch(
        kvcache_lookup* const * lookups, size_t count, const uint64_t* accepted
    )
    kvcache_status kvcache_lookup_read(const kvcache_lookup* lookup, kvcache_lookup_state* out)

    ctypedef struct kvcache_lookup_cache_options:
        size_t struct_size
        uint64_t memory_bytes
        uint64_t scope_bytes
        uint64_t match

    ctypedef struct kvcache_lookup_key:
        size_t struct_size
        kvcache_bytes model
        kvcache_bytes tokenizer
        kvcache_bytes adapter
        kvcache_bytes tenant

    ctypedef struct kvcache_lookup_cache_state:
        size_t struct_size
        uint64_t scopes
        uint64_t bytes

    kvcache_status kvcache_lookup_cache_create(
        const kvcache_lookup_cache_options* options, kvcache_lookup_cache** out
    )
    void kvcache_lookup_cache_destroy(kvcache_lookup_cache* cache)
    kvcache_status kvcache_lookup_cache_scope(
        const kvcache_lookup_cache* cache, const kvcache_lookup_key* key, kvcache_lookup_scope** out
    )
    kvcache_status kvcache_lookup_cache_drop(
        kvcache_lookup_cache* cache, const kvcache_lookup_key* key
    )
    kvcache_status kvcache_lookup_cache_read(
        const kvcache_lookup_cache* cache, kvcache_lookup_cache_state* out
    )
    void kvcache_lookup_scope_destroy(kvcache_lookup_scope* scope)
    kvcache_status kvcache_lookup_scope_insert(
        kvcache_lookup_scope* scope, const int32_t* tokens, size_t token_count
    )
    kvcache_status kvcache_lookup_scope_find(
        const kvcache_lookup_scope* scope, const int32_t* history, size_t history_count,
        int32_t* out, size_t capacity, size_t* out_count
    )
    kvcache_status kvcache_lookup_scope_tokens(const kvcache_lookup_scope* scope, uint64_t* out)
