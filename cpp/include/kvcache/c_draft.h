/* What waits between two steps of speculative decoding: hidden rows for a drafter, and drafts for a
 * verify; see kvcache/hidden_capture.h, accept_stash.h and draft_tokens.h. Each is good for its
 * sequence as it was, and a call that comes later says what has ended. Conventions: kvcache/c.h. */
#ifndef KVCACHE_C_DRAFT_H
#define KVCACHE_C_DRAFT_H

#include "kvcache/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvcache_hidden_capture kvcache_hidden_capture;
typedef struct kvcache_hidden_bands kvcache_hidden_bands;
typedef struct kvcache_accept_stash kvcache_accept_stash;
typedef struct kvcache_drafts kvcache_drafts;

/* Elements [rows, width], those of a row adjacent. Rows that a call answers with lie in memory that
 * is valid until its handle is destroyed, and shows what is stored next. */
typedef struct kvcache_hidden_rows {
  const void* data;
  kvcache_dtype dtype; /* KVCACHE_F32, KVCACHE_F16 or KVCACHE_BF16 */
  uint64_t rows;
  uint64_t width;
  ptrdiff_t row_stride; /* bytes */
} kvcache_hidden_rows;

/* HiddenRowsOptions in kvcache/hidden_rows.h. */
typedef struct kvcache_hidden_options {
  size_t struct_size;
  uint64_t rows;              /* required, this one and the next */
  uint64_t width;             /* of one, in elements */
  const kvcache_dtype* dtype; /* NULL: KVCACHE_BF16 */
  kvcache_cache* cache;       /* whose budget the memory counts against; NULL: none's */
} kvcache_hidden_options;

/* ---- Rows of a prompt, chunk by chunk ------------------------------------------------------- */

typedef struct kvcache_capture_state {
  size_t struct_size;
  uint64_t captured; /* rows that are kept */
  uint64_t position; /* of the first */
  uint64_t bytes;    /* of all rows there is room for */
} kvcache_capture_state;

KVCACHE_API kvcache_status kvcache_hidden_capture_create(const kvcache_hidden_options* options,
                                                         kvcache_hidden_capture** out);
KVCACHE_API void kvcache_hidden_capture_destroy(kvcache_hidden_capture* capture);
KVCACHE_API kvcache_status kvcache_hidden_capture_begin(kvcache_hidden_capture* capture,
                                                        const kvcache_sequence* sequence);
/* `out_kept` gets how many rows there was room for. */
KVCACHE_API kvcache_status kvcache_hidden_capture_write(kvcache_hidden_capture* capture,
                                                        uint64_t position,
                                                        const kvcache_hidden_rows* rows,
                                                        uint64_t* out_kept);
KVCACHE_API kvcache_status kvcache_hidden_capture_rows(const kvcache_hidden_capture* capture,
                                                       kvcache_hidden_rows* out);
KVCACHE_API kvcache_status kvcache_hidden_capture_consume(kvcache_hidden_capture* capture);
KVCACHE_API kvcache_status kvcache_hidden_capture_release(kvcache_hidden_capture* capture);
KVCACHE_API kvcache_status kvcache_hidden_capture_read(const kvcache_hidden_capture* capture,
                                                       kvcache_capture_state* out);

/* ---- A band of rows of each sequence of a verify: stored while it is open, read after it ---- */

/* `bands` of options->rows rows each. */
KVCACHE_API kvcache_status kvcache_hidden_bands_create(const kvcache_hidden_options* options,
                                                       uint64_t bands, kvcache_hidden_bands** out);
KVCACHE_API void kvcache_hidden_bands_destroy(kvcache_hidden_bands* bands);
/* Hidden rows offsets[i]..offsets[i + 1] go to band i: the offsets of the verify. */
KVCACHE_API kvcache_status kvcache_hidden_bands_store(kvcache_hidden_bands* bands,
                                                      kvcache_sequence* const* sequences,
                                                      size_t sequence_count,
                                                      const kvcache_hidden_rows* hidden,
                                                      const int32_t* offsets);
KVCACHE_API kvcache_status kvcache_hidden_bands_accepted(const kvcache_hidden_bands* bands,
                                                         uint64_t band, kvcache_hidden_rows* out);

/* ---- Rows of accepted positions, from a verdict to the next propose ------------------------- */

/* options->rows sequences, up to `catch_up` further rows of each. */
KVCACHE_API kvcache_status kvcache_accept_stash_create(const kvcache_hidden_options* options,
                                                       uint64_t catch_up,
                                                       kvcache_accept_stash** out);
KVCACHE_API void kvcache_accept_stash_destroy(kvcache_accept_stash* stash);
/* Hidden row rows[i] is that of sequence i. `catch_counts` has one number for each sequence, of
 * hidden rows that `catch_up` names, one sequence after the other; NULL: none. */
KVCACHE_API kvcache_status kvcache_accept_stash_store(
    kvcache_accept_stash* stash, kvcache_sequence* const* sequences, size_t sequence_count,
    const kvcache_hidden_rows* hidden, const uint64_t* rows, const uint64_t* catch_up,
    size_t catch_up_count, const uint64_t* catch_counts);
/* The first stash rows, one alone, its catch-up rows. */
KVCACHE_API kvcache_status kvcache_accept_stash_rows(const kvcache_accept_stash* stash,
                                                     uint64_t count, kvcache_hidden_rows* out);
KVCACHE_API kvcache_status kvcache_accept_stash_row(const kvcache_accept_stash* stash,
                                                    uint64_t index, kvcache_hidden_rows* out);
KVCACHE_API kvcache_status kvcache_accept_stash_catch_up(const kvcache_accept_stash* stash,
                                                         uint64_t index, kvcache_hidden_rows* out);

/* ---- Drafts, from a propose to the verify that takes them ----------------------------------- */

/* Of up to `slots` sequences, up to `positions` drafts each. */
KVCACHE_API kvcache_status kvcache_drafts_create(uint64_t slots, uint64_t positions,
                                                 kvcache_drafts** out);
KVCACHE_API void kvcache_drafts_destroy(kvcache_drafts* drafts);
/* `confidences` has one number for each token; NULL: none. */
KVCACHE_API kvcache_status kvcache_drafts_put(kvcache_drafts* drafts,
                                              const kvcache_sequence* sequence,
                                              const int32_t* tokens, size_t token_count,
                                              const float* confidences);
/* `capacity` is at least the positions of the table, else nothing is taken. The confidences, as
 * many as tokens or none, are left out where `out_confidences` is NULL. */
KVCACHE_API kvcache_status kvcache_drafts_take(kvcache_drafts* drafts,
                                               const kvcache_sequence* sequence, int32_t* out,
                                               float* out_confidences, size_t capacity,
                                               size_t* out_count, size_t* out_confidence_count);
KVCACHE_API kvcache_status kvcache_drafts_put_back(kvcache_drafts* drafts,
                                                   const kvcache_sequence* sequence);
KVCACHE_API kvcache_status kvcache_drafts_clear(kvcache_drafts* drafts,
                                                const kvcache_sequence* sequence);
KVCACHE_API kvcache_status kvcache_drafts_pending(const kvcache_drafts* drafts,
                                                  const kvcache_sequence* sequence, uint64_t* out);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_DRAFT_H */
