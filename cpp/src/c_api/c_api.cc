#include <string>
#include <utility>
#include <vector>

#include "c_api/handles.h"
#include "kvcache/version.h"

using kvcache::Cache;
using kvcache::DType;
using kvcache::StateDecl;
using kvcache::StateKind;
using kvcache::StatePlan;
using kvcache::Status;
using kvcache::c_api::done;
using kvcache::c_api::fail;
using kvcache::c_api::guarded;
using kvcache::c_api::is_dtype;
using kvcache::c_api::null_argument;
using kvcache::c_api::views_from;

namespace {

thread_local std::string last_message;
thread_local const char* last_error = "";

kvcache::Result<StateDecl> decl_from(const kvcache_state_decl& decl) {
  if (decl.id == nullptr || decl.component == nullptr || decl.shape == nullptr) {
    return Status::invalid_argument("a declaration's id, component or shape is NULL");
  }
  if (!is_dtype(decl.dtype)) return Status::invalid_argument(decl.id, ": dtype is not known");
  if (decl.kind != KVCACHE_RECURRENT && decl.kind != KVCACHE_PAGED_KV) {
    return Status::invalid_argument(decl.id, ": state kind is not known");
  }
  StateDecl result;
  result.id = decl.id;
  result.layer = decl.layer;
  result.component = decl.component;
  result.kind = static_cast<StateKind>(decl.kind);
  result.dtype = static_cast<DType>(decl.dtype);
  result.shape.assign(decl.shape, decl.shape + decl.shape_axes);
  result.row_scale_bytes = decl.row_scale_bytes;
  result.window = decl.window;
  result.chunked = decl.chunked != 0;
  result.sinks = decl.sinks;
  if (decl.record_tokens > 1) result.record_tokens = decl.record_tokens;
  return result;
}

}  // namespace

namespace kvcache::c_api {

kvcache_status fail_text(kvcache_status code, const char* literal) noexcept {
  last_error = literal;
  return code;
}

kvcache_status fail(const Status& status) noexcept {
  try {
    last_message = status.message();
  } catch (const std::exception&) {
    return fail_text(static_cast<kvcache_status>(status.code()), "no memory for a message");
  }
  last_error = last_message.c_str();
  return static_cast<kvcache_status>(status.code());
}

kvcache_status null_argument(const char* name) noexcept {
  return guarded([&] { return fail(Status::invalid_argument(name, " is NULL")); });
}

}  // namespace kvcache::c_api

extern "C" {

const char* kvcache_version(void) { return KVCACHE_VERSION; }

const char* kvcache_last_error(void) { return last_error; }

const char* kvcache_status_name(kvcache_status status) {
  switch (status) {
    case KVCACHE_OK:
      return "ok";
    case KVCACHE_INVALID_ARGUMENT:
      return "invalid argument";
    case KVCACHE_NOT_FOUND:
      return "not found";
    case KVCACHE_OUT_OF_CAPACITY:
      return "out of capacity";
    case KVCACHE_CORRUPTION:
      return "corruption";
    case KVCACHE_UNSUPPORTED:
      return "unsupported";
    case KVCACHE_IO_ERROR:
      return "I/O error";
    case KVCACHE_NON_FINITE:
      return "not finite";
    case KVCACHE_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

kvcache_status kvcache_cache_create(const kvcache_state_decl* decls, size_t decl_count,
                                    const kvcache_options* options, kvcache_cache** out) {
  return guarded([&]() -> kvcache_status {
    if (decls == nullptr || options == nullptr || out == nullptr) {
      return null_argument("decls, options or out");
    }
    std::vector<StateDecl> list;
    for (std::size_t i = 0; i < decl_count; ++i) {
      auto decl = decl_from(decls[i]);
      if (!decl) return fail(decl.status());
      list.push_back(std::move(decl).value());
    }
    auto plan = StatePlan::create(std::move(list), {options->memory_bytes, options->block_tokens,
                                                    options->sequences, options->ring_depth});
    if (!plan) return fail(plan.status());
    auto cache =
        Cache::create(std::move(plan).value(),
                      {.policy = options->policy == nullptr ? "price_list" : options->policy});
    if (!cache) return fail(cache.status());
    *out = new kvcache_cache{std::move(cache).value()};
    return KVCACHE_OK;
  });
}

void kvcache_cache_destroy(kvcache_cache* cache) { delete cache; }

kvcache_status kvcache_cache_stats(const kvcache_cache* cache, kvcache_stats* out) {
  return guarded([&]() -> kvcache_status {
    if (cache == nullptr || out == nullptr) return null_argument("cache or out");
    if (Status status = cache->cache->check_process(); !status) return fail(status);
    const kvcache::CacheStats stats = cache->cache->stats();
    *out = {stats.budget_bytes,      stats.committed_bytes, stats.peak_bytes,
            stats.used_bytes,        stats.open_sequences,  stats.indexed_blocks,
            stats.indexed_snapshots, stats.evicted_blocks,  stats.evicted_snapshots};
    return KVCACHE_OK;
  });
}

kvcache_status kvcache_sequence_open(kvcache_cache* cache, const int32_t* tokens,
                                     size_t token_count, const void* space, size_t space_bytes,
                                     kvcache_sequence** out) {
  return guarded([&]() -> kvcache_status {
    if (cache == nullptr || out == nullptr || (tokens == nullptr && token_count > 0) ||
        (space == nullptr && space_bytes > 0)) {
      return null_argument("cache, tokens, space or out");
    }
    kvcache::PrefixSpace name;
    if (space != nullptr) name.name.assign(static_cast<const char*>(space), space_bytes);
    auto sequence = cache->cache->open({tokens, token_count}, name);
    if (!sequence) return fail(sequence.status());
    *out = new kvcache_sequence{std::move(sequence).value()};
    return KVCACHE_OK;
  });
}

void kvcache_sequence_close(kvcache_sequence* sequence) { delete sequence; }

uint64_t kvcache_sequence_cached_tokens(const kvcache_sequence* sequence) {
  return sequence == nullptr ? 0 : sequence->sequence.cached_tokens();
}

uint64_t kvcache_sequence_length(const kvcache_sequence* sequence) {
  return sequence == nullptr ? 0 : sequence->sequence.length();
}

kvcache_status kvcache_sequence_extend(kvcache_sequence* sequence, const int32_t* tokens,
                                       size_t token_count) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr || (tokens == nullptr && token_count > 0)) {
      return null_argument("sequence or tokens");
    }
    return done(sequence->sequence.extend({tokens, token_count}));
  });
}

