/*
 * C99 face of the cache. Conventions:
 * 1. Handles are opaque. A cache may be destroyed while its sequences are open; they stay valid.
 * 2. A call that can fail returns a status; results come by pointer, untouched after a failure.
 * 3. kvcache_last_error() has the text of the calling thread's last failure, until its next one.
 * 4. Numbers of statuses and enumerations are those of C++ (kvcache/status.h, kvcache/types.h).
 * 5. Memory that the process runs out of in a call is KVCACHE_OUT_OF_CAPACITY too; what the call
 *    was changing is then unspecified, but may be closed and destroyed.
 * 6. What a call does, its units, its statuses and its thread safety are those of the function of
 *    the same name in kvcache/cache.h, sequence.h and batch.h. A handle may be freed only once. In
 *    a child of fork() calls on its parent's handles fail, and freeing them is fine.
 * 7. Strings are UTF-8 and end with a zero; data that may hold zeros comes with its length.
 */
#ifndef KVCACHE_C_H
#define KVCACHE_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVCACHE_API __attribute__((visibility("default")))
#else
#define KVCACHE_API
#endif

typedef enum kvcache_status {
  KVCACHE_OK = 0,
  KVCACHE_INVALID_ARGUMENT = 1,
  KVCACHE_NOT_FOUND = 2,
  KVCACHE_OUT_OF_CAPACITY = 3,
  KVCACHE_CORRUPTION = 4,
  KVCACHE_UNSUPPORTED = 5,
  KVCACHE_IO_ERROR = 6,
  KVCACHE_NON_FINITE = 7,
  KVCACHE_INTERNAL = 8
} kvcache_status;

typedef enum kvcache_dtype {
  KVCACHE_F32 = 0,
  KVCACHE_U32 = 1,
  KVCACHE_I32 = 2,
  KVCACHE_F16 = 3,
  KVCACHE_BF16 = 4,
  KVCACHE_U64 = 5,
  KVCACHE_U8 = 6,
  KVCACHE_FP8 = 7,
  KVCACHE_I8 = 8
} kvcache_dtype;

typedef enum kvcache_state_kind { KVCACHE_RECURRENT = 0, KVCACHE_PAGED_KV = 1 } kvcache_state_kind;

typedef struct kvcache_cache kvcache_cache;
typedef struct kvcache_sequence kvcache_sequence;
typedef struct kvcache_batch kvcache_batch;

/* One component of one layer; see StateDecl in kvcache/state_decl.h. */
typedef struct kvcache_state_decl {
  const char* id;
  int32_t layer;
  const char* component;
  kvcache_state_kind kind;
  kvcache_dtype dtype;
  const uint64_t* shape; /* [heads, width] of a position, or the tensor of a sequence */
  size_t shape_axes;
  uint32_t row_scale_bytes;
  uint32_t window;        /* 0: every position */
  uint32_t chunked;       /* not 0: the window starts anew at each multiple of its length */
  uint32_t sinks;         /* first positions that a sliding window keeps as well */
  uint32_t record_tokens; /* positions that one row stands for; 0 or 1: its own */
} kvcache_state_decl;

typedef struct kvcache_options {
  uint64_t memory_bytes;
  uint32_t block_tokens;
  uint32_t sequences;
  const char* policy;  /* NULL: "price_list" */
  uint32_t ring_depth; /* copies of its fixed-size state that a sequence may record */
} kvcache_options;

/* Elements [tokens, heads, width]; strides in bytes, the last axis contiguous. */
typedef struct kvcache_rows {
  void* data;
  kvcache_dtype dtype; /* KVCACHE_F32, KVCACHE_F16 or KVCACHE_BF16; of integer rows, theirs */
  size_t tokens;
  size_t heads;
  size_t width;
  ptrdiff_t token_stride;
  ptrdiff_t head_stride;
} kvcache_rows;

typedef struct kvcache_stats {
  uint64_t budget_bytes;
  uint64_t committed_bytes;
  uint64_t peak_bytes;
  uint64_t used_bytes;
  uint64_t open_sequences;
  uint64_t indexed_blocks;
  uint64_t indexed_snapshots;
  uint64_t evicted_blocks;
  uint64_t evicted_snapshots;
} kvcache_stats;

/*
 * One component of one layer in every page of its group; see PageMemory in kvcache/pages.h. The row
 * of position p, head h: rows + table[p / block_tokens] * page_stride +
 * (p % block_tokens) * token_stride + h * head_stride; its scale likewise, by the scale strides.
 * The memory is valid until the cache is destroyed and its last sequence and batch are closed.
 */
typedef struct kvcache_page_memory {
  size_t group; /* whose block table addresses it */
  kvcache_dtype dtype;
  uint32_t block_tokens;
  uint32_t heads;
  uint32_t width;
  uint64_t pages;       /* numbers in a block table are below */
  uint64_t page_stride; /* bytes, as all strides here */
  uint64_t token_stride;
  uint64_t head_stride;
  void* rows;
  void* scales; /* NULL without */
  uint64_t scale_token_stride;
  uint64_t scale_head_stride;
} kvcache_page_memory;

KVCACHE_API const char* kvcache_version(void);
KVCACHE_API const char* kvcache_last_error(void);
KVCACHE_API const char* kvcache_status_name(kvcache_status status);

KVCACHE_API kvcache_status kvcache_cache_create(const kvcache_state_decl* decls, size_t decl_count,
                                                const kvcache_options* options,
                                                kvcache_cache** out);
KVCACHE_API void kvcache_cache_destroy(kvcache_cache* cache); /* NULL is fine */
KVCACHE_API kvcache_status kvcache_cache_stats(const kvcache_cache* cache, kvcache_stats* out);

