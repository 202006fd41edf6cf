#include <algorithm>
#include <utility>

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

Status wrong_checksum(const OpenShard& shard) {
  return Status::corruption(shard.file.path(), ": its checksum is not the manifest's");
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

Status check_bytes(const OpenShard& shard) {
  ChecksumReader reader(shard.file, shard.entry.bytes);
  if (Status status = reader.skip_rest(); !status) return status;
  return reader.crc() == shard.entry.crc ? Status::ok() : wrong_checksum(shard);
}

Status copy_shard(const OpenShard& shard, RowReader& rows, const PrefixBytes& destination) {
  ChecksumReader reader(shard.file, shard.entry.bytes);
  if (Status status = reader.skip(shard.payload_offset); !status) return status;
  for (const ArraySpec& array : shard.spec.arrays) {
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
  if (Status status = reader.skip_rest(); !status) return status;
  return reader.crc() == shard.entry.crc ? Status::ok() : wrong_checksum(shard);
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

Status PromptCacheReader::verify() const {
  for (const OpenShard& shard : impl_->generation.shards) {
    if (Status status = check_bytes(shard); !status) return status;
  }
  return Status::ok();
}

Status PromptCacheReader::read_into(const PrefixBytes& destination) const {
  const Manifest& manifest = impl_->generation.manifest;
  RowReader rows(manifest.plan(*impl_->plan), manifest.shape, *impl_->plan, destination);
  for (const OpenShard& shard : impl_->generation.shards) {
    Status status = copy_shard(shard, rows, destination);
    if (!status) return status;
  }
  return Status::ok();
}

}  // namespace kvcache::persist
