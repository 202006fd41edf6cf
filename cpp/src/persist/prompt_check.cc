#include <algorithm>
#include <utility>

#include "base/sha256.h"
#include "kvcache/prompt_cache.h"
#include "persist/files.h"
#include "persist/generation.h"
#include "persist/json.h"
#include "persist/manifest.h"
#include "persist/prompt_cache.h"
#include "persist/safetensors.h"

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
  ChecksumReader reader(*file, 0, *size);
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

// The manifest of a generation.
struct Opened {
  std::string generation;
  File directory;
  std::string where;
  Value manifest;
};

Result<Opened> open_manifest(const File& root, const std::string& name) {
  const auto generations = persist::open_directory_at(root, persist::kGenerations);
  if (!generations) return generations.status();
  auto directory = persist::open_directory_at(*generations, name);
  if (!directory) return directory.status();
  const auto text =
      persist::read_small_file(*directory, persist::kManifest, persist::kMaxManifestBytes);
  if (!text) return text.status();
  const std::string where = directory->path() + '/' + persist::kManifest;
  const auto digest = persist::manifest_digest(name);
  if (!digest || sha256_hex(*text) != *digest) {
    return Status::corruption(where, ": not the manifest that its generation is named after");
  }
  auto manifest = persist::json::parse(*text);
  if (!manifest) return manifest.status().prefixed(where + ": ");
  return Opened{name, std::move(directory).value(), where, std::move(manifest).value()};
}

// Where the tokens begin in the file that holds them.
Result<std::uint64_t> find_tokens(const File& file, std::uint64_t count) {
  const auto size = file.size();
  if (!size) return size.status();
  const auto length = persist::safetensors::header_length(file, *size);
  if (!length) return length.status();
  const auto header = persist::safetensors::read_header(file, *length);
  if (!header) return header.status();
  const Value* tokens = member(*header, "tokens", Kind::kObject);
  const Value* span = tokens ? member(*tokens, "data_offsets", Kind::kArray) : nullptr;
  const std::uint64_t front = persist::safetensors::kLengthBytes + *length;
  const std::uint64_t bytes = count * sizeof(std::int32_t);
  const std::uint64_t room = *size - front;
  if (span != nullptr && span->items.size() == 2 && bytes <= room) {
    const std::uint64_t begin = span->items[0].number;
    if (begin <= room - bytes && span->items[1].number == begin + bytes) return front + begin;
  }
  return Status::corruption(file.path(), ": no array of ", count, " tokens");
}

Result<PromptCacheReport> examine(const Opened& opened, bool deep) {
  PromptCacheReport report;
  report.generation = opened.generation;
  if (Status status = read_manifest(opened.manifest, opened.where, report); !status) return status;
  const Value* shards = member(opened.manifest, "shards", Kind::kArray);
  if (shards == nullptr) return Status::corruption(opened.where, ": shards: expected a list");
  for (const Value& shard : shards->items) check_shard(opened.directory, shard, deep, report);
  return report;
}

Result<std::vector<std::int32_t>> read_tokens(const Opened& opened,
                                              const PromptCacheReport& report) {
  const Value* digest = member(opened.manifest, "prefix_sha256", Kind::kString);
  if (report.shards.empty() || digest == nullptr || report.tokens > persist::kMaxTokens) {
    return Status::corruption(opened.where, ": does not say where its tokens are");
  }
  const auto file = persist::open_file_at(opened.directory, report.shards[0].file);
  if (!file) return file.status();
  const auto offset = find_tokens(*file, report.tokens);
  if (!offset) return offset.status();
  std::vector<std::int32_t> tokens(report.tokens);
  if (Status status = file->read_at(*offset, tokens.data(), tokens.size() * sizeof(std::int32_t));
      !status) {
    return status;
  }
  if (persist::prefix_sha256(tokens) == digest->text) return tokens;
  return Status::corruption(file->path(), ": not the tokens that the manifest names");
}

Result<PromptCacheReport> check_generation(const File& root, const std::string& name, bool deep) {
  const auto opened = open_manifest(root, name);
  return opened ? examine(*opened, deep) : opened.status();
}

Result<PromptPrefix> read_prefix(const File& root, const std::string& name) {
  const auto opened = open_manifest(root, name);
  if (!opened) return opened.status();
  auto report = examine(*opened, false);
  if (!report) return report.status();
  if (!report->problems.empty()) return Status::corruption(report->problems.front());
  auto tokens = read_tokens(*opened, *report);
  if (!tokens) return tokens.status();
  return PromptPrefix{std::move(report->fingerprint), std::move(report->space),
                      std::move(report->snapshots), std::move(tokens).value()};
}

}  // namespace

Result<PromptCacheReport> check_prompt_cache(const std::string& path, bool deep) {
  const auto root = persist::open_directory(path);
  if (!root) return root.status();
  return persist::read_newest(
      *root, [&](const std::string& name) { return check_generation(*root, name, deep); },
      [](const Result<PromptCacheReport>& found) { return found && found->problems.empty(); });
}

Result<PromptPrefix> read_prompt_prefix(const std::string& path) {
  const auto root = persist::open_directory(path);
  if (!root) return root.status();
  return persist::read_newest(
      *root, [&](const std::string& name) { return read_prefix(*root, name); },
      [](const Result<PromptPrefix>& found) { return found.is_ok(); });
}

}  // namespace kvcache
