// From structs, arrays and numbers of C to those of the core, and back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/c.h"
#include "kvcache/codec.h"
#include "kvcache/lifetime.h"
#include "kvcache/memory_options.h"
#include "kvcache/prefix_space.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache::c_api {

// ---- Structs that begin with their size --------------------------------------------------------

// Bytes of T when the ABI began. To be specialised once T has grown, by fields that begin where its
// sizeof was: padding at its end is not zero.
template <typename T>
inline constexpr std::size_t kFirstSize = sizeof(T);

// kInvalidArgument: not a size that a struct of `first` bytes may have grown to.
Status check_size(const char* name, std::size_t size, std::size_t first);
// kUnsupported: a newer caller's struct has something in fields that are not known here.
Status check_rest(const char* name, const void* from, std::size_t size, std::size_t known);

// The caller's struct, with zeros for what an older one lacks; nothing but zeros without one.
template <typename T>
Result<T> read_struct(const char* name, const T* from) {
  T value = {};
  if (from == nullptr) return value;
  const std::size_t size = from->struct_size;
  if (Status status = check_size(name, size, kFirstSize<T>); !status) return status;
  if (Status status = check_rest(name, from, size, sizeof(T)); !status) return status;
  std::memcpy(&value, from, std::min(size, sizeof(T)));
  return value;
}

// Structs of the caller's, which lie as far apart as the first of them is large.
template <typename To, typename From>
Result<std::vector<To>> read_structs(const char* name, const From* first, std::size_t count,
                                     Result<To> (*convert)(const From*)) {
  std::vector<To> list;
  list.reserve(count);  // before a nonsensical count is believed
  const auto* at = reinterpret_cast<const std::byte*>(first);
  for (std::size_t i = 0; i < count; ++i, at += first->struct_size) {
    const auto* from = reinterpret_cast<const From*>(at);
    const std::string where = std::string(name) + "[" + std::to_string(i) + "]: ";
    if (from->struct_size != first->struct_size) {
      return Status::invalid_argument(where, "struct_size is ", from->struct_size,
                                      ", that of the first is ", first->struct_size);
    }
    auto to = convert(from);
    if (!to) return to.status().prefixed(where);
    list.push_back(std::move(to).value());
  }
  return list;
}

// Fills what the caller's struct has room for.
template <typename T>
Status write_struct(T* to, T value) {
  const std::size_t size = to->struct_size;
  if (Status status = check_size("out", size, kFirstSize<T>); !status) return status;
  value.struct_size = size;
  std::memcpy(to, &value, std::min(size, sizeof(T)));
  if (size > sizeof(T)) {
    std::memset(reinterpret_cast<std::byte*>(to) + sizeof(T), 0, size - sizeof(T));
  }
  return Status::ok();
}

// Grown since the ABI began.
template <>
inline constexpr std::size_t kFirstSize<kvcache_options> = offsetof(kvcache_options, remote);

// ---- Values ------------------------------------------------------------------------------------

// An int of C may hold any number; only those from 0 to `last` are members of the enumeration.
template <typename E, typename C>
Status read_enum(const char* name, C value, C last, E* to) {
  if (value < 0 || value > last) {
    return Status::invalid_argument(name, " is ", static_cast<std::int64_t>(value),
                                    ", expected 0..", static_cast<std::int64_t>(last));
  }
  *to = static_cast<E>(value);
  return Status::ok();
}

template <typename T>
void choose(T value, T* field) {  // where 0 stands for the default
  if (value != 0) *field = value;
}
template <typename T>
void choose(const T* value, T* field) {  // where NULL does
  if (value != nullptr) *field = *value;
}
template <typename T>
std::optional<T> optional_from(const T* value) {
  return value == nullptr ? std::optional<T>() : *value;
}
// Of milliseconds, which 0 stands for none of.
inline std::optional<std::uint64_t> ttl_from(std::uint64_t ttl_ms) {
  return ttl_ms == 0 ? std::optional<std::uint64_t>() : ttl_ms;
}
inline MemoryShare share_from(const kvcache_share& share) {
  return {.fraction = share.fraction, .bytes = optional_from(share.bytes)};
}
// kInvalidArgument: `huge_pages` is no kvcache_huge_pages. NULL: the defaults.
Status read_memory(const kvcache_huge_pages* huge_pages, const std::int32_t* numa_node,
                   std::uint32_t lock_memory, MemoryOptions* to);
inline std::string text_from(const char* text) { return text == nullptr ? "" : text; }
Result<std::string> bytes_from(const char* name, const kvcache_bytes& bytes);
Result<std::vector<MediaSpan>> media_from(const kvcache_media* media, std::size_t count);
Result<PrefixSpace> space_from(const kvcache_space* space);

// The other way; they borrow.
inline kvcache_bytes to_bytes(const std::string& text) { return {text.data(), text.size()}; }
std::vector<kvcache_media> to_media(const std::vector<MediaSpan>& media);
kvcache_space to_space(const PrefixSpace& space);  // without media

// ---- Arrays ------------------------------------------------------------------------------------

// What `inside` finds behind each handle of a list. kInvalidArgument: one is NULL.
template <typename Handle, typename Inside>
auto inside_each(const char* name, Handle* const* handles, std::size_t count, const Inside& inside)
    -> Result<std::vector<decltype(inside(*handles[0]))>> {
  std::vector<decltype(inside(*handles[0]))> list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (handles[i] == nullptr) return Status::invalid_argument(name, "[", i, "] is NULL");
    list.push_back(inside(*handles[i]));
  }
  return list;
}

// The rows of a C caller. View: codec::RowsView or codec::MutableRowsView.
template <typename View>
Result<View> view_from(const char* name, const kvcache_rows& rows) {
  if (rows.data == nullptr && rows.tokens > 0) {
    return Status::invalid_argument(name, ".data is NULL");
  }
  View view{rows.data,  DType::kF32,       rows.tokens,     rows.heads,
            rows.width, rows.token_stride, rows.head_stride};
  Status status = read_enum(name, rows.dtype, KVCACHE_I8, &view.dtype);
  if (!status) return status.prefixed("dtype of ");
  return view;
}

template <typename View>
Result<std::vector<View>> views_from(const kvcache_rows* rows, std::size_t count) {
  std::vector<View> views;
  views.reserve(count);  // before a nonsensical count is believed
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = "components[" + std::to_string(i) + "]";
    auto view = view_from<View>(name.c_str(), rows[i]);
    if (!view) return view.status();
    views.push_back(*view);
  }
  return views;
}

// Copies a list to `out`, with room for `capacity` entries. `to_count` gets its length in any case.
template <typename T>
Status copy_out(const std::vector<T>& list, T* out, std::size_t capacity, std::size_t* to_count) {
  *to_count = list.size();
  if (list.size() > capacity) {
    return Status::invalid_argument("the list has ", list.size(), " entries, out has room for ",
                                    capacity);
  }
  std::copy(list.begin(), list.end(), out);
  return Status::ok();
}

}  // namespace kvcache::c_api
