# cython: language_level=3, boundscheck=False, wraparound=False
"""The calls of one decode step over the C face, as a per-step fast path in Cython would be."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kvcache.c cimport (
    KVCACHE_F16,
    KVCACHE_OK,
    KVCACHE_PAGED_KV,
    kvcache_batch,
    kvcache_batch_advance_in_place,
    kvcache_batch_block_table,
    kvcache_batch_create,
    kvcache_batch_destroy,
    kvcache_batch_extend,
    kvcache_batch_prepare,
    kvcache_cache,
    kvcache_cache_create,
    kvcache_cache_destroy,
    kvcache_last_error,
    kvcache_options,
    kvcache_sequence,
    kvcache_sequence_advance_in_place,
    kvcache_sequence_destroy,
    kvcache_sequence_open,
    kvcache_sequence_prepare,
    kvcache_state_decl,
    kvcache_status,
)


cdef int check(kvcache_status status) except -1:
    if status != KVCACHE_OK:
        raise RuntimeError(kvcache_last_error().decode())
    return 0


cdef class Batch:
    """Sequences of one cache of one layer, complete up to their prompts."""

    cdef kvcache_cache* cache
    cdef kvcache_sequence** sequences
    cdef kvcache_batch* batch
    cdef size_t count

    def __cinit__(
        self, size_t count, const int32_t[:, ::1] prompts, uint64_t heads, uint64_t width,
        uint64_t memory,
    ):
        cdef uint64_t[2] shape = [heads, width]
        cdef kvcache_state_decl decl
        cdef kvcache_options options
        cdef size_t i
        memset(&decl, 0, sizeof(decl))
        memset(&options, 0, sizeof(options))
        decl.struct_size, options.struct_size = sizeof(decl), sizeof(options)
        decl.id, decl.component = b"k", b"attention.keys"
        decl.kind, decl.dtype, decl.shape, decl.shape_axes = KVCACHE_PAGED_KV, KVCACHE_F16, shape, 2
        options.memory_bytes, options.sequences = memory, count
        check(kvcache_cache_create(&decl, 1, &options, &self.cache))
        self.count = count
        self.sequences = <kvcache_sequence**>calloc(count, sizeof(kvcache_sequence*))
        for i in range(count):
            check(
                kvcache_sequence_open(
                    self.cache, &prompts[i, 0], prompts.shape[1], NULL, NULL, &self.sequences[i]
                )
            )
            check(kvcache_sequence_prepare(self.sequences[i], prompts.shape[1]))
            check(kvcache_sequence_advance_in_place(self.sequences[i], prompts.shape[1]))
        check(kvcache_batch_create(self.sequences, count, &self.batch))

    def __dealloc__(self):
        cdef size_t i
        kvcache_batch_destroy(self.batch)
        for i in range(self.count):
            kvcache_sequence_destroy(self.sequences[i])
        free(self.sequences)
        kvcache_cache_destroy(self.cache)

    def extend(self, const int32_t[::1] tokens):
        cdef kvcache_status status
        with nogil:
            status = kvcache_batch_extend(self.batch, &tokens[0], tokens.shape[0], NULL)
        check(status)

    def prepare(self):
        cdef kvcache_status status
        with nogil:
            status = kvcache_batch_prepare(self.batch, NULL)
        check(status)

    def block_table(self, size_t group):
        cdef kvcache_status status
        cdef const int32_t* table
        cdef size_t columns
        with nogil:
            status = kvcache_batch_block_table(self.batch, group, &table, &columns)
        check(status)
        return <size_t>table

    def advance(self):
        cdef kvcache_status status
        with nogil:
            status = kvcache_batch_advance_in_place(self.batch, NULL)
        check(status)

    def step(self, const int32_t[::1] tokens):
        """All four by one call from Python."""
        cdef kvcache_status status
        cdef const int32_t* table
        cdef size_t columns
        with nogil:
            status = kvcache_batch_extend(self.batch, &tokens[0], tokens.shape[0], NULL)
            if status == KVCACHE_OK:
                status = kvcache_batch_prepare(self.batch, NULL)
            if status == KVCACHE_OK:
                status = kvcache_batch_block_table(self.batch, 0, &table, &columns)
            if status == KVCACHE_OK:
                status = kvcache_batch_advance_in_place(self.batch, NULL)
        check(status)
        return <size_t>table
