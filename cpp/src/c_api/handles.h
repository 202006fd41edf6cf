// What the files of the C face share: the handles, and the one way out of every entry.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "kvcache/batch.h"
#include "kvcache/c.h"
#include "kvcache/cache.h"

struct kvcache_cache {
  std::unique_ptr<kvcache::Cache> cache;
};

struct kvcache_sequence {
  kvcache::Sequence sequence;
};

struct kvcache_batch {
  kvcache::Batch batch;
};

namespace kvcache::c_api {

// Remember the text for kvcache_last_error() and give the number.
kvcache_status fail(const Status& status) noexcept;
kvcache_status fail_text(kvcache_status code, const char* literal) noexcept;
kvcache_status null_argument(const char* name) noexcept;
inline kvcache_status done(const Status& status) noexcept {
  return status.is_ok() ? KVCACHE_OK : fail(status);
}

// Runs the body of an entry. No exception may reach C; only the system's memory running out, in
// the middle of a call, makes one here.
template <typename Body>
kvcache_status guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail_text(KVCACHE_OUT_OF_CAPACITY, "the process is out of memory");
  } catch (const std::length_error&) {
    return fail_text(KVCACHE_OUT_OF_CAPACITY, "more elements than memory can hold");
  } catch (const std::exception& error) {
    return fail(Status::internal(error.what()));
  } catch (...) {
    return fail_text(KVCACHE_INTERNAL, "unknown exception");
  }
}

// An int of C may hold any number; only those that are members of the enumeration pass.
inline bool is_dtype(int value) { return value >= KVCACHE_F32 && value <= KVCACHE_I8; }

// The rows of a C caller. View: codec::RowsView or codec::MutableRowsView.
template <typename View>
Result<std::vector<View>> views_from(const kvcache_rows* rows, std::size_t count) {
  std::vector<View> views;
  for (std::size_t i = 0; i < count; ++i) {
    const kvcache_rows& from = rows[i];
    if (from.data == nullptr && from.tokens > 0) {
      return Status::invalid_argument("components[", i, "].data is NULL");
    }
    if (!is_dtype(from.dtype)) {
      return Status::invalid_argument("components[", i, "].dtype is not known");
    }
    views.push_back({from.data, static_cast<DType>(from.dtype), from.tokens, from.heads, from.width,
                     from.token_stride, from.head_stride});
  }
  return views;
}

}  // namespace kvcache::c_api
