// Pages and batches through C: what an engine calls for each token.
#include <algorithm>
#include <utility>
#include <vector>

#include "c_api/handles.h"

using kvcache::Batch;
using kvcache::Sequence;
using kvcache::Status;
using kvcache::c_api::done;
using kvcache::c_api::fail;
using kvcache::c_api::guarded;
using kvcache::c_api::null_argument;
using kvcache::c_api::views_from;

namespace {

using Counts = std::span<const std::uint64_t>;

Counts counts_of(const kvcache_batch* batch, const uint64_t* counts) {
  return counts == nullptr ? Counts() : Counts(counts, batch->batch.size());
}

}  // namespace

extern "C" {

kvcache_status kvcache_cache_pages(const kvcache_cache* cache, int32_t layer, const char* component,
                                   kvcache_page_memory* out) {
  if (cache == nullptr || component == nullptr || out == nullptr) {
    return null_argument("cache, component or out");
  }
  return guarded([&] {
    const auto memory = cache->cache->pages(layer, component);
    if (!memory) return fail(memory.status());
    const kvcache::PagedComponent& part = *memory->component;
    const std::uint64_t head_stride = part.width * kvcache::dtype_bytes(part.dtype);
    *out = {.group = memory->group,
            .dtype = static_cast<kvcache_dtype>(part.dtype),
            .block_tokens = memory->block_tokens,
            .heads = part.heads,
            .width = part.width,
            .pages = memory->pages,
            .page_stride = memory->page_stride,
            .token_stride = part.row_bytes(),
            .head_stride = head_stride,
            .rows = memory->rows,
            .scales = memory->scales,
            .scale_token_stride = part.scale_bytes(),
            .scale_head_stride = part.row_scale_bytes};
    return KVCACHE_OK;
  });
}

kvcache_status kvcache_sequence_prepare(kvcache_sequence* sequence, uint64_t positions) {
  if (sequence == nullptr) return null_argument("sequence");
  return guarded([&] { return done(sequence->sequence.prepare(positions)); });
}

kvcache_status kvcache_sequence_advance_in_place(kvcache_sequence* sequence, uint64_t positions) {
  if (sequence == nullptr) return null_argument("sequence");
  return guarded([&] { return done(sequence->sequence.advance_in_place(positions)); });
}

kvcache_status kvcache_sequence_block_table(const kvcache_sequence* sequence, size_t group,
                                            int32_t* out, size_t capacity, size_t* out_blocks) {
  if (sequence == nullptr || (out == nullptr && capacity > 0) || out_blocks == nullptr) {
    return null_argument("sequence, out or out_blocks");
  }
  return guarded([&] {
    const auto table = sequence->sequence.block_table(group);
    if (!table) return fail(table.status());
    *out_blocks = table->size();
    if (table->size() > capacity) {
      return fail(Status::invalid_argument("block_table: the sequence has ", table->size(),
                                           " blocks, out has room for ", capacity));
    }
    std::copy(table->begin(), table->end(), out);
    return KVCACHE_OK;
  });
}

kvcache_status kvcache_batch_create(kvcache_sequence* const* sequences, size_t count,
                                    kvcache_batch** out) {
  if (sequences == nullptr || out == nullptr) return null_argument("sequences or out");
  return guarded([&] {
    std::vector<Sequence*> members;
    for (std::size_t i = 0; i < count; ++i) {
      members.push_back(sequences[i] == nullptr ? nullptr : &sequences[i]->sequence);
    }
    auto batch = Batch::create(members);
    if (!batch) return fail(batch.status());
    *out = new kvcache_batch{std::move(batch).value()};
    return KVCACHE_OK;
  });
}

void kvcache_batch_destroy(kvcache_batch* batch) { delete batch; }

kvcache_status kvcache_batch_lengths(const kvcache_batch* batch, uint64_t* out) {
  if (batch == nullptr || out == nullptr) return null_argument("batch or out");
  return guarded([&] {
    const auto lengths = batch->batch.lengths();
    if (!lengths) return fail(lengths.status());
    std::copy(lengths->begin(), lengths->end(), out);
    return KVCACHE_OK;
  });
}

kvcache_status kvcache_batch_extend(kvcache_batch* batch, const int32_t* tokens, size_t token_count,
                                    const uint64_t* counts) {
  if (batch == nullptr || (tokens == nullptr && token_count > 0)) {
    return null_argument("batch or tokens");
  }
  return guarded(
      [&] { return done(batch->batch.extend({tokens, token_count}, counts_of(batch, counts))); });
}

kvcache_status kvcache_batch_prepare(kvcache_batch* batch, const uint64_t* counts) {
  if (batch == nullptr) return null_argument("batch");
  return guarded([&] { return done(batch->batch.prepare(counts_of(batch, counts))); });
}

kvcache_status kvcache_batch_write(kvcache_batch* batch, int32_t layer, const uint64_t* starts,
                                   const uint64_t* counts, const kvcache_rows* components,
                                   size_t component_count) {
  if (batch == nullptr || starts == nullptr || components == nullptr) {
    return null_argument("batch, starts or components");
  }
  return guarded([&] {
    const auto views = views_from<kvcache::codec::RowsView>(components, component_count);
    if (!views) return fail(views.status());
    return done(
        batch->batch.write(layer, {starts, batch->batch.size()}, counts_of(batch, counts), *views));
  });
}

kvcache_status kvcache_batch_read(const kvcache_batch* batch, int32_t layer, const uint64_t* starts,
                                  const uint64_t* counts, const kvcache_rows* components,
                                  size_t component_count) {
  if (batch == nullptr || starts == nullptr || components == nullptr) {
    return null_argument("batch, starts or components");
  }
  return guarded([&] {
    const auto views = views_from<kvcache::codec::MutableRowsView>(components, component_count);
    if (!views) return fail(views.status());
    return done(
        batch->batch.read(layer, {starts, batch->batch.size()}, counts_of(batch, counts), *views));
  });
}

kvcache_status kvcache_batch_advance(kvcache_batch* batch, const uint64_t* counts) {
  if (batch == nullptr) return null_argument("batch");
  return guarded([&] { return done(batch->batch.advance(counts_of(batch, counts))); });
}

kvcache_status kvcache_batch_advance_in_place(kvcache_batch* batch, const uint64_t* counts) {
  if (batch == nullptr) return null_argument("batch");
  return guarded([&] { return done(batch->batch.advance_in_place(counts_of(batch, counts))); });
}

kvcache_status kvcache_batch_block_table(kvcache_batch* batch, size_t group, const int32_t** out,
                                         size_t* out_columns) {
  if (batch == nullptr || out == nullptr || out_columns == nullptr) {
    return null_argument("batch, out or out_columns");
  }
  return guarded([&] {
    const auto table = batch->batch.block_table(group);
    if (!table) return fail(table.status());
    *out = table->data;
    *out_columns = table->columns;
    return KVCACHE_OK;
  });
}

}  // extern "C"
