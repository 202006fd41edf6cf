// Folds 1..8 rows into recurrent state, beside a memcpy of the same state in the same run.
//   bench_fold [rounds] [layers]
// The state is that of `layers` layers of a gated delta net, 48 heads of 128 x 128: 3 MiB each in
// float32. Every round times every line once, in turn; the table has medians, as ratios of time to
// that of memcpy (below 1: faster than the copy). One thread.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "codec/registry.h"

namespace {

using kvcache::codec::Element;
using kvcache::codec::FoldGate;
using kvcache::codec::FoldJob;
using kvcache::codec::Kernels;

constexpr std::size_t kHeads = 48, kLines = 128, kColumns = 128, kRowsMax = 8;
constexpr std::size_t kLayerElements = kHeads * kLines * kColumns;

char* mapped(std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::exit(1);
  madvise(at, bytes, MADV_HUGEPAGE);
  std::memset(at, 0, bytes);
  return static_cast<char*>(at);
}

struct Line {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds = {};

  double median() {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

struct Inputs {
  std::vector<float> gate, left, right;
  Inputs()
      : gate(kRowsMax * kHeads * kLines),
        left(kRowsMax * kHeads * kLines),
        right(kRowsMax * kHeads * kColumns) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& x : gate) x = 0.9F;
    for (float& x : left) x = normal(random);
    for (float& x : right) x = normal(random);
  }
};

void fold_layers(const Kernels& kernels, Element element, FoldGate gate_of, std::size_t rows,
                 bool once, char* state, std::size_t layers, const Inputs& in) {
  const std::size_t bytes = kLayerElements * (element == kvcache::codec::kElementF32 ? 4 : 2);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::size_t gates = gate_of == kvcache::codec::kGateHead ? kHeads : kHeads * kLines;
    kernels.fold[element][gate_of][once ? 1 : 0](
        FoldJob{state + layer * bytes, 0, kHeads * kLines, kLines, kColumns, rows, in.gate.data(),
                gates, in.left.data(), kHeads * kLines, 1, in.right.data(), kHeads * kColumns, 1});
  }
}

void run(Element element, const char* name, std::size_t layers, int rounds, char* state, char* copy,
         const Inputs& in) {
  using namespace kvcache::codec;
  const std::size_t bytes =
      layers * kLayerElements * (element == kElementF32 ? std::size_t{4} : std::size_t{2});
  std::vector<Line> lines;
  lines.push_back({"memcpy", [=] { std::memcpy(copy, state, bytes); }});
  for (const Kernels* kernels : compiled_kernels()) {
    if (!kernels->supported()) continue;
    const bool scalar = std::string(kernels->name) == "scalar";
    for (const std::size_t rows : {1, 2, 4, 8}) {
      if (scalar && rows > 1) continue;
      const std::string label = std::string(kernels->name) + ", rows " + std::to_string(rows);
      const auto fold = [&](FoldGate gate, bool once) {
        return [=, &in] { fold_layers(*kernels, element, gate, rows, once, state, layers, in); };
      };
      lines.push_back({label + ", gate a head", fold(kGateHead, false)});
      if (scalar) continue;
      lines.push_back({label + ", gate a channel", fold(kGateChannel, false)});
      if (element != kElementF32)
        lines.push_back({label + ", rounded once", fold(kGateHead, true)});
    }
  }
  for (int round = 0; round < rounds; ++round) {
    for (Line& line : lines) {
      const auto start = std::chrono::steady_clock::now();
      line.run();
      line.seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  }
  const double copied = lines[0].median();
  std::printf("%s, %zu layers, %.1f MiB: memcpy %.2f GB/s\n", name, layers,
              static_cast<double>(bytes) / (1 << 20), static_cast<double>(bytes) / copied * 1e-9);
  for (Line& line : lines) {
    std::printf("  %-32s %.2f\n", line.name.c_str(), line.median() / copied);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 21;
  const int layers = argc > 2 ? std::max(1, std::atoi(argv[2])) : 48;
  const auto count = static_cast<std::size_t>(layers);
  const Inputs in;
  char* state = mapped(count * kLayerElements * 4);
  char* copy = mapped(count * kLayerElements * 4);
  using namespace kvcache::codec;
  run(kElementF32, "f32", count, rounds, state, copy, in);
  run(kElementF16, "f16", count, rounds, state, copy, in);
  run(kElementBf16, "bf16", count, rounds, state, copy, in);
}
