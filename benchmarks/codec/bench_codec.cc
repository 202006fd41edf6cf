// Rows of every instruction set against memcpy of the same uncompressed bytes, in one process.
//   bench_codec [l2|memory|gather] [threads] [rounds] [head_dim...]
// Prints, for each operation: GB/s of uncompressed bytes (best) and the median over rounds of its
// ratio to the memcpy of the same round. Buffers ask for huge pages. See README.md beside this
// file.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "codec/float_bits.h"
#include "codec/kernels.h"
#include "codec/registry.h"
#include "codec/row_copy.h"

namespace {

using namespace kvcache::codec;

constexpr std::size_t kMiB = std::size_t{1} << 20;

char* map(std::size_t bytes) {
  constexpr std::size_t kHuge = 2 * kMiB;
  bytes = (bytes + 2 * kHuge) / kHuge * kHuge;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::abort();
  madvise(at, bytes, MADV_HUGEPAGE);
  std::memset(at, 1, bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  // Each buffer begins at another offset, so that no two compete for the same cache sets.
  static std::size_t lines = 0;
  lines = (lines + 17) % 64;
  return reinterpret_cast<char*>((address + kHuge - 1) / kHuge * kHuge + lines * 64);
}

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// work(part) on `threads` threads, each part on its own data.
void parallel(unsigned threads, const std::function<void(unsigned)>& work) {
  std::vector<std::thread> workers;
  for (unsigned i = 1; i < threads; ++i) workers.emplace_back(work, i);
  work(0);
  for (auto& worker : workers) worker.join();
}

struct Case {
  std::string name;
  std::function<void(unsigned)> work;  // one pass over part i
  std::vector<double> times;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Cases take turns within a round; `repeats` passes are timed as one.
void measure(std::vector<Case>& cases, unsigned threads, int rounds, int repeats,
             std::size_t bytes) {
  for (int round = 0; round <= rounds; ++round) {
    for (Case& c : cases) {
      // One untimed pass: dirty lines that the case before left in the last-level cache.
      parallel(threads, c.work);
      const double time = seconds([&] {
        parallel(threads, [&](unsigned part) {
          for (int i = 0; i < repeats; ++i) c.work(part);
        });
      });
      if (round > 0) c.times.push_back(time);
    }
  }
  const double moved = 1e-9 * static_cast<double>(bytes) * repeats * threads;
  for (const Case& c : cases) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < c.times.size(); ++i) {
      ratios.push_back(cases[0].times[i] / c.times[i]);
    }
    const double best = *std::min_element(c.times.begin(), c.times.end());
    const double limit = *std::min_element(cases[0].times.begin(), cases[0].times.end());
    std::printf("  %-28s %7.1f GB/s  x%.2f  (of the best times x%.2f)\n", c.name.c_str(),
                moved / best, median(ratios), limit / best);
  }
}

std::size_t bytes_of(Element element) { return element == kElementF32 ? 4 : 2; }
const char* name_of(Element element) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16"};
  return kNames[element];
}

void fill_normal(char* to, Element element, std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(65521);
  for (float& value : values) value = normal(random);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = values[i % values.size()];
    const std::uint16_t half = element == kElementF16 ? f16_from_f32(value) : bf16_from_f32(value);
    if (element == kElementF32) {
      std::memcpy(to + 4 * i, &value, 4);
    } else {
      std::memcpy(to + 2 * i, &half, 2);
    }
  }
}

struct Buffers {
  char* elements;
  char* copy;
  char* codes;
  float* scales;
};

void bench_rows(Element element, std::size_t elements_bytes, bool far, std::size_t head_dim,
                unsigned threads, int rounds) {
  const std::size_t rows = elements_bytes / bytes_of(element) / head_dim;
  const std::size_t bytes = rows * head_dim * bytes_of(element);
  const auto stride = static_cast<std::ptrdiff_t>(head_dim * bytes_of(element));
  std::vector<Buffers> buffers(threads);
  for (Buffers& b : buffers) {
    b = {map(bytes), map(bytes), map(rows * head_dim),
         reinterpret_cast<float*>(map(rows * sizeof(float)))};
    fill_normal(b.elements, element, rows * head_dim);
  }
  std::vector<Case> cases;
  cases.push_back(
      {"memcpy",
       [&](unsigned part) { std::memcpy(buffers[part].copy, buffers[part].elements, bytes); },
       {}});
  for (const Kernels* kernels : compiled_kernels()) {
    if (!kernels->supported() || std::strcmp(kernels->name, "scalar") == 0) continue;
    const auto encode = [=, &buffers](unsigned part) {
      const Buffers& b = buffers[part];
      const EncodeJob job{b.elements, stride,  stride,   1,   rows,
                          head_dim,   b.codes, b.scales, far, far};
      if (kernels->encode_int8[element](job) != rows) std::abort();
    };
    const auto decode = [=, &buffers](unsigned part) {
      const Buffers& b = buffers[part];
      const DecodeRun run{b.codes, b.scales, b.copy};
      kernels->decode_int8[element]({&run, 1, stride, stride, 1, rows, head_dim, far, far});
    };
    cases.push_back({std::string(kernels->name) + " encode " + name_of(element), encode, {}});
    cases.push_back({std::string(kernels->name) + " decode " + name_of(element), decode, {}});
  }
  std::printf("%s head_dim %zu, %zu MiB/16, %u thread(s)\n", name_of(element), head_dim,
              bytes * 16 / kMiB, threads);
  measure(cases, threads, rounds, far ? 1 : 50, bytes);
  for (Buffers& b : buffers) {
    for (char* at : {b.elements, b.copy, b.codes, reinterpret_cast<char*>(b.scales)}) {
      munmap(at, at == b.codes ? rows * head_dim : bytes);
    }
  }
}

