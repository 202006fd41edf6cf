// What the fuzz targets share: a small plan with every kind of state a file can hold, a failed
// expectation that libFuzzer sees, and inputs that are edits of something valid. Random bytes
// hardly ever get past the first check of a reader; edits do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kvcache/state_plan.h"

#define FUZZ_EXPECT(condition)                                                     \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace kvcache::fuzz {

// Full INT8 keys, a sliding window with sinks, and recurrent state.
inline const StatePlan& plan() {
  static const StatePlan made = [] {
    const StateDecl full{.id = "l0.attention.keys",
                         .layer = 0,
                         .component = "attention.keys",
                         .kind = StateKind::kPagedKv,
                         .dtype = DType::kI8,
                         .shape = {2, 8},
                         .row_scale_bytes = 4};
    const StateDecl sliding{.id = "l1.attention.keys",
                            .layer = 1,
                            .component = "attention.keys",
                            .kind = StateKind::kPagedKv,
                            .dtype = DType::kF16,
                            .shape = {1, 4},
                            .window = 5,
                            .sinks = 2};
    const StateDecl state{.id = "l2.state.recurrent",
                          .layer = 2,
                          .component = "state.recurrent",
                          .kind = StateKind::kRecurrent,
                          .dtype = DType::kF32,
                          .shape = {4, 4}};
    auto plan = StatePlan::create({full, sliding, state},
                                  {.memory_bytes = 1 << 20, .block_tokens = 4, .sequences = 1});
    FUZZ_EXPECT(plan.is_ok());
    return std::move(plan).value();
  }();
  return made;
}

// `valid`, edited: each 4 bytes of the input are a place, an operation and a byte.
inline std::string edited(std::string valid, const std::uint8_t* data, std::size_t size) {
  for (; size >= 4 && !valid.empty(); data += 4, size -= 4) {
    const std::size_t at = (data[0] | std::size_t{data[1]} << 8) % valid.size();
    const char byte = static_cast<char>(data[3]);
    switch (data[2] % 4) {
      case 0:
        valid[at] = byte;
        break;
      case 1:
        valid.insert(at, 1, byte);
        break;
      case 2:
        valid.erase(at, 1 + data[3] % 8);
        break;
      default:
        valid.resize(at);
    }
  }
  return valid;
}

}  // namespace kvcache::fuzz
