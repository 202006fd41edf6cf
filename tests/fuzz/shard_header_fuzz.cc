// The reader of a shard's safetensors header: on any bytes, and on edits of a valid header.
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "persist/safetensors.h"

namespace {

namespace persist = kvcache::persist;

// Everything, the rows and scales of a layer with INT8 keys among it.
const persist::ShardSpec& shard() {
  static const persist::ShardSpec spec = [] {
    auto specs = persist::shard_specs(
        kvcache::fuzz::plan(),
        {.tokens = 20, .starts = {0, 12}, .sinks = {0, 4}, .snapshots = {19, 20}});
    FUZZ_EXPECT(specs.is_ok() && specs->size() == 1);
    return (*specs)[0];
  }();
  return spec;
}

void check(const std::string& text) {
  static const persist::File file(memfd_create("shard", 0), "state.safetensors");
  FUZZ_EXPECT(ftruncate(file.descriptor(), 0) == 0);
  FUZZ_EXPECT(pwrite(file.descriptor(), text.data(), text.size(), 0) ==
              static_cast<ssize_t>(text.size()));
  const auto header = persist::safetensors::check_header(file, text.size(), shard());
  if (header) FUZZ_EXPECT(*header + shard().payload_bytes == text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string valid =
      persist::safetensors::header(shard()) + std::string(shard().payload_bytes, '\0');
  check(std::string(reinterpret_cast<const char*>(data), size));
  check(kvcache::fuzz::edited(valid, data, size));
  return 0;
}
