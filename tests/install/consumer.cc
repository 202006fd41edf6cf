// A user's program: public headers only, linked against kvcache::core in every supported way. A
// prompt is written once; its second request finds the rows and reads them back unchanged.
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

#include "kvcache/cache.h"
#include "kvcache/codec.h"
#include "kvcache/state_plan.h"
#include "kvcache/version.h"

namespace {

using namespace kvcache;

constexpr std::size_t kTokens = 33;
constexpr std::size_t kHeads = 2;
constexpr std::size_t kWidth = 8;

Result<StatePlan> plan() {
  return StatePlan::create({{.id = "l0.attention.keys",
                             .layer = 0,
                             .component = "attention.keys",
                             .dtype = DType::kF16,
                             .shape = {kHeads, kWidth}}},
                           {.memory_bytes = 64 << 20});
}

// Small integers: f16 holds them exactly.
std::vector<float> rows() {
  std::vector<float> values(kTokens * kHeads * kWidth);
  std::iota(values.begin(), values.end(), -100.0F);
  return values;
}

Status write_prompt(Cache& cache, const std::vector<std::int32_t>& tokens) {
  auto sequence = cache.open(tokens, {});
  if (!sequence) return sequence.status();
  const std::vector<float> values = rows();
  const codec::RowsView view{
      values.data(),         DType::kF32, kTokens, kHeads, kWidth, kHeads * kWidth * sizeof(float),
      kWidth * sizeof(float)};
  if (Status status = sequence->write(0, 0, {&view, 1}); !status) return status;
  if (Status status = sequence->advance(kTokens); !status) return status;
  return sequence->publish();
}

// Positions restored, after a check of each of their elements.
Result<std::uint64_t> read_prompt(Cache& cache, const std::vector<std::int32_t>& tokens) {
  auto sequence = cache.open(tokens, {});
  if (!sequence) return sequence.status();
  const std::uint64_t restored = sequence->cached_tokens();
  std::vector<float> values(restored * kHeads * kWidth);
  const codec::MutableRowsView view{
      values.data(),         DType::kF32, restored, kHeads, kWidth, kHeads * kWidth * sizeof(float),
      kWidth * sizeof(float)};
  if (Status status = sequence->read(0, 0, {&view, 1}); !status) return status;
  std::vector<float> expected = rows();
  expected.resize(values.size());
  if (values != expected) return Status::internal("the restored rows differ");
  return restored;
}

int fail(const Status& status) {
  std::puts(status.message().c_str());
  return 1;
}

}  // namespace

int main() {
  auto made = plan();
  if (!made) return fail(made.status());
  auto cache = Cache::create(*std::move(made), {});
  if (!cache) return fail(cache.status());

  std::vector<std::int32_t> tokens(kTokens);
  std::iota(tokens.begin(), tokens.end(), 7);
  if (Status status = write_prompt(**cache, tokens); !status) return fail(status);
  const auto restored = read_prompt(**cache, tokens);
  if (!restored) return fail(restored.status());
  std::printf("kvcache %s restored %llu of %zu\n", KVCACHE_VERSION,
              static_cast<unsigned long long>(*restored), kTokens);
  return 0;
}
