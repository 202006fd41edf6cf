// A user's program: public headers only, linked against kvcache::core in every supported way.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kvcache/codec.h"
#include "kvcache/state_plan.h"
#include "kvcache/version.h"

namespace {

bool int8_round_trip_stays_in_its_bound() {
  const std::vector<float> row = {0.0F, 1.0F, -2.0F, 0.5F};
  std::vector<std::int8_t> codes(row.size());
  std::vector<float> back(row.size());
  float scale = 0;
  const kvcache::codec::RowsView in{row.data(), kvcache::DType::kF32, 1, 1, row.size(), 0, 0};
  if (!kvcache::codec::encode_int8(in, codes.data(), &scale).is_ok()) return false;
  kvcache::codec::decode_int8(codes.data(), &scale,
                              {back.data(), kvcache::DType::kF32, 1, 1, back.size(), 0, 0});
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (std::fabs(row[i] - back[i]) > scale) return false;
  }
  return true;
}

}  // namespace

int main() {
  const auto plan = kvcache::StatePlan::create({{.id = "l0.attention.keys",
                                                 .layer = 0,
                                                 .component = "attention.keys",
                                                 .dtype = kvcache::DType::kF16,
                                                 .shape = {2, 8}}},
                                               {.memory_bytes = 1 << 20});
  if (!plan) {
    std::puts(plan.status().message().c_str());
    return 1;
  }
  if (!int8_round_trip_stays_in_its_bound()) return 2;
  std::printf("kvcache %s block_bytes %llu\n", KVCACHE_VERSION,
              static_cast<unsigned long long>(plan->block_bytes()));
  return 0;
}
