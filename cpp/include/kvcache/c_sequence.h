/* Sequences, alone and many by one call. Conventions: kvcache/c.h. */
#ifndef KVCACHE_C_SEQUENCE_H
#define KVCACHE_C_SEQUENCE_H

#include "kvcache/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In kvcache/snapshot.h and kvcache/placement.h. */
typedef enum kvcache_snapshot_format KVCACHE_ENUM {
  KVCACHE_SNAPSHOT_EXACT = 0,
  KVCACHE_SNAPSHOT_F16 = 1,
  KVCACHE_SNAPSHOT_INT8 = 2
} kvcache_snapshot_format;

typedef enum kvcache_mark_kind KVCACHE_ENUM {
  KVCACHE_MARK_OTHER = 0,
  KVCACHE_MARK_TURN = 1,
  KVCACHE_MARK_TOOLS = 2,
  KVCACHE_MARK_SYSTEM = 3
} kvcache_mark_kind;

/* What is known of a request; see RequestHints and OpenOptions in kvcache/request.h. */
typedef struct kvcache_open_options {
  size_t struct_size;
  const char* tenant;
  const char* kind;
  const double* expected_reuse; /* 0..1; NULL: not known */
  const uint64_t* now_ms;       /* NULL: a steady clock's */
  uint64_t ttl_ms;              /* 0: the cache's; UINT64_MAX: for ever */
} kvcache_open_options;

typedef struct kvcache_close_options {
  size_t struct_size;
  const uint64_t* output_tokens; /* NULL: those past the prompt */
  uint32_t session_closed;       /* not 0: nobody will continue it */
  const uint64_t* now_ms;
} kvcache_close_options;

/* The rows of one layer, for calls that take several. */
typedef struct kvcache_layer_rows {
  int32_t layer;
  const kvcache_rows* components;
  size_t component_count;
} kvcache_layer_rows;

KVCACHE_API kvcache_status kvcache_sequence_open(kvcache_cache* cache, const int32_t* tokens,
                                                 size_t token_count, const kvcache_space* space,
                                                 const kvcache_open_options* options,
                                                 kvcache_sequence** out);
/* Gives everything back and says how the request ended; the handle is still to be destroyed. */
KVCACHE_API kvcache_status kvcache_sequence_close(kvcache_sequence* sequence,
                                                  const kvcache_close_options* options);
KVCACHE_API void kvcache_sequence_destroy(kvcache_sequence* sequence); /* closes */
/* 0 of NULL and of a closed sequence, these three. */
KVCACHE_API uint64_t kvcache_sequence_cached_tokens(const kvcache_sequence* sequence);
KVCACHE_API uint64_t kvcache_sequence_matched_tokens(const kvcache_sequence* sequence);
KVCACHE_API uint64_t kvcache_sequence_length(const kvcache_sequence* sequence);
KVCACHE_API kvcache_status kvcache_sequence_tokens(const kvcache_sequence* sequence, int32_t* out,
                                                   size_t capacity, size_t* out_count);
KVCACHE_API kvcache_status kvcache_sequence_extend(kvcache_sequence* sequence,
                                                   const int32_t* tokens, size_t token_count,
                                                   const kvcache_media* media, size_t media_count);
KVCACHE_API kvcache_status kvcache_sequence_write(kvcache_sequence* sequence, int32_t layer,
                                                  uint64_t start, const kvcache_rows* components,
                                                  size_t component_count);
KVCACHE_API kvcache_status kvcache_sequence_read(const kvcache_sequence* sequence, int32_t layer,
                                                 uint64_t start, const kvcache_rows* components,
                                                 size_t component_count);
/* The same for several layers at once, for all or for none. */
KVCACHE_API kvcache_status kvcache_sequence_write_layers(kvcache_sequence* sequence, uint64_t start,
                                                         const kvcache_layer_rows* layers,
                                                         size_t layer_count);
KVCACHE_API kvcache_status kvcache_sequence_read_layers(const kvcache_sequence* sequence,
                                                        uint64_t start,
                                                        const kvcache_layer_rows* layers,
                                                        size_t layer_count);
/* Positions written in one layer, and records of one stream, complete or not. */
KVCACHE_API kvcache_status kvcache_sequence_written(const kvcache_sequence* sequence, int32_t layer,
                                                    uint64_t* out);
KVCACHE_API kvcache_status kvcache_sequence_written_records(const kvcache_sequence* sequence,
                                                            int32_t layer, const char* name,
                                                            uint64_t* out);
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
/* The page of each block, -1 for none. */
KVCACHE_API kvcache_status kvcache_sequence_block_table(const kvcache_sequence* sequence,
                                                        size_t group, int32_t* out, size_t capacity,
                                                        size_t* out_count);
KVCACHE_API kvcache_status kvcache_sequence_snapshot(kvcache_sequence* sequence,
                                                     kvcache_snapshot_format format);
KVCACHE_API kvcache_status kvcache_sequence_mark(kvcache_sequence* sequence, uint64_t position,
                                                 kvcache_mark_kind kind);
KVCACHE_API kvcache_status kvcache_sequence_prefill_stops(const kvcache_sequence* sequence,
                                                          uint64_t* out, size_t capacity,
                                                          size_t* out_count);
KVCACHE_API kvcache_status kvcache_sequence_publish(kvcache_sequence* sequence);
KVCACHE_API kvcache_status kvcache_sequence_fork(kvcache_sequence* sequence,
                                                 kvcache_sequence** out);
KVCACHE_API kvcache_status kvcache_sequence_truncate(kvcache_sequence* sequence, uint64_t position);
KVCACHE_API kvcache_status kvcache_sequence_shift(kvcache_sequence* sequence, uint64_t keep,
                                                  uint64_t drop);
KVCACHE_API kvcache_status kvcache_sequence_record(kvcache_sequence* sequence);
KVCACHE_API kvcache_status kvcache_sequence_rollback(kvcache_sequence* sequence, uint64_t position);
/* Positions that it can return to, the oldest record first. */
KVCACHE_API kvcache_status kvcache_sequence_recorded(const kvcache_sequence* sequence,
                                                     uint64_t* out, size_t capacity,
                                                     size_t* out_count);

/*
 * Many sequences of one cache by one call, for all or for none. `counts` has one number for each
 * sequence; NULL means 1 each. `tokens` and rows are those of all sequences, one after the other.
 */
KVCACHE_API kvcache_status kvcache_batch_create(kvcache_sequence* const* sequences, size_t count,
                                                kvcache_batch** out);
KVCACHE_API void kvcache_batch_destroy(kvcache_batch* batch); /* sequences stay */
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
/* The same into memory of the caller, [sequences, columns]; `count` is its size in numbers. */
KVCACHE_API kvcache_status kvcache_batch_copy_block_table(const kvcache_batch* batch, size_t group,
                                                          int32_t* out, size_t columns,
                                                          size_t count);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_SEQUENCE_H */
