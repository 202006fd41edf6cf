// Sequence::snapshot and the restore of it against memcpy of a slot, in one process.
//   bench_snapshot [rounds]
// The fixed-size state of 24 gated delta layers: a matrix [32, 128, 128] and a convolution of
// [8192, 3] each, in f32; 50 MiB a slot. x is the median over rounds of (time of memcpy of one slot
// / time of the call) within a round. "warm" takes its snapshots into memory used before, "fresh"
// into memory that is touched for the first time, and so does its memcpy. See snapshot.md beside
// this file.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kvcache/cache.h"
#include "measure.h"

namespace {

using namespace kvcache;
using namespace kvcache::measure;

constexpr int kLayers = 24;
const std::vector<std::int32_t> kTokens(64, 1);

StatePlan make_plan() {
  std::vector<StateDecl> decls;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    const std::string id = "l" + std::to_string(layer);
    decls.push_back({.id = id + ".recurrent",
                     .layer = layer,
                     .component = "state.recurrent",
                     .kind = StateKind::kRecurrent,
                     .dtype = DType::kF32,
                     .shape = {32, 128, 128},
                     .verify = VerifyRule::kHSteps});
    decls.push_back({.id = id + ".convolution",
                     .layer = layer,
                     .component = "state.convolution",
                     .kind = StateKind::kRecurrent,
                     .dtype = DType::kF32,
                     .shape = {8192, 3},
                     .verify = VerifyRule::kConvSteps});
  }
  return value_of(StatePlan::create(std::move(decls), {.memory_bytes = std::uint64_t{1} << 30}));
}

// A sequence whose state is full of numbers.
Sequence start(Cache& cache) {
  Sequence sequence = value_of(cache.open(kTokens, {}));
  must(sequence.advance(32));
  std::uint32_t random = 1;
  for (const FixedComponent& part : cache.plan().fixed()) {
    const StateView view = value_of(sequence.state(part.layer, part.name));
    for (std::uint64_t i = 0; i < part.bytes / 4; ++i) {
      random = random * 1664525U + 1013904223U;
      const float value = static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-30F;
      std::memcpy(view.data + 4 * i, &value, 4);
    }
  }
  return sequence;
}

struct Case {
  const char* name;
  SnapshotFormat format;
  bool report;
};

void bench(const Case& run, int rounds) {
  auto cache = value_of(Cache::create(make_plan(), {}));
  const std::size_t bytes = cache->plan().slot_bytes();
  Sequence sequence = start(*cache);
  std::vector<SnapshotError> errors;
  const auto take = [&] {
    value_of(sequence.snapshot(run.format, run.report ? &errors : nullptr));
  };
  char* source = map(bytes);
  std::memcpy(source, value_of(sequence.state(0, "state.recurrent")).data, bytes);
  char* copies[2] = {map(bytes), map(bytes)};
  const double fresh_limit = seconds([&] { std::memcpy(copies[0], source, bytes); });
  const double fresh = fresh_limit / seconds(take);
  for (int i = 0; i < 3; ++i) {  // the copy in use is held while the next one is taken
    take();
    std::memcpy(copies[i % 2], source, bytes);
  }
  // Restores go to the slot: from the snapshot at 32, one position later, back again.
  std::vector<double> snapshots, restores, limits;
  for (int round = 0; round < rounds; ++round) {
    const double limit = seconds([&] { std::memcpy(copies[round % 2], source, bytes); });
    snapshots.push_back(limit / seconds(take));
    must(sequence.extend(std::vector<std::int32_t>(64 - sequence.tokens().size(), 1)));
    must(sequence.advance(1));
    const double again = seconds([&] { std::memcpy(source, copies[round % 2], bytes); });
    restores.push_back(again / seconds([&] { must(sequence.truncate(32)); }));
    must(sequence.extend(std::vector<std::int32_t>(32, 1)));
    limits.push_back(limit);
  }
  std::printf(
      "%-18s %5.1f MiB  snapshot x%.2f  restore x%.2f  fresh snapshot x%.2f  (memcpy %.1f GB/s)\n",
      run.name, static_cast<double>(cache->plan().snapshot_layout(run.format).bytes) / (1 << 20),
      median(snapshots), median(restores), fresh,
      1e-9 * static_cast<double>(bytes) / median(limits));
  for (char* at : {source, copies[0], copies[1]}) munmap(at, bytes);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  for (const Case& run :
       {Case{"exact", SnapshotFormat::kExact, false}, Case{"f16", SnapshotFormat::kF16, false},
        Case{"f16 and its error", SnapshotFormat::kF16, true},
        Case{"int8", SnapshotFormat::kInt8, false},
        Case{"int8 and its error", SnapshotFormat::kInt8, true}}) {
    bench(run, rounds);
  }
  return 0;
}
