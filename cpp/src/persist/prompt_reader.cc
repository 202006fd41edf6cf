#include <algorithm>
#include <new>
#include <utility>

#include "base/crc32c.h"
#include "base/parallel.h"
#include "base/sha256.h"
#include "persist/files.h"
#include "persist/generation.h"
#include "persist/manifest.h"
#include "persist/prompt_cache.h"
#include "persist/row_storage.h"
#include "persist/safetensors.h"
#include "persist/shards.h"

namespace kvcache::persist {
namespace {

struct OpenShard {
  ShardSpec spec;
  ShardEntry entry;
  File file;
  std::uint64_t payload_offset = 0;
};

struct OpenGeneration {
  Manifest manifest;
  std::vector<OpenShard> shards;
};

Result<Manifest> read_manifest(const File& directory, const std::string& generation,
                               const StatePlan& plan, const std::string& space, bool convert) {
  const auto text = read_small_file(directory, kManifest, kMaxManifestBytes);
  if (!text) return text.status();
  const std::string path = directory.path() + '/' + kManifest;
  const auto digest = manifest_digest(generation);
  if (!digest) {
    return Status::unsupported(path,
                               ": the name of its generation carries no digest; not "
                               "written by this library");
  }
  if (sha256_hex(*text) != *digest) {
    return Status::corruption(path, ": not the manifest that its generation is named after");
  }
  return parse_manifest(*text, path, plan, space, convert);
}

Result<OpenShard> open_shard(const File& directory, const ShardSpec& spec,
                             const ShardEntry& entry) {
  auto file = open_file_at(directory, spec.file);
  if (!file) return file.status();
  const auto size = file->size();
  if (!size) return size.status();
  if (*size != entry.bytes) {
    return Status::corruption(file->path(), ": ", *size, " bytes, its manifest says ", entry.bytes);
  }
  const auto offset = safetensors::check_header(*file, *size, spec);
  if (!offset) return offset.status();
  return OpenShard{spec, entry, std::move(file).value(), *offset};
}

// Everything but the payloads.
Result<OpenGeneration> open_generation(const File& root, const std::string& name,
                                       const StatePlan& plan, const std::string& space,
                                       bool convert) {
  const auto generations = open_directory_at(root, kGenerations);
  if (!generations) return generations.status();
  const auto directory = open_directory_at(*generations, name);
  if (!directory) return directory.status();
  auto manifest = read_manifest(*directory, name, plan, space, convert);
  if (!manifest) return manifest.status();
  const std::string path = directory->path() + '/' + kManifest;
  if (manifest->shape.tokens > kMaxTokens) {
    return Status::corruption(path, ": tokens: ", manifest->shape.tokens, ", at most ", kMaxTokens);
  }
  const auto specs = shard_specs(manifest->plan(plan), manifest->shape, manifest->version);
  if (!specs) return specs.status();
  if (specs->size() != manifest->shards.size()) {
    return Status::corruption(path, ": shards: ", manifest->shards.size(), " files, expected ",
                              specs->size());
  }
  OpenGeneration generation;
  for (std::size_t i = 0; i < specs->size(); ++i) {
    const ShardEntry& entry = manifest->shards[i];
    // The names are known, so no name of a manifest ever becomes a path.
    if (entry.file != (*specs)[i].file) {
      return Status::corruption(path, ": shards[", i, "].file: '", entry.file, "', expected '",
                                (*specs)[i].file, "'");
    }
    auto shard = open_shard(*directory, (*specs)[i], entry);
    if (!shard) return shard.status();
    generation.shards.push_back(std::move(shard).value());
  }
  generation.manifest = std::move(manifest).value();
  return generation;
}

Result<OpenGeneration> open_current(const std::string& path, const StatePlan& plan,
                                    const std::string& space, bool convert) {
  const auto root = open_directory(path);
  if (!root) return root.status();
  return read_newest(
      *root,
      [&](const std::string& name) { return open_generation(*root, name, plan, space, convert); },
      [](const Result<OpenGeneration>& found) { return found.is_ok(); });
}

// What one thread reads: arrays [first, last) of a shard, bytes [begin, end) with its header.
struct ShardPart {
  const OpenShard* shard = nullptr;
  std::size_t first = 0;
  std::size_t last = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  Status status = {};
  std::uint32_t crc = 0;

