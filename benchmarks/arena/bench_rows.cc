// Sequence::write and read of whole prefills against memcpy of the same elements, in one process.
//   bench_rows [tokens] [rounds]
// One layer, keys and values of 8 heads x 128. Each line is one storage format and one element type
// of the caller; x is the median over rounds of (time of memcpy / time of the call) within a round,
// so 1.00 is the speed of memcpy. "fresh" writes pages that no sequence has used before, and its
// memcpy goes to memory that is as new. See rows.md beside this file.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "codec/float_bits.h"
#include "kvcache/cache.h"
#include "measure.h"

namespace {

using namespace kvcache;
using namespace kvcache::measure;

constexpr std::size_t kHeads = 8;
constexpr std::size_t kWidth = 128;
constexpr std::size_t kRowElements = kHeads * kWidth;
constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Storage {
  const char* name;
  DType dtype;
};

std::unique_ptr<Cache> make_cache(DType stored, std::size_t tokens) {
  std::vector<StateDecl> decls;
  for (const char* component : {"attention.keys", "attention.values"}) {
    decls.push_back({.id = component,
                     .layer = 0,
                     .component = component,
                     .kind = StateKind::kPagedKv,
                     .dtype = stored,
                     .shape = {kHeads, kWidth},
                     .row_scale_bytes = stored == DType::kI8 ? 4U : 0U});
  }
  auto plan = StatePlan::create(
      std::move(decls),
      {.memory_bytes = tokens * kRowElements * 4 * 4 + 64 * kMiB, .block_tokens = 16});
  return value_of(Cache::create(value_of(std::move(plan)), {}));
}

void fill(char* to, DType dtype, std::size_t count) {
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    const float value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-30F;
    const std::uint16_t half =
        dtype == DType::kF16 ? codec::f16_from_f32(value) : codec::bf16_from_f32(value);
    std::memcpy(to + i * dtype_bytes(dtype), dtype == DType::kF32 ? (const void*)&value : &half,
                dtype_bytes(dtype));
  }
}

void bench(const Storage& stored, const Storage& element, std::size_t tokens, int rounds) {
  const std::size_t bytes = tokens * kRowElements * dtype_bytes(element.dtype);
  char* source[2] = {map(bytes), map(bytes)};
  char* copy[2] = {map(bytes), map(bytes)};
  char* back[2] = {map(bytes), map(bytes)};
  for (char* at : source) fill(at, element.dtype, tokens * kRowElements);
  const auto row = static_cast<std::ptrdiff_t>(kWidth * dtype_bytes(element.dtype));
  std::vector<codec::RowsView> in;
  std::vector<codec::MutableRowsView> out;
  for (int i = 0; i < 2; ++i) {
    in.push_back(
        {source[i], element.dtype, tokens, kHeads, kWidth, row * std::ptrdiff_t{kHeads}, row});
    out.push_back(
        {back[i], element.dtype, tokens, kHeads, kWidth, row * std::ptrdiff_t{kHeads}, row});
  }
  const std::vector<std::int32_t> ids(tokens, 1);
  const auto copy_all = [&](char* const* to, char* const* from) {
    for (int i = 0; i < 2; ++i) std::memcpy(to[i], from[i], bytes);
  };

  std::vector<double> fresh;
  for (int round = 0; round < std::min(rounds, 5); ++round) {
    const auto cache = make_cache(stored.dtype, tokens);
    Sequence sequence = value_of(cache->open(ids, {}));
    char* target[2] = {map(bytes), map(bytes)};
    const double limit = seconds([&] { copy_all(target, source); });
    fresh.push_back(limit / seconds([&] { must(sequence.write(0, 0, in)); }));
    for (char* at : target) munmap(at, bytes);
  }

  const auto cache = make_cache(stored.dtype, tokens);
  Sequence sequence = value_of(cache->open(ids, {}));
  must(sequence.write(0, 0, in));
  must(sequence.read(0, 0, out));
  copy_all(copy, source);
  // The peer of a write copies the same source, that of a read fills the same target from memory
  // that was written as long ago as the pages; they take turns in going first.
  std::vector<double> writes, reads, both, limits;
  for (int round = 0; round < rounds; ++round) {
    const bool first = round % 2 == 0;
    const auto pair = [&](const auto& peer, const auto& call) {
      const double before = first ? seconds(peer) : 0;
      const double time = seconds(call);
      return std::pair(first ? before : seconds(peer), time);
    };
    const auto [copy_in, write] =
        pair([&] { copy_all(copy, source); }, [&] { must(sequence.write(0, 0, in)); });
    const auto [copy_out, read] =
        pair([&] { copy_all(back, copy); }, [&] { must(sequence.read(0, 0, out)); });
    writes.push_back(copy_in / write);
    reads.push_back(copy_out / read);
    both.push_back((copy_in + copy_out) / (write + read));
    limits.push_back(copy_in);
  }
  std::printf(
      "%-5s from %-5s  write x%.2f  read x%.2f  both x%.2f  fresh write x%.2f  (memcpy %.1f "
      "GB/s)\n",
      stored.name, element.name, median(writes), median(reads), median(both), median(fresh),
      2e-9 * static_cast<double>(bytes) / median(limits));
  for (char* at : {source[0], source[1], copy[0], copy[1], back[0], back[1]}) munmap(at, bytes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t tokens = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 4096;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const Storage formats[] = {
      {"f16", DType::kF16}, {"bf16", DType::kBf16}, {"f32", DType::kF32}, {"int8", DType::kI8}};
  for (const Storage& stored : formats) {
    for (const Storage& element : {formats[0], formats[1], formats[2]}) {
      bench(stored, element, tokens, rounds);
    }
  }
  return 0;
}
