// The reader of manifest.json: on any bytes, and on edits of a valid manifest.
#include "fuzz.h"
#include "persist/manifest.h"
#include "persist/shards.h"

namespace {

using kvcache::persist::Manifest;
using kvcache::persist::parse_manifest;
using kvcache::persist::write_manifest;

std::string valid_manifest() {
  Manifest manifest;
  manifest.space = "sha256:00";
  manifest.prefix_sha256 = "00";
  manifest.shape = {.tokens = 20, .starts = {0, 12}, .sinks = {0, 4}, .snapshots = {19, 20}};
  manifest.shards = {{.file = "state.safetensors", .bytes = 160, .crc = 1}};
  return write_manifest(kvcache::fuzz::plan(), manifest);
}

void check(const std::string& text) {
  const kvcache::StatePlan& plan = kvcache::fuzz::plan();
  const auto parsed = parse_manifest(text, "manifest.json", plan, "sha256:00", false);
  if (!parsed) return;
  FUZZ_EXPECT(parsed->shape.starts.size() == plan.groups().size());
  FUZZ_EXPECT(parsed->shape.sinks.size() == plan.groups().size());
  // Numbers that are accepted have files, or are refused there; none overflows on the way.
  const auto shards = kvcache::persist::shard_specs(plan, parsed->shape);
  if (shards) {
    for (const auto& shard : *shards) FUZZ_EXPECT(!shard.arrays.empty());
  }
  // What was understood can be written, and is understood as the same.
  const std::string once = write_manifest(plan, *parsed);
  const auto again = parse_manifest(once, "manifest.json", plan, "sha256:00", false);
  FUZZ_EXPECT(again.is_ok());
  FUZZ_EXPECT(write_manifest(plan, *again) == once);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string valid = valid_manifest();
  check(std::string(reinterpret_cast<const char*>(data), size));
  check(kvcache::fuzz::edited(valid, data, size));
  return 0;
}
