// Sequences through C.
#include <string>
#include <utility>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"

using kvcache::Status;
using kvcache::c_api::answer;
using kvcache::c_api::copy_out;
using kvcache::c_api::entry;
using kvcache::c_api::hand_over;
using kvcache::c_api::optional_from;
using kvcache::c_api::read_enum;
using kvcache::c_api::read_struct;
using kvcache::c_api::some;
using kvcache::c_api::text_from;
using kvcache::c_api::view_from;
using kvcache::c_api::views_from;
using kvcache::codec::MutableRowsView;
using kvcache::codec::RowsView;

namespace {

// Rows of several layers, and the views that they borrow.
template <typename View, typename Layer>
struct LayerViews {
  std::vector<std::vector<View>> views;
  std::vector<Layer> layers;

  Status read(const kvcache_layer_rows* from, std::size_t count) {
    views.reserve(count);
    layers.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::string where = "layers[" + std::to_string(i) + "]";
      if (from[i].components == nullptr) {
        return Status::invalid_argument(where, ".components is NULL");
      }
      auto made = views_from<View>(from[i].components, from[i].component_count);
      if (!made) return made.status().prefixed(where + ": ");
      views.push_back(std::move(made).value());
      layers.push_back({from[i].layer, views.back()});
    }
    return Status::ok();
  }
};

}  // namespace

