#include "c_api/convert.h"

namespace kvcache::c_api {

namespace {

// No struct grows beyond; so large a size is none.
constexpr std::size_t kMostStructBytes = 4096;

}  // namespace

Status check_size(const char* name, std::size_t size, std::size_t first) {
  if (size >= first && size <= kMostStructBytes && size % alignof(void*) == 0) return Status::ok();
  return Status::invalid_argument(name, ".struct_size is ", size, ", expected its sizeof, ", first,
                                  " or more");
}

Status check_rest(const char* name, const void* from, std::size_t size, std::size_t known) {
  const auto* bytes = static_cast<const unsigned char*>(from);
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    return Status::unsupported(name, " has a value at byte ", i, ", this library knows ", known,
                               " bytes; use a newer one or leave the rest 0");
  }
  return Status::ok();
}

Status read_memory(const kvcache_huge_pages* huge_pages, const std::int32_t* numa_node,
                   std::uint32_t lock_memory, MemoryOptions* to) {
  choose(numa_node, &to->numa_node);
  to->lock = lock_memory != 0;
  if (huge_pages == nullptr) return Status::ok();
  return read_enum("huge_pages", *huge_pages, KVCACHE_HUGE_PAGES_SYSTEM, &to->huge_pages);
}

Result<std::string> bytes_from(const char* name, const kvcache_bytes& bytes) {
  if (bytes.size == 0) return std::string();
  if (bytes.data == nullptr) return Status::invalid_argument(name, ".data is NULL");
  return std::string(static_cast<const char*>(bytes.data), bytes.size);
}

Result<std::vector<MediaSpan>> media_from(const kvcache_media* media, std::size_t count) {
  std::vector<MediaSpan> spans;
  if (count == 0) return spans;
  if (media == nullptr) return Status::invalid_argument("media is NULL, media_count is ", count);
  spans.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto digest = bytes_from("digest", media[i].digest);
    if (!digest) return digest.status().prefixed("media[" + std::to_string(i) + "].");
    spans.push_back({media[i].start, media[i].length, std::move(digest).value()});
  }
  return spans;
}

Result<PrefixSpace> space_from(const kvcache_space* space) {
  auto from = read_struct("space", space);
  if (!from) return from.status();
  auto name = bytes_from("space.name", from->name);
  if (!name) return name.status();
  auto adapter = bytes_from("space.adapter", from->adapter);
  if (!adapter) return adapter.status();
  auto salt = bytes_from("space.salt", from->salt);
  if (!salt) return salt.status();
  auto media = media_from(from->media, from->media_count);
  if (!media) return media.status().prefixed("space: ");
  return PrefixSpace{std::move(name).value(), std::move(adapter).value(), std::move(salt).value(),
                     std::move(media).value()};
}

std::vector<kvcache_media> to_media(const std::vector<MediaSpan>& media) {
  std::vector<kvcache_media> list;
  list.reserve(media.size());
  for (const MediaSpan& span : media) {
    list.push_back({span.start, span.length, to_bytes(span.digest)});
  }
  return list;
}

kvcache_space to_space(const PrefixSpace& space) {
  return {sizeof(kvcache_space),
          to_bytes(space.name),
          to_bytes(space.adapter),
          to_bytes(space.salt),
          nullptr,
          0};
}

}  // namespace kvcache::c_api