  std::span<const ArraySpec> arrays() const {
    return std::span(shard->spec.arrays).subspan(first, last - first);
  }
};

// Less is not worth a thread.
constexpr std::uint64_t kLeastPart = 4 << 20;

// Cuts shards between arrays, into parts of at least `bytes` where a shard has more.
std::vector<ShardPart> cut(const std::vector<OpenShard>& shards, std::uint64_t bytes) {
  std::vector<ShardPart> parts;
  for (const OpenShard& shard : shards) {
    const auto& arrays = shard.spec.arrays;
    ShardPart part{.shard = &shard};
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      const std::uint64_t end = shard.payload_offset + arrays[i].offset + arrays[i].bytes;
      if (end - part.begin < bytes || i + 1 == arrays.size()) continue;
      part.last = i + 1;
      part.end = end;
      parts.push_back(part);
      part = {.shard = &shard, .first = i + 1, .begin = end};
    }
    part.last = arrays.size();
    part.end = shard.entry.bytes;
    parts.push_back(part);
  }
  return parts;
}

// Compares the checksums of shards that have been read, part by part.
Status check_checksums(std::span<const ShardPart> parts) {
  std::uint32_t crc = 0;
  for (const ShardPart& part : parts) {
    if (!part.status) return part.status;
    crc = crc32c_joined(part.begin == 0 ? 0 : crc, part.crc, part.end - part.begin);
    if (part.end == part.shard->entry.bytes && crc != part.shard->entry.crc) {
      return Status::corruption(part.shard->file.path(), ": its checksum is not the manifest's");
    }
  }
  return Status::ok();
}

// Reads whole shards with up to `threads` threads: `read` takes of a part what it needs, the rest
// is read for its checksum.
template <typename Read>
Status read_shards(const std::vector<OpenShard>& shards, unsigned threads, const Read& read) {
  std::uint64_t bytes = 0;
  for (const OpenShard& shard : shards) bytes += shard.entry.bytes;
  const auto used = std::clamp<std::uint64_t>(bytes / kLeastPart, 1, threads);
  std::vector<ShardPart> parts = cut(shards, bytes / used + 1);
  for_each_part(parts.size(), used, [&](std::size_t, std::size_t first, std::size_t count) {
    for (ShardPart& part : std::span(parts).subspan(first, count)) {
      try {
        ChecksumReader reader(part.shard->file, part.begin, part.end);
        part.status = read(part, reader);
        if (part.status) part.status = reader.skip_rest();
        part.crc = reader.crc();
      } catch (const std::bad_alloc&) {  // on a thread of ours nobody else would catch it
        part.status = Status::out_of_capacity("load: the process is out of memory");
      }
      if (!part.status) return;
    }
  });
  return check_checksums(parts);
}

Status read_part(const ShardPart& part, RowReader& rows, const PrefixBytes& destination,
                 ChecksumReader& reader) {
  const OpenShard& shard = *part.shard;
  if (part.first == 0) {
    if (Status status = reader.skip(shard.payload_offset); !status) return status;
  }
  for (const ArraySpec& array : part.arrays()) {
    Status status;
    if (array.source == ArraySpec::Source::kTokens) {
      status = reader.skip(array.bytes);
    } else if (array.source == ArraySpec::Source::kFixed) {
      for (std::byte* snapshot : destination.snapshots) {
        status = reader.read_later(snapshot + array.fixed->offset, array.fixed->bytes);
        if (!status) return status;
      }
    } else {
      status = rows.read(array, reader);
      if (status.code() == StatusCode::kNonFinite) {
        status = Status::non_finite(shard.file.path(), ": ", status.message());
      }
    }
    if (!status) return status;
  }
  return Status::ok();
}

}  // namespace

struct PromptCacheReader::Impl {
  const StatePlan* plan;
  OpenGeneration generation;
  PrefixShape shape;
  std::vector<std::int32_t> tokens;
};

PromptCacheReader::PromptCacheReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PromptCacheReader::PromptCacheReader(PromptCacheReader&&) noexcept = default;
PromptCacheReader::~PromptCacheReader() = default;

Result<PromptCacheReader> PromptCacheReader::open(const std::string& path, const StatePlan& plan,
                                                  const std::string& space, bool convert) {
  if (path.empty() || path.find('\0') != path.npos) {
    return Status::invalid_argument("load: '", path, "' names no directory");
  }
  auto generation = open_current(path, plan, space, convert);
  if (!generation) return generation.status();
  const Manifest& manifest = generation->manifest;
  const OpenShard& first = generation->shards.front();
  const auto& arrays = first.spec.arrays;
  const auto stored = std::find_if(arrays.begin(), arrays.end(), [](const ArraySpec& array) {
    return array.source == ArraySpec::Source::kTokens;
  });
  std::vector<std::int32_t> tokens(manifest.shape.tokens);
  if (Status status =
          first.file.read_at(first.payload_offset + stored->offset, tokens.data(), stored->bytes);
      !status) {
    return status;
  }
  if (prefix_sha256(tokens) != manifest.prefix_sha256) {
    return Status::corruption(first.file.path(), ": not the tokens that the manifest names");
  }
  PrefixShape shape = shape_of(manifest.shape, manifest.plan(plan), plan);
  return PromptCacheReader(std::make_unique<Impl>(
      Impl{&plan, std::move(generation).value(), std::move(shape), std::move(tokens)}));
}

const std::vector<std::int32_t>& PromptCacheReader::tokens() const { return impl_->tokens; }
const PrefixShape& PromptCacheReader::shape() const { return impl_->shape; }

Status PromptCacheReader::verify(unsigned threads) const {
  return read_shards(impl_->generation.shards, threads,
                     [](const ShardPart&, ChecksumReader&) { return Status::ok(); });
}

Status PromptCacheReader::read_into(const PrefixBytes& destination, unsigned threads) const {
  const Manifest& manifest = impl_->generation.manifest;
  const StatePlan& stored = manifest.plan(*impl_->plan);
  // Rows that are converted need the scales that one file has ahead of them.
  if (&stored != impl_->plan) threads = 1;
  return read_shards(impl_->generation.shards, threads,
                     [&](const ShardPart& part, ChecksumReader& reader) {
                       RowReader rows(stored, manifest.shape, *impl_->plan, destination);
                       return read_part(part, rows, destination, reader);
                     });
}

}  // namespace kvcache::persist