kvcache_status kvcache_sequence_write(kvcache_sequence* sequence, int32_t layer, uint64_t start,
                                      const kvcache_rows* components, size_t component_count) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr || components == nullptr)
      return null_argument("sequence or components");
    const auto views = views_from<kvcache::codec::RowsView>(components, component_count);
    if (!views) return fail(views.status());
    return done(sequence->sequence.write(layer, start, *views));
  });
}

kvcache_status kvcache_sequence_read(const kvcache_sequence* sequence, int32_t layer,
                                     uint64_t start, const kvcache_rows* components,
                                     size_t component_count) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr || components == nullptr)
      return null_argument("sequence or components");
    const auto views = views_from<kvcache::codec::MutableRowsView>(components, component_count);
    if (!views) return fail(views.status());
    return done(sequence->sequence.read(layer, start, *views));
  });
}

kvcache_status kvcache_sequence_state(const kvcache_sequence* sequence, int32_t layer,
                                      const char* name, void** out_data, uint64_t* out_bytes) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr || name == nullptr || out_data == nullptr || out_bytes == nullptr) {
      return null_argument("sequence, name, out_data or out_bytes");
    }
    const auto view = sequence->sequence.state(layer, name);
    if (!view) return fail(view.status());
    *out_data = view->data;
    *out_bytes = view->component->bytes;
    return KVCACHE_OK;
  });
}

kvcache_status kvcache_sequence_advance(kvcache_sequence* sequence, uint64_t positions) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr) return null_argument("sequence");
    return done(sequence->sequence.advance(positions));
  });
}

kvcache_status kvcache_sequence_write_records(kvcache_sequence* sequence, int32_t layer,
                                              const char* name, uint64_t first,
                                              const kvcache_rows* rows) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr || name == nullptr || rows == nullptr) {
      return null_argument("sequence, name or rows");
    }
    const auto views = views_from<kvcache::codec::RowsView>(rows, 1);
    if (!views) return fail(views.status());
    return done(sequence->sequence.write_records(layer, name, first, views->front()));
  });
}

kvcache_status kvcache_sequence_read_records(const kvcache_sequence* sequence, int32_t layer,
                                             const char* name, uint64_t first,
                                             const kvcache_rows* rows) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr || name == nullptr || rows == nullptr) {
      return null_argument("sequence, name or rows");
    }
    const auto views = views_from<kvcache::codec::MutableRowsView>(rows, 1);
    if (!views) return fail(views.status());
    return done(sequence->sequence.read_records(layer, name, first, views->front()));
  });
}

kvcache_status kvcache_sequence_snapshot(kvcache_sequence* sequence) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr) return null_argument("sequence");
    return done(sequence->sequence.snapshot().status());
  });
}

kvcache_status kvcache_sequence_publish(kvcache_sequence* sequence) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr) return null_argument("sequence");
    return done(sequence->sequence.publish());
  });
}

kvcache_status kvcache_sequence_fork(kvcache_sequence* sequence, kvcache_sequence** out) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr || out == nullptr) return null_argument("sequence or out");
    auto child = sequence->sequence.fork();
    if (!child) return fail(child.status());
    *out = new kvcache_sequence{std::move(child).value()};
    return KVCACHE_OK;
  });
}

kvcache_status kvcache_sequence_truncate(kvcache_sequence* sequence, uint64_t position) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr) return null_argument("sequence");
    return done(sequence->sequence.truncate(position));
  });
}

kvcache_status kvcache_sequence_record(kvcache_sequence* sequence) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr) return null_argument("sequence");
    return done(sequence->sequence.record().status());
  });
}

kvcache_status kvcache_sequence_rollback(kvcache_sequence* sequence, uint64_t position) {
  return guarded([&]() -> kvcache_status {
    if (sequence == nullptr) return null_argument("sequence");
    return done(sequence->sequence.rollback(position));
  });
}

}  // extern "C"
