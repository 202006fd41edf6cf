// What the files of the C face share: the handles, and the one way in and out of every entry.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvcache/accept_stash.h"
#include "kvcache/batch.h"
#include "kvcache/batch_verify.h"
#include "kvcache/c.h"
#include "kvcache/cache.h"
#include "kvcache/carry_table.h"
#include "kvcache/draft_tokens.h"
#include "kvcache/hidden_capture.h"
#include "kvcache/page_pool.h"
#include "kvcache/prompt_lookup.h"
#include "kvcache/token_tree.h"
#include "kvcache/verify.h"
#include "kvcache/verify_table.h"

struct kvcache_cache {
  std::unique_ptr<kvcache::Cache> cache;
};

struct kvcache_sequence {
  kvcache::Sequence sequence;
};

struct kvcache_batch {
  kvcache::Batch batch;
};

struct kvcache_verify {
  kvcache::VerifySession session;
  std::array<std::int32_t, 2> offsets = {};
  std::int64_t start = 0;
};

struct kvcache_batch_verify {
  kvcache::BatchVerifySession session;
};

struct kvcache_verify_table {
  kvcache::VerifyTable table;
};

struct kvcache_carry_table {
  kvcache::CarryTable table;
};

struct kvcache_tree {
  kvcache::TokenTree tree;
};

struct kvcache_pin {
  kvcache::Pin pin;
};

struct kvcache_reservation {
  kvcache::Reservation reservation;
};

struct kvcache_tenants {
  std::vector<kvcache::TenantUsage> list;
};

struct kvcache_events {
  std::vector<kvcache::CacheEvent> list;
  // As C sees them, of each event.
  std::vector<std::vector<kvcache_media>> media;
  std::vector<kvcache_space> spaces;
};

struct kvcache_page_views {
  std::vector<std::vector<kvcache::PageView>> list;  // by component
  std::size_t count = 0;
};

struct kvcache_pool {
  std::unique_ptr<kvcache::PagePool> pool;
};

struct kvcache_block_pin {
  std::shared_ptr<std::byte> block;
};

struct kvcache_hidden_capture {
  std::unique_ptr<kvcache::HiddenCapture> capture;
};

struct kvcache_hidden_bands {
  std::unique_ptr<kvcache::HiddenBands> bands;
};

struct kvcache_accept_stash {
  std::unique_ptr<kvcache::AcceptStash> stash;
};

struct kvcache_drafts {
  std::unique_ptr<kvcache::DraftTokens> drafts;
};

struct kvcache_lookup {
  std::unique_ptr<kvcache::PromptLookupIndex> index;
};

struct kvcache_lookup_cache {
  std::unique_ptr<kvcache::PromptLookupCache> cache;
};

struct kvcache_lookup_scope {
  kvcache::PromptLookupScope scope;
};

namespace kvcache::c_api {

// Remember the text for kvcache_last_error() and give the number.
kvcache_status fail(const Status& status) noexcept;
kvcache_status fail_text(kvcache_status code, const char* literal) noexcept;

// A pointer that may not be NULL, and its name.
struct Given {
  const char* name;
  const void* pointer;
  bool fits = true;
};

// `count` elements, of which there may be none, and not more than memory can hold.
template <typename T>
Given some(const char* name, const T* pointer, std::size_t count) {
  std::size_t most = PTRDIFF_MAX;
  if constexpr (!std::is_void_v<T>) most /= sizeof(T);
  return {name, count == 0 ? static_cast<const void*>(name) : pointer, count <= most};
}

// Runs the body of an entry, which returns a Status, once the pointers are there. No exception may
// reach C; only the system's memory running out, in the middle of a call, makes one here.
template <typename Body>
kvcache_status entry(std::initializer_list<Given> pointers, Body&& body) noexcept {
  try {
    for (const Given& given : pointers) {
      if (given.pointer == nullptr) return fail(Status::invalid_argument(given.name, " is NULL"));
      if (!given.fits) {
        return fail(Status::out_of_capacity(given.name, ": more elements than memory can hold"));
      }
    }
    const Status status = body();
    return status.is_ok() ? KVCACHE_OK : fail(status);
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

// What a call has made, as a new handle of the caller's.
template <typename T, typename Handle>
Status hand_over(Result<T>&& made, Handle** out) {
  if (!made) return made.status();
  *out = new Handle{std::move(made).value()};
  return Status::ok();
}

// A number that a call answers with.
template <typename T, typename Out>
Status answer(const Result<T>& result, Out* out) {
  if (!result) return result.status();
  *out = *result;
  return Status::ok();
}

// A tensor of fixed-size state.
template <typename Data>
Status answer_state(const Result<StateView>& view, Data** out_data, std::uint64_t* out_bytes) {
  if (!view) return view.status();
  *out_data = view->data;
  *out_bytes = view->component->bytes;
  return Status::ok();
}

// One number for each sequence of a batch; none: 1 each.
inline std::span<const std::uint64_t> counts_of(const kvcache_batch* batch,
                                                const std::uint64_t* counts) {
  if (counts == nullptr) return {};
  return {counts, batch->batch.size()};
}

}  // namespace kvcache::c_api
