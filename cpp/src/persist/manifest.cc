#include "persist/manifest.h"

#include <algorithm>
#include <utility>

#include "base/sha256.h"
#include "persist/json.h"
#include "persist/row_storage.h"

namespace kvcache::persist {
namespace {

constexpr std::string_view kFormat = "kvcache-prompt-cache";

std::string_view storage_name(DType dtype) {
  return dtype == DType::kI8 ? "int8-per-token-head-f32-scale-v1" : dtype_name(dtype);
}

std::string_view storage_name(const Group& group) {
  return storage_name(group.components[0].dtype);
}

// Reads members of one object and remembers the first that is missing or of another type.
class Members {
 public:
  Members(const json::Value& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  std::uint64_t number(std::string_view key) {
    const json::Value* value = get(key, json::Kind::kUnsigned, "a non-negative integer");
    return value == nullptr ? 0 : value->number;
  }
  std::string text(std::string_view key) {
    const json::Value* value = get(key, json::Kind::kString, "text");
    return value == nullptr ? std::string() : value->text;
  }
  const std::vector<json::Value>& list(std::string_view key) {
    static const std::vector<json::Value> kNone;
    const json::Value* value = get(key, json::Kind::kArray, "a list");
    return value == nullptr ? kNone : value->items;
  }
  const Status& status() const { return status_; }

 private:
  const json::Value* get(std::string_view key, json::Kind kind, std::string_view expected) {
    const json::Value* value = object_.find(key);
    if (value != nullptr && value->kind == kind) return value;
    if (status_) status_ = Status::corruption(where_, key, ": expected ", expected);
    return nullptr;
  }

  const json::Value& object_;
  const std::string where_;
  Status status_;
};

Status other_storage(const std::string& path, const StatePlan& stored, const StatePlan& own) {
  const auto [theirs, ours] =
      std::mismatch(stored.decls().begin(), stored.decls().end(), own.decls().begin(),
                    [](const auto& a, const auto& b) { return a.dtype == b.dtype; });
  return Status::unsupported(path, ": its rows are stored as ", storage_name(theirs->dtype),
                             ", this cache's plan stores ", storage_name(ours->dtype),
                             "; load() converts them when asked to (convert)");
}

// The writer's plan, as in Manifest.
Result<std::shared_ptr<const StatePlan>> check_identity(Members& members, const std::string& path,
                                                        const StatePlan& plan,
                                                        const std::string& space, bool convert) {
  const std::string format = members.text("format");
  const std::uint64_t version = members.number("version");
  if (!members.status()) return members.status();
  if (format != kFormat || version < 1 || version > kPromptCacheVersion) {
    return Status::unsupported(path, ": format ", format, " version ", version,
                               ", this build reads ", kFormat, " up to version ",
                               kPromptCacheVersion);
  }
  const std::string fingerprint = members.text("fingerprint");
  const std::string saved_space = members.text("space");
  if (!members.status()) return members.status();
  std::shared_ptr<const StatePlan> stored;
  if (fingerprint != plan.fingerprint()) {
    auto other = plan_stored_otherwise(plan, fingerprint);
    if (!other) return other.status();
    stored = std::move(other).value();
    if (!stored) {
      return Status::unsupported(path, ": saved for another model or storage format (", fingerprint,
                                 "), this cache's plan is ", plan.fingerprint());
    }
    if (!convert) return other_storage(path, *stored, plan);
  }
  if (saved_space != space) {
    return Status::unsupported(path,
                               ": saved under another namespace, adapter or salt; give the "
                               "ones it was saved with");
  }
  return stored;
}

Status read_groups(const std::vector<json::Value>& groups, const std::string& path,
                   const StatePlan& plan, PrefixShape& shape) {
  if (groups.size() != plan.groups().size()) {
    return Status::corruption(path, ": groups: ", groups.size(), " entries, the model has ",
                              plan.groups().size());
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Group& group = plan.groups()[i];
    const std::string where = path + ": groups[" + std::to_string(i) + "].";
    Members members(groups[i], where);
    const std::uint64_t window = members.number("window");
    const std::uint64_t start = members.number("start");
    const std::string storage = members.text("storage");
    const std::uint64_t sinks = group.sinks == 0 ? 0 : members.number("sinks");
    if (!members.status()) return members.status();
    if (window != group.window || storage != storage_name(group)) {
      return Status::corruption(where, "window: ", window, " in ", storage, ", the model's is ",
                                group.window, " in ", storage_name(group));
    }
    shape.starts.push_back(start);
    shape.sinks.push_back(sinks);
    if (sinks > start || !covers(shape, i, group, shape.tokens)) {
      return Status::corruption(where, "start: ", start, ", sinks: ", sinks, ", position ",
                                shape.tokens, " needs rows from ", group.live_start(shape.tokens),
                                " and the first ", group.sink_end(shape.tokens));
    }
  }
  return Status::ok();
}

Status read_snapshots(const std::vector<json::Value>& snapshots, const std::string& path,
                      const StatePlan& plan, PrefixShape& shape) {
  std::uint64_t last = 0;
  for (const json::Value& position : snapshots) {
    if (position.kind != json::Kind::kUnsigned || position.number <= last ||
        position.number > shape.tokens) {
      return Status::corruption(path, ": snapshots: expected ascending positions up to ",
                                shape.tokens);
    }
    last = position.number;
    shape.snapshots.push_back(last);
  }
  if (last != (plan.has_fixed_state() ? shape.tokens : 0)) {
    return Status::corruption(path, ": snapshots: the last is at ", last, ", expected one at ",
                              plan.has_fixed_state() ? shape.tokens : 0);
  }
  return Status::ok();
}

Result<std::vector<ShardEntry>> read_shards(const std::vector<json::Value>& shards,
                                            const std::string& path) {
  std::vector<ShardEntry> entries;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string where = path + ": shards[" + std::to_string(i) + "].";
    Members members(shards[i], where);
    ShardEntry entry;
    entry.file = members.text("file");
    entry.bytes = members.number("bytes");
    const std::uint64_t crc = members.number("crc32c");
    if (!members.status()) return members.status();
    if (crc > UINT32_MAX) return Status::corruption(where, "crc32c: does not fit 32 bits");
    entry.crc = static_cast<std::uint32_t>(crc);
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

std::string prefix_sha256(std::span<const std::int32_t> tokens) {
  Sha256 hash;
  hash.update(tokens.data(), tokens.size_bytes());
  return hex(hash.finish());
}

std::string write_manifest(const StatePlan& plan, const Manifest& manifest) {
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  std::string out = "{\n  \"format\": ";
  json::append_string(out, kFormat);
  out += ",\n  \"version\": " + number(manifest.version) + ",\n  \"fingerprint\": ";
  json::append_string(out, plan.fingerprint());
  out += ",\n  \"space\": ";
  json::append_string(out, manifest.space);
  out += ",\n  \"tokens\": " + number(manifest.shape.tokens) + ",\n  \"prefix_sha256\": ";
  json::append_string(out, manifest.prefix_sha256);
  out += ",\n  \"block_tokens\": " + number(plan.block_tokens()) + ",\n  \"groups\": [";
  for (std::size_t i = 0; i < plan.groups().size(); ++i) {
    const Group& group = plan.groups()[i];
    out += i == 0 ? "\n    {\"window\": " : ",\n    {\"window\": ";
    out += number(group.window) + ", \"start\": " + number(manifest.shape.starts[i]) +
           ", \"storage\": ";
    json::append_string(out, storage_name(group));
    if (group.sinks != 0) out += ", \"sinks\": " + number(manifest.shape.sinks[i]);
    out += '}';
  }
  out += "\n  ],\n  \"snapshots\": [";
  for (std::size_t i = 0; i < manifest.shape.snapshots.size(); ++i) {
    if (i > 0) out += ", ";
    out += number(manifest.shape.snapshots[i]);
  }
  out += "],\n  \"shards\": [";
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    const ShardEntry& shard = manifest.shards[i];
    out += i == 0 ? "\n    {\"file\": " : ",\n    {\"file\": ";
    json::append_string(out, shard.file);
    out += ", \"bytes\": " + number(shard.bytes) + ", \"crc32c\": " + number(shard.crc) + '}';
  }
  return out + "\n  ]\n}\n";
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& path,
                                const StatePlan& own, const std::string& space, bool convert) {
  const auto parsed = json::parse(text);
  if (!parsed) return Status::corruption(path, ": ", parsed.status().message());
  Members members(*parsed, path + ": ");
  auto stored = check_identity(members, path, own, space, convert);
  if (!stored) return stored.status();
  Manifest manifest;
  manifest.stored = std::move(stored).value();
  const StatePlan& plan = manifest.plan(own);
  manifest.version = members.number("version");
  manifest.space = space;
  manifest.shape.tokens = members.number("tokens");
  manifest.prefix_sha256 = members.text("prefix_sha256");
  const std::uint64_t block_tokens = members.number("block_tokens");
  const auto& groups = members.list("groups");
  const auto& snapshots = members.list("snapshots");
  const auto& shards = members.list("shards");
  if (!members.status()) return members.status();
  if (manifest.shape.tokens == 0 || block_tokens == 0) {
    return Status::corruption(path, ": tokens and block_tokens must be positive");
  }
  if (Status status = read_groups(groups, path, plan, manifest.shape); !status) return status;
  if (Status status = read_snapshots(snapshots, path, plan, manifest.shape); !status) {
    return status;
  }
  auto entries = read_shards(shards, path);
  if (!entries) return entries.status();
  manifest.shards = std::move(entries).value();
  return manifest;
}

}  // namespace kvcache::persist