/* `space` (may be NULL) separates prefixes: only equal bytes share. */
KVCACHE_API kvcache_status kvcache_sequence_open(kvcache_cache* cache, const int32_t* tokens,
                                                 size_t token_count, const void* space,
                                                 size_t space_bytes, kvcache_sequence** out);
KVCACHE_API void kvcache_sequence_close(kvcache_sequence* sequence); /* frees; NULL is fine */
KVCACHE_API uint64_t kvcache_sequence_cached_tokens(const kvcache_sequence* sequence);
KVCACHE_API uint64_t kvcache_sequence_length(const kvcache_sequence* sequence);
KVCACHE_API kvcache_status kvcache_sequence_extend(kvcache_sequence* sequence,
                                                   const int32_t* tokens, size_t token_count);
KVCACHE_API kvcache_status kvcache_sequence_write(kvcache_sequence* sequence, int32_t layer,
                                                  uint64_t start, const kvcache_rows* components,
                                                  size_t component_count);
KVCACHE_API kvcache_status kvcache_sequence_read(const kvcache_sequence* sequence, int32_t layer,
                                                 uint64_t start, const kvcache_rows* components,
                                                 size_t component_count);
/* Records of pooled state; see write_records() in kvcache/sequence.h. `rows` has the records as
 * its tokens. */
KVCACHE_API kvcache_status kvcache_sequence_write_records(kvcache_sequence* sequence, int32_t layer,
                                                          const char* name, uint64_t first,
                                                          const kvcache_rows* rows);
KVCACHE_API kvcache_status kvcache_sequence_read_records(const kvcache_sequence* sequence,
                                                         int32_t layer, const char* name,
                                                         uint64_t first, const kvcache_rows* rows);
/* Address and bytes of a live tensor; valid until the sequence is closed. */
KVCACHE_API kvcache_status kvcache_sequence_state(const kvcache_sequence* sequence, int32_t layer,
                                                  const char* name, void** out_data,
                                                  uint64_t* out_bytes);
KVCACHE_API kvcache_status kvcache_sequence_advance(kvcache_sequence* sequence, uint64_t positions);
/* Pages for the next positions; then rows may be stored in them, at and past the length, by the
 * caller itself, and be declared complete. */
KVCACHE_API kvcache_status kvcache_sequence_prepare(kvcache_sequence* sequence, uint64_t positions);
KVCACHE_API kvcache_status kvcache_sequence_advance_in_place(kvcache_sequence* sequence,
                                                             uint64_t positions);
/* The page of each block, -1 for none. `out` has room for `capacity` entries; `out_blocks` gets
 * their number, also when they are more (KVCACHE_INVALID_ARGUMENT, nothing written). */
KVCACHE_API kvcache_status kvcache_sequence_block_table(const kvcache_sequence* sequence,
                                                        size_t group, int32_t* out, size_t capacity,
                                                        size_t* out_blocks);
KVCACHE_API kvcache_status kvcache_sequence_snapshot(kvcache_sequence* sequence);
KVCACHE_API kvcache_status kvcache_sequence_publish(kvcache_sequence* sequence);
KVCACHE_API kvcache_status kvcache_sequence_fork(kvcache_sequence* sequence,
                                                 kvcache_sequence** out);
KVCACHE_API kvcache_status kvcache_sequence_truncate(kvcache_sequence* sequence, uint64_t position);
KVCACHE_API kvcache_status kvcache_sequence_record(kvcache_sequence* sequence);
KVCACHE_API kvcache_status kvcache_sequence_rollback(kvcache_sequence* sequence, uint64_t position);

/* A component by its name, such as "attention.keys". */
KVCACHE_API kvcache_status kvcache_cache_pages(const kvcache_cache* cache, int32_t layer,
                                               const char* component, kvcache_page_memory* out);

/*
 * Many sequences of one cache by one call, for all or for none. `counts` has one number for each
 * sequence; NULL means 1 each. `tokens` and rows are those of all sequences, one after the other.
 */
KVCACHE_API kvcache_status kvcache_batch_create(kvcache_sequence* const* sequences, size_t count,
                                                kvcache_batch** out);
KVCACHE_API void kvcache_batch_destroy(kvcache_batch* batch); /* NULL is fine; sequences stay */
KVCACHE_API kvcache_status kvcache_batch_lengths(const kvcache_batch* batch, uint64_t* out);
KVCACHE_API kvcache_status kvcache_batch_extend(kvcache_batch* batch, const int32_t* tokens,
                                                size_t token_count, const uint64_t* counts);
KVCACHE_API kvcache_status kvcache_batch_prepare(kvcache_batch* batch, const uint64_t* counts);
KVCACHE_API kvcache_status kvcache_batch_write(kvcache_batch* batch, int32_t layer,
                                               const uint64_t* starts, const uint64_t* counts,
                                               const kvcache_rows* components,
                                               size_t component_count);
KVCACHE_API kvcache_status kvcache_batch_read(const kvcache_batch* batch, int32_t layer,
                                              const uint64_t* starts, const uint64_t* counts,
                                              const kvcache_rows* components,
                                              size_t component_count);
KVCACHE_API kvcache_status kvcache_batch_advance(kvcache_batch* batch, const uint64_t* counts);
KVCACHE_API kvcache_status kvcache_batch_advance_in_place(kvcache_batch* batch,
                                                          const uint64_t* counts);
/* The batch's own table [sequences, columns], brought up to date. It is valid until the next call
 * of the same batch and group, or until the batch is destroyed. */
KVCACHE_API kvcache_status kvcache_batch_block_table(kvcache_batch* batch, size_t group,
                                                     const int32_t** out, size_t* out_columns);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_H */
