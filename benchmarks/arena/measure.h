// What the benchmarks against memcpy share: results that must be good, memory in huge pages, the
// processor time of a call, and the median of its rounds.
#pragma once

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::measure {

template <typename T>
T value_of(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

inline void must(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

inline char* map(std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::abort();
  madvise(at, bytes, MADV_HUGEPAGE);
  return static_cast<char*>(at);
}

// Of this thread's processor time: other programs on the machine do not count.
template <typename Work>
double seconds(const Work& work) {
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace kvcache::measure
