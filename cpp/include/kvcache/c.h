/*
 * C99 face of the cache: this header includes all of it. Conventions:
 *
 *  1. Status. A call that can fail returns a status; results come by pointer, untouched after a
 *     failure unless it says so. kvcache_last_error() has the text of the calling thread's last
 *     failure. No exception leaves a call.
 *  2. Meaning. What a call does, its statuses, its units and its thread safety are those of the
 *     C++ function of the same words (kvcache/cache.h, sequence.h, batch.h, verify.h, ...), and so
 *     are the numbers of statuses and enumerations. Sizes are bytes, lengths and places positions
 *     (tokens), times milliseconds.
 *  3. Handles are opaque, each made by one call and freed once by the kvcache_*_destroy() of its
 *     type, which takes NULL too. They may be freed in any order: a cache that is destroyed first
 *     stays alive inside its sequences, batches, sessions, pins and views. A batch does not own its
 *     sequences; once one is destroyed, calls of the batch and of its verify fail.
 *  4. Ownership. Arguments are copied before a call returns, never kept, but for the rows that
 *     kernels store in place. Memory that an answer points to belongs to the library; each call
 *     says how long it is valid. An array of the caller's, `out` with room for `capacity` entries,
 *     gets all of a list or, where that is longer, nothing and KVCACHE_INVALID_ARGUMENT; the
 *     number of entries goes to `out_count` in both cases.
 *  5. Arguments. A pointer may be NULL where that is said, where a count behind it is 0, and for
 *     `space` (the space without names) and `options` (the defaults). Anywhere else, and for a
 *     number that an enumeration does not have, the answer is KVCACHE_INVALID_ARGUMENT. Counts of
 *     the caller's arrays are believed.
 *  6. Stability. A struct that begins with `struct_size`, which the caller sets to its sizeof, may
 *     grow at its end: a caller that is older than the library gets the defaults of what it does
 *     not know, one that is newer may leave the rest 0 (else KVCACHE_UNSUPPORTED). Other structs,
 *     signatures and numbers change with KVCACHE_ABI alone; kvcache_abi() is the library's.
 *  7. Defaults. A field that is 0 or NULL has its default, so that a zeroed struct with its size is
 *     a good start. Where 0 is a choice of its own the field is a pointer to the value.
 *  8. Text is UTF-8 and ends with a zero; what may hold zeros is kvcache_bytes.
 *  9. Memory that the process runs out of in a call is KVCACHE_OUT_OF_CAPACITY too; what the call
 *     was changing is then unspecified, but may be closed and destroyed. Where that is what a cache
 *     has stored, the cache may have dropped all of it, pins included, and goes on empty.
 * 10. Threads and processes. Handles may be used from any thread, by several at once, but for the
 *     call that destroys one, and for pins, lists and trees, whose calls are the caller's to order.
 *     In a child of fork() calls on its parent's handles fail, but for those that read what never
 *     changes (a plan, rows of a verify, lists, trees), and freeing them is fine.
 * 11. What has no call here is for C++ alone: plans and estimates without a cache (state_plan.h,
 *     kv_budget.h, runtime_estimate.h, state_terms.h), codecs and kernels for other memory than the
 *     cache's (codec.h, fold.h, cuda.h), tools for directories without a cache (check_*(),
 *     collect_*()), who holds which page (Cache::page_refs()) and what a snapshot has lost.
 */
#ifndef KVCACHE_C_H
#define KVCACHE_C_H

#include "kvcache/c_base.h"
#include "kvcache/c_cache.h"
#include "kvcache/c_draft.h"
#include "kvcache/c_engine.h"
#include "kvcache/c_lookup.h"
#include "kvcache/c_pool.h"
#include "kvcache/c_sequence.h"
#include "kvcache/c_store.h"
#include "kvcache/c_verify.h"

#endif /* KVCACHE_C_H */
