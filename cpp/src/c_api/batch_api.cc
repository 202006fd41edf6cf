// Batches through C: what an engine calls for each token.
#include <algorithm>
#include <utility>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"

using kvcache::Batch;
using kvcache::Sequence;
using kvcache::Status;
using kvcache::c_api::counts_of;
using kvcache::c_api::entry;
using kvcache::c_api::hand_over;
using kvcache::c_api::some;
using kvcache::c_api::views_from;
using kvcache::codec::MutableRowsView;
using kvcache::codec::RowsView;

extern "C" {

kvcache_status kvcache_batch_create(kvcache_sequence* const* sequences, size_t count,
                                    kvcache_batch** out) {
  return entry({{"sequences", sequences}, {"out", out}}, [&]() -> Status {
    std::vector<Sequence*> list;
    list.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      list.push_back(sequences[i] == nullptr ? nullptr : &sequences[i]->sequence);
    }
    return hand_over(Batch::create(list), out);
  });
}

void kvcache_batch_destroy(kvcache_batch* batch) { delete batch; }

kvcache_status kvcache_batch_lengths(const kvcache_batch* batch, uint64_t* out) {
  return entry({{"batch", batch}, {"out", out}}, [&]() -> Status {
    const auto lengths = batch->batch.lengths();
    if (!lengths) return lengths.status();
    std::copy(lengths->begin(), lengths->end(), out);
    return Status::ok();
  });
}

kvcache_status kvcache_batch_extend(kvcache_batch* batch, const int32_t* tokens, size_t token_count,
                                    const uint64_t* counts) {
  return entry({{"batch", batch}, some("tokens", tokens, token_count)}, [&] {
    return batch->batch.extend({tokens, token_count}, counts_of(batch, counts));
  });
}

kvcache_status kvcache_batch_prepare(kvcache_batch* batch, const uint64_t* counts) {
  return entry({{"batch", batch}}, [&] { return batch->batch.prepare(counts_of(batch, counts)); });
}

kvcache_status kvcache_batch_write(kvcache_batch* batch, int32_t layer, const uint64_t* starts,
                                   const uint64_t* counts, const kvcache_rows* components,
                                   size_t component_count) {
  return entry({{"batch", batch}, {"starts", starts}, {"components", components}}, [&]() -> Status {
    const auto views = views_from<RowsView>(components, component_count);
    if (!views) return views.status();
    return batch->batch.write(layer, {starts, batch->batch.size()}, counts_of(batch, counts),
                              *views);
  });
}

kvcache_status kvcache_batch_read(const kvcache_batch* batch, int32_t layer, const uint64_t* starts,
                                  const uint64_t* counts, const kvcache_rows* components,
                                  size_t component_count) {
  return entry({{"batch", batch}, {"starts", starts}, {"components", components}}, [&]() -> Status {
    const auto views = views_from<MutableRowsView>(components, component_count);
    if (!views) return views.status();
    return batch->batch.read(layer, {starts, batch->batch.size()}, counts_of(batch, counts),
                             *views);
  });
}

kvcache_status kvcache_batch_advance(kvcache_batch* batch, const uint64_t* counts) {
  return entry({{"batch", batch}}, [&] { return batch->batch.advance(counts_of(batch, counts)); });
}

kvcache_status kvcache_batch_advance_in_place(kvcache_batch* batch, const uint64_t* counts) {
  return entry({{"batch", batch}},
               [&] { return batch->batch.advance_in_place(counts_of(batch, counts)); });
}

kvcache_status kvcache_batch_block_table(kvcache_batch* batch, size_t group, const int32_t** out,
                                         size_t* out_columns) {
  return entry({{"batch", batch}, {"out", out}, {"out_columns", out_columns}}, [&]() -> Status {
    const auto table = batch->batch.block_table(group);
    if (!table) return table.status();
    *out = table->data;
    *out_columns = table->columns;
    return Status::ok();
  });
}

kvcache_status kvcache_batch_copy_block_table(const kvcache_batch* batch, size_t group,
                                              int32_t* out, size_t columns, size_t count) {
  return entry({{"batch", batch}, some("out", out, count)},
               [&] { return batch->batch.block_table(group, {out, count}, columns); });
}

}  // extern "C"