// 2,048 random 16 KiB pages of F16 (or their INT8 codes) out of a pool that no cache holds.
void bench_gather(unsigned threads, int rounds) {
  constexpr std::size_t kPages = 2048;
  constexpr std::size_t kPageBytes = 16384;
  constexpr std::size_t kPoolPages = 2 * 1024 * kMiB / kPageBytes;
  constexpr std::size_t kHeadDim = 128;
  constexpr std::size_t kPageRows = kPageBytes / 2 / kHeadDim;
  constexpr std::size_t kRowBytes = kHeadDim * 2;
  char* pool = map(kPoolPages * kPageBytes);
  std::vector<char*> out(threads);
  std::vector<char*> middle(threads);
  for (unsigned i = 0; i < threads; ++i) {
    out[i] = map(kPages * kPageBytes);
    middle[i] = map(kPages * kPageBytes / 2);
  }
  std::vector<float> scales(kPages * kPageRows, 0.01F);
  std::mt19937_64 random(2);
  // Fresh pages in every pass: the last-level cache would hold a list that is used again.
  const auto pages = [&](std::size_t bytes, unsigned part) {
    thread_local std::mt19937_64 own(7 + part);
    std::vector<const char*> list(kPages);
    for (auto& page : list) page = pool + own() % (kPoolPages * kPageBytes / bytes) * bytes;
    return list;
  };
  std::vector<Case> cases;
  cases.push_back({"memcpy of each page",
                   [&](unsigned part) {
                     const auto list = pages(kPageBytes, part);
                     for (std::size_t i = 0; i < kPages; ++i) {
                       std::memcpy(out[part] + i * kPageBytes, list[i], kPageBytes);
                     }
                   },
                   {}});
  for (const Kernels* kernels : compiled_kernels()) {
    if (!kernels->supported() || std::strcmp(kernels->name, "scalar") == 0) continue;
    const auto gather = [&, kernels](unsigned part, bool int8) {
      const auto list = pages(int8 ? kPageBytes / 2 : kPageBytes, part);
      for (std::size_t i = 0; i < kPages; i += kDecodeRunsMax) {
        DecodeRun runs[kDecodeRunsMax];
        for (std::size_t k = 0; k < kDecodeRunsMax; ++k) {
          runs[k] = {list[i + k], scales.data() + (i + k) * kPageRows,
                     out[part] + (i + k) * kPageBytes};
        }
        const std::size_t width = int8 ? kHeadDim : kRowBytes;  // a copy counts in bytes
        const auto decode = int8 ? kernels->decode_int8[kElementF16] : copy_rows_out;
        decode({runs, kDecodeRunsMax, kRowBytes, kRowBytes, 1, kPageRows, width, true, true});
      }
    };
    const auto two_passes = [&, kernels](unsigned part) {
      const auto list = pages(kPageBytes / 2, part);
      for (std::size_t i = 0; i < kPages; ++i) {
        std::memcpy(middle[part] + i * kPageBytes / 2, list[i], kPageBytes / 2);
      }
      const DecodeRun run{middle[part], scales.data(), out[part]};
      kernels->decode_int8[kElementF16](
          {&run, 1, kRowBytes, kRowBytes, 1, kPages * kPageRows, kHeadDim, false, false});
    };
    const std::string name = kernels->name;
    cases.push_back({name + " gather f16", [=](unsigned part) { gather(part, false); }, {}});
    cases.push_back({name + " copy, then decode", two_passes, {}});
    cases.push_back({name + " gather + decode", [=](unsigned part) { gather(part, true); }, {}});
  }
  std::printf("gather of %zu pages of 16 KiB, %u thread(s)\n", kPages, threads);
  measure(cases, threads, rounds, 1, kPages * kPageBytes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "l2";
  const auto threads = static_cast<unsigned>(argc > 2 ? std::atoi(argv[2]) : 1);
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 15;
  std::vector<std::size_t> dims;
  for (int i = 4; i < argc; ++i) dims.push_back(static_cast<std::size_t>(std::atoi(argv[i])));
  if (dims.empty()) dims = {64, 80, 128, 256, 512};
  if (what == "gather") {
    bench_gather(threads, rounds);
    return 0;
  }
  const bool far = what != "l2";
  for (Element element : {kElementF16, kElementBf16, kElementF32}) {
    for (std::size_t dim : dims) {
      // 512 KiB of elements and the outputs fit the 2 MiB L2; 1 GiB passes every cache.
      const std::size_t bytes = far ? 1024 * kMiB : kMiB / 2;
      bench_rows(element, bytes, far, dim, threads, rounds);
    }
  }
  return 0;
}