extern "C" {

kvcache_status kvcache_sequence_open(kvcache_cache* cache, const int32_t* tokens,
                                     size_t token_count, const kvcache_space* space,
                                     const kvcache_open_options* options, kvcache_sequence** out) {
  return entry({{"cache", cache}, some("tokens", tokens, token_count), {"out", out}},
               [&]() -> Status {
                 const auto in = kvcache::c_api::space_from(space);
                 if (!in) return in.status();
                 const auto from = read_struct("options", options);
                 if (!from) return from.status();
                 const kvcache::OpenOptions how = {
                     .hints = {.tenant = text_from(from->tenant),
                               .kind = text_from(from->kind),
                               .expected_reuse = optional_from(from->expected_reuse)},
                     .now_ms = optional_from(from->now_ms),
                     .ttl_ms = kvcache::c_api::ttl_from(from->ttl_ms)};
                 return hand_over(cache->cache->open({tokens, token_count}, *in, how), out);
               });
}

kvcache_status kvcache_sequence_close(kvcache_sequence* sequence,
                                      const kvcache_close_options* options) {
  return entry({{"sequence", sequence}}, [&]() -> Status {
    const auto from = read_struct("options", options);
    if (!from) return from.status();
    if (Status status = sequence->sequence.check_process(); !status) return status;
    sequence->sequence.close({.output_tokens = optional_from(from->output_tokens),
                              .session_closed = from->session_closed != 0,
                              .now_ms = optional_from(from->now_ms)});
    return Status::ok();
  });
}

void kvcache_sequence_destroy(kvcache_sequence* sequence) { delete sequence; }

uint64_t kvcache_sequence_cached_tokens(const kvcache_sequence* sequence) {
  return sequence == nullptr ? 0 : sequence->sequence.cached_tokens();
}

uint64_t kvcache_sequence_matched_tokens(const kvcache_sequence* sequence) {
  return sequence == nullptr ? 0 : sequence->sequence.matched_tokens();
}

uint64_t kvcache_sequence_length(const kvcache_sequence* sequence) {
  return sequence == nullptr ? 0 : sequence->sequence.length();
}

kvcache_status kvcache_sequence_tokens(const kvcache_sequence* sequence, int32_t* out,
                                       size_t capacity, size_t* out_count) {
  return entry({{"sequence", sequence}, some("out", out, capacity), {"out_count", out_count}},
               [&]() -> Status {
                 if (Status status = sequence->sequence.check_open(); !status) return status;
                 return copy_out(sequence->sequence.tokens(), out, capacity, out_count);
               });
}

kvcache_status kvcache_sequence_extend(kvcache_sequence* sequence, const int32_t* tokens,
                                       size_t token_count, const kvcache_media* media,
                                       size_t media_count) {
  return entry({{"sequence", sequence},
                some("tokens", tokens, token_count),
                some("media", media, media_count)},
               [&]() -> Status {
                 const auto among = kvcache::c_api::media_from(media, media_count);
                 if (!among) return among.status();
                 return sequence->sequence.extend({tokens, token_count}, *among);
               });
}

kvcache_status kvcache_sequence_write(kvcache_sequence* sequence, int32_t layer, uint64_t start,
                                      const kvcache_rows* components, size_t component_count) {
  return entry({{"sequence", sequence}, {"components", components}}, [&] {
    const auto views = views_from<RowsView>(components, component_count);
    return views ? sequence->sequence.write(layer, start, *views) : views.status();
  });
}

kvcache_status kvcache_sequence_read(const kvcache_sequence* sequence, int32_t layer,
                                     uint64_t start, const kvcache_rows* components,
                                     size_t component_count) {
  return entry({{"sequence", sequence}, {"components", components}}, [&] {
    const auto views = views_from<MutableRowsView>(components, component_count);
    return views ? sequence->sequence.read(layer, start, *views) : views.status();
  });
}

kvcache_status kvcache_sequence_write_layers(kvcache_sequence* sequence, uint64_t start,
                                             const kvcache_layer_rows* layers, size_t layer_count) {
  return entry({{"sequence", sequence}, some("layers", layers, layer_count)}, [&]() -> Status {
    LayerViews<RowsView, kvcache::LayerRows> from;
    const Status status = from.read(layers, layer_count);
    return status ? sequence->sequence.write_layers(start, from.layers) : status;
  });
}

kvcache_status kvcache_sequence_read_layers(const kvcache_sequence* sequence, uint64_t start,
                                            const kvcache_layer_rows* layers, size_t layer_count) {
  return entry({{"sequence", sequence}, some("layers", layers, layer_count)}, [&]() -> Status {
    LayerViews<MutableRowsView, kvcache::MutableLayerRows> to;
    const Status status = to.read(layers, layer_count);
    return status ? sequence->sequence.read_layers(start, to.layers) : status;
  });
}

kvcache_status kvcache_sequence_written(const kvcache_sequence* sequence, int32_t layer,
                                        uint64_t* out) {
  return entry({{"sequence", sequence}, {"out", out}},
               [&] { return answer(sequence->sequence.written(layer), out); });
}

kvcache_status kvcache_sequence_written_records(const kvcache_sequence* sequence, int32_t layer,
                                                const char* name, uint64_t* out) {
  return entry({{"sequence", sequence}, {"name", name}, {"out", out}},
               [&] { return answer(sequence->sequence.written_records(layer, name), out); });
}

kvcache_status kvcache_sequence_write_records(kvcache_sequence* sequence, int32_t layer,
                                              const char* name, uint64_t first,
                                              const kvcache_rows* rows) {
  return entry({{"sequence", sequence}, {"name", name}, {"rows", rows}}, [&] {
    const auto view = view_from<RowsView>("rows", *rows);
    return view ? sequence->sequence.write_records(layer, name, first, *view) : view.status();
  });
}

kvcache_status kvcache_sequence_read_records(const kvcache_sequence* sequence, int32_t layer,
                                             const char* name, uint64_t first,
                                             const kvcache_rows* rows) {
  return entry({{"sequence", sequence}, {"name", name}, {"rows", rows}}, [&] {
    const auto view = view_from<MutableRowsView>("rows", *rows);
    return view ? sequence->sequence.read_records(layer, name, first, *view) : view.status();
  });
}

kvcache_status kvcache_sequence_state(const kvcache_sequence* sequence, int32_t layer,
                                      const char* name, void** out_data, uint64_t* out_bytes) {
  return entry(
      {{"sequence", sequence}, {"name", name}, {"out_data", out_data}, {"out_bytes", out_bytes}},
      [&] {
        return kvcache::c_api::answer_state(sequence->sequence.state(layer, name), out_data,
                                            out_bytes);
      });
}

kvcache_status kvcache_sequence_advance(kvcache_sequence* sequence, uint64_t positions) {
  return entry({{"sequence", sequence}}, [&] { return sequence->sequence.advance(positions); });
}

kvcache_status kvcache_sequence_prepare(kvcache_sequence* sequence, uint64_t positions) {
  return entry({{"sequence", sequence}}, [&] { return sequence->sequence.prepare(positions); });
}

kvcache_status kvcache_sequence_advance_in_place(kvcache_sequence* sequence, uint64_t positions) {
  return entry({{"sequence", sequence}},
               [&] { return sequence->sequence.advance_in_place(positions); });
}

kvcache_status kvcache_sequence_block_table(const kvcache_sequence* sequence, size_t group,
                                            int32_t* out, size_t capacity, size_t* out_count) {
  return entry({{"sequence", sequence}, some("out", out, capacity), {"out_count", out_count}}, [&] {
    const auto table = sequence->sequence.block_table(group);
    return table ? copy_out(*table, out, capacity, out_count) : table.status();
  });
}

kvcache_status kvcache_sequence_snapshot(kvcache_sequence* sequence,
                                         kvcache_snapshot_format format) {
  return entry({{"sequence", sequence}}, [&]() -> Status {
    kvcache::SnapshotFormat how = {};
    Status status = read_enum("format", format, KVCACHE_SNAPSHOT_INT8, &how);
    return status ? sequence->sequence.snapshot(how).status() : status;
  });
}

kvcache_status kvcache_sequence_mark(kvcache_sequence* sequence, uint64_t position,
                                     kvcache_mark_kind kind) {
  return entry({{"sequence", sequence}}, [&]() -> Status {
    kvcache::MarkKind what = {};
    Status status = read_enum("kind", kind, KVCACHE_MARK_SYSTEM, &what);
    return status ? sequence->sequence.mark(position, what) : status;
  });
}

kvcache_status kvcache_sequence_prefill_stops(const kvcache_sequence* sequence, uint64_t* out,
                                              size_t capacity, size_t* out_count) {
  return entry({{"sequence", sequence}, some("out", out, capacity), {"out_count", out_count}},
               [&]() -> Status {
                 if (Status status = sequence->sequence.check_open(); !status) return status;
                 return copy_out(sequence->sequence.prefill_stops(), out, capacity, out_count);
               });
}

kvcache_status kvcache_sequence_publish(kvcache_sequence* sequence) {
  return entry({{"sequence", sequence}}, [&] { return sequence->sequence.publish(); });
}

kvcache_status kvcache_sequence_fork(kvcache_sequence* sequence, kvcache_sequence** out) {
  return entry({{"sequence", sequence}, {"out", out}},
               [&] { return hand_over(sequence->sequence.fork(), out); });
}

kvcache_status kvcache_sequence_truncate(kvcache_sequence* sequence, uint64_t position) {
  return entry({{"sequence", sequence}}, [&] { return sequence->sequence.truncate(position); });
}

kvcache_status kvcache_sequence_shift(kvcache_sequence* sequence, uint64_t keep, uint64_t drop) {
  return entry({{"sequence", sequence}}, [&] { return sequence->sequence.shift(keep, drop); });
}

kvcache_status kvcache_sequence_record(kvcache_sequence* sequence) {
  return entry({{"sequence", sequence}}, [&] { return sequence->sequence.record().status(); });
}

kvcache_status kvcache_sequence_rollback(kvcache_sequence* sequence, uint64_t position) {
  return entry({{"sequence", sequence}}, [&] { return sequence->sequence.rollback(position); });
}

kvcache_status kvcache_sequence_recorded(const kvcache_sequence* sequence, uint64_t* out,
                                         size_t capacity, size_t* out_count) {
  return entry({{"sequence", sequence}, some("out", out, capacity), {"out_count", out_count}},
               [&]() -> Status {
                 if (Status status = sequence->sequence.check_open(); !status) return status;
                 return copy_out(sequence->sequence.recorded(), out, capacity, out_count);
               });
}

}  // extern "C"
