// Enumerations shared by every layer. Numbers are written once, here; names and order are stable.
// Thread safety: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvcache {

// Element types a state can be stored in.
enum class DType : std::uint8_t {
  kF32 = 0,
  kU32 = 1,
  kI32 = 2,
  kF16 = 3,
  kBf16 = 4,
  kU64 = 5,
  kU8 = 6,
  kFp8 = 7,  // E4M3; its scale lives outside the state
  kI8 = 8,
};

constexpr std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kU64:
      return 8;
    case DType::kF32:
    case DType::kU32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBf16:
      return 2;
    case DType::kU8:
    case DType::kFp8:
    case DType::kI8:
      return 1;
  }
  return 0;
}

// An element that rows convert to and from.
constexpr bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16;
}

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kU32:
      return "u32";
    case DType::kI32:
      return "i32";
    case DType::kF16:
      return "f16";
    case DType::kBf16:
      return "bf16";
    case DType::kU64:
      return "u64";
    case DType::kU8:
      return "u8";
    case DType::kFp8:
      return "fp8";
    case DType::kI8:
      return "i8";
  }
  return "?";
}

// The twelve kinds of decoder state, in sort order.
enum class StateKind : std::uint8_t {
  kRecurrent = 0,
  kPagedKv = 1,
  kPrefixSnapshot = 2,
  kRingSnapshot = 3,
  kCarryStash = 4,
  kCarryTable = 5,
  kVerifyTable = 6,
  kAcceptStash = 7,
  kHiddenCapture = 8,
  kPromptLookupIndex = 9,
  kTokenTreeMask = 10,
  kDraftTokens = 11,
};

// Which part of the model a declaration belongs to.
enum class Section : std::uint8_t { kMain = 0, kDraft = 1 };

// How many intermediate states a speculative verify keeps of a recurrent state.
enum class VerifyRule : std::uint8_t { kNone = 0, kHSteps = 1, kConvSteps = 2 };

// What a verify keeps of the fixed-size state until its verdict: a copy after each row, or the
// inputs of each row, which are folded into the state by commit(), or when it is read.
enum class VerifyStrategy : std::uint8_t { kSteps = 0, kReplay = 1, kCarry = 2 };

// What one gate (decay) of a recurrent state [heads, lines, columns] is for: a head (gated delta
// net, Mamba2, lightning attention), a line of one, which is a key channel (KDA, RWKV6), or an
// element (Mamba, RG-LRU).
enum class Gate : std::uint8_t { kHead = 0, kChannel = 1, kElement = 2 };

}  // namespace kvcache
