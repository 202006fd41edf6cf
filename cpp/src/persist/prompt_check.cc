#include <algorithm>
#include <utility>

#include "base/sha256.h"
#include "kvcache/prompt_cache.h"
#include "persist/files.h"
#include "persist/generation.h"
#include "persist/json.h"
#include "persist/manifest.h"

namespace kvcache {
namespace {

using persist::ChecksumReader;
using persist::File;
using persist::json::Kind;
using persist::json::Value;

constexpr std::string_view kFormat = "kvcache-prompt-cache";

const Value* member(const Value& object, std::string_view key, Kind kind) {
  const Value* value = object.find(key);
  return value != nullptr && value->kind == kind ? value : nullptr;
}

// A name that leads nowhere but into the generation.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

void check_shard(const File& directory, const Value& shard, bool deep, PromptCacheReport& report) {
  const Value* name = member(shard, "file", Kind::kString);
  const Value* bytes = member(shard, "bytes", Kind::kUnsigned);
  const Value* crc = member(shard, "crc32c", Kind::kUnsigned);
  const std::string manifest = directory.path() + '/' + persist::kManifest;
  if (name == nullptr || bytes == nullptr || crc == nullptr || !is_plain_name(name->text)) {
    report.problems.push_back(manifest + ": a shard without a plain name, a size and a checksum");
    return;
  }
  report.shards.push_back({name->text, bytes->number});
  const auto file = persist::open_file_at(directory, name->text);
  const auto size = file ? file->size() : Result<std::uint64_t>(file.status());
  if (!size) {
    report.problems.push_back(size.status().message());
    return;
  }
  if (*size != bytes->number) {
    report.problems.push_back(file->path() + ": " + std::to_string(*size) +
                              " bytes, its manifest says " + std::to_string(bytes->number));
    return;
  }
  if (!deep) return;
  ChecksumReader reader(*file, *size);
  const Status status = reader.skip_rest();
  if (!status) {
    report.problems.push_back(status.message());
  } else if (reader.crc() != crc->number) {
    report.problems.push_back(file->path() + ": its checksum is not the manifest's");
  }
}

Status read_manifest(const Value& manifest, const std::string& path, PromptCacheReport& report) {
  const Value* format = member(manifest, "format", Kind::kString);
  const Value* version = member(manifest, "version", Kind::kUnsigned);
  if (format == nullptr || version == nullptr || format->text != kFormat) {
    return Status::corruption(path, ": not the manifest of a prompt cache");
  }
  if (version->number < 1 || version->number > persist::kPromptCacheVersion) {
    return Status::unsupported(path, ": format version ", version->number,
                               ", this library reads versions up to ",
                               persist::kPromptCacheVersion);
  }
  report.version = version->number;
  if (const Value* text = member(manifest, "fingerprint", Kind::kString)) {
    report.fingerprint = text->text;
  }
  if (const Value* text = member(manifest, "space", Kind::kString)) report.space = text->text;
  if (const Value* tokens = member(manifest, "tokens", Kind::kUnsigned)) {
    report.tokens = tokens->number;
  }
  if (const Value* positions = member(manifest, "snapshots", Kind::kArray)) {
    for (const Value& position : positions->items) report.snapshots.push_back(position.number);
  }
  return Status::ok();
}

}  // namespace

Result<PromptCacheReport> check_prompt_cache(const std::string& path, bool deep) {
  const auto root = persist::open_directory(path);
  if (!root) return root.status();
  PromptCacheReport report;
  auto name = persist::read_current(*root);
  if (!name) return name.status();
  report.generation = *name;
  const auto generations = persist::open_directory_at(*root, persist::kGenerations);
  if (!generations) return generations.status();
  const auto directory = persist::open_directory_at(*generations, *name);
  if (!directory) return directory.status();
  const auto text =
      persist::read_small_file(*directory, persist::kManifest, persist::kMaxManifestBytes);
  if (!text) return text.status();
  const std::string where = directory->path() + '/' + persist::kManifest;
  const auto digest = persist::manifest_digest(*name);
  if (!digest || sha256_hex(*text) != *digest) {
    return Status::corruption(where, ": not the manifest that its generation is named after");
  }
  const auto manifest = persist::json::parse(*text);
  if (!manifest) return manifest.status().prefixed(where + ": ");
  if (Status status = read_manifest(*manifest, where, report); !status) return status;
  const Value* shards = member(*manifest, "shards", Kind::kArray);
  if (shards == nullptr) return Status::corruption(where, ": shards: expected a list");
  for (const Value& shard : shards->items) check_shard(*directory, shard, deep, report);
  return report;
}

}  // namespace kvcache
