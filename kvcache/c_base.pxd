"""Declarations of kvcache/c_base.h, what the others share: cimport them from ``kvcache.c``."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "kvcache/c_base.h" nogil:
    ctypedef enum kvcache_status:
        KVCACHE_OK
        KVCACHE_INVALID_ARGUMENT
        KVCACHE_NOT_FOUND
        KVCACHE_OUT_OF_CAPACITY
        KVCACHE_CORRUPTION
        KVCACHE_UNSUPPORTED
        KVCACHE_IO_ERROR
        KVCACHE_NON_FINITE
        KVCACHE_INTERNAL

    ctypedef enum kvcache_dtype:
        KVCACHE_F32
        KVCACHE_U32
        KVCACHE_I32
        KVCACHE_F16
        KVCACHE_BF16
        KVCACHE_U64
        KVCACHE_U8
        KVCACHE_FP8
        KVCACHE_I8

    ctypedef enum kvcache_huge_pages:
        KVCACHE_HUGE_PAGES_OFF
        KVCACHE_HUGE_PAGES_ADVISE
        KVCACHE_HUGE_PAGES_SYSTEM

    ctypedef struct kvcache_cache:
        pass

    ctypedef struct kvcache_sequence:
        pass

    ctypedef struct kvcache_batch:
        pass

    ctypedef struct kvcache_bytes:
        const void* data
        size_t size

    ctypedef struct kvcache_rows:
        void* data
        kvcache_dtype dtype
        size_t tokens
        size_t heads
        size_t width
        ptrdiff_t token_stride
        ptrdiff_t head_stride

    ctypedef struct kvcache_media:
        uint64_t start
        uint64_t length
        kvcache_bytes digest

    ctypedef struct kvcache_space:
        size_t struct_size
        kvcache_bytes name
        kvcache_bytes adapter
        kvcache_bytes salt
        const kvcache_media* media
        size_t media_count

    const char* kvcache_version()
    uint32_t kvcache_abi()
    const char* kvcache_last_error()
    const char* kvcache_status_name(kvcache_status status)
