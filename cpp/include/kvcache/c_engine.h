/* Rows of attention state in an engine's own tensors, and rows where they lie in pages; see
 * kvcache/engine_layout.h and pages.h. Conventions: kvcache/c.h. */
#ifndef KVCACHE_C_ENGINE_H
#define KVCACHE_C_ENGINE_H

#include "kvcache/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvcache_page_views kvcache_page_views;

/* EngineTensor: host memory, borrowed for the call. `layout` names its axes, outermost first, in
 * the words of EngineLayout: "tokens heads dim", "kv blocks block heads dim",
 * "tokens (kv heads dim)", ... */
typedef struct kvcache_engine_tensor {
  size_t struct_size; /* the same in all of an array */
  void* data;
  kvcache_dtype dtype; /* KVCACHE_F32, KVCACHE_F16 or KVCACHE_BF16 */
  const char* layout;
  const uint64_t* shape;    /* [axes] */
  const ptrdiff_t* strides; /* [axes], bytes; NULL: contiguous, the last axis running fastest */
  size_t axes;
} kvcache_engine_tensor;

/* EnginePlaces: by block of the sequence from position 0 on the id of the engine's block, or for
 * each position of the call the index of its row. With neither, positions in order. */
typedef struct kvcache_engine_places {
  size_t struct_size;
  const int32_t* block_table;
  size_t block_count;
  const int64_t* slot_mapping;
  size_t slot_count;
} kvcache_engine_places;

/* Rows of positions [start, stop) of one layer, or of several whose tensors have an axis `layers`,
 * into pages and out of them. `places` NULL: positions in order. */
KVCACHE_API kvcache_status kvcache_sequence_import_rows(kvcache_sequence* sequence,
                                                        const int32_t* layers, size_t layer_count,
                                                        uint64_t start, uint64_t stop,
                                                        const kvcache_engine_tensor* tensors,
                                                        size_t tensor_count,
                                                        const kvcache_engine_places* places);
KVCACHE_API kvcache_status kvcache_sequence_export_rows(const kvcache_sequence* sequence,
                                                        const int32_t* layers, size_t layer_count,
                                                        uint64_t start, uint64_t stop,
                                                        const kvcache_engine_tensor* tensors,
                                                        size_t tensor_count,
                                                        const kvcache_engine_places* places);

/* PageView: consecutive positions of one component in one page, not to be written. The row of
 * position start + i, head h: rows + i * token_stride + h * head_stride; its scale likewise. */
typedef struct kvcache_page_view {
  size_t struct_size;
  size_t component; /* of the layer, in declared order */
  uint64_t start;
  uint64_t positions;
  int32_t page;
  kvcache_dtype dtype;
  uint32_t heads;
  uint32_t width;
  const void* rows;
  const void* scales;    /* NULL without */
  uint64_t token_stride; /* bytes, as all strides here */
  uint64_t head_stride;
  uint64_t scale_token_stride;
  uint64_t scale_head_stride;
} kvcache_page_view;

/* Positions [start, stop) of one layer as a list: the views of each component, one for each page.
 * Pages are pinned, and their addresses valid, until the list is destroyed, whatever becomes of
 * the sequence and the cache. */
KVCACHE_API kvcache_status kvcache_sequence_views(const kvcache_sequence* sequence, int32_t layer,
                                                  uint64_t start, uint64_t stop,
                                                  kvcache_page_views** out);
KVCACHE_API void kvcache_page_views_destroy(kvcache_page_views* views);
KVCACHE_API size_t kvcache_page_views_count(const kvcache_page_views* views); /* NULL: 0 */
KVCACHE_API kvcache_status kvcache_page_views_read(const kvcache_page_views* views, size_t index,
                                                   kvcache_page_view* out);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_ENGINE_H */
