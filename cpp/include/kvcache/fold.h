// Folds rows of inputs into recurrent state on the CPU:
//
//   S[h, i, j] = gate * S[h, i, j] + left[h, i] * right[h, j]
//
// once for each row, in order, with one read and one write of the state for all of them. It is the
// state update of gated delta nets (arXiv:2412.06464; left the key, right beta times what the
// memory misses of the value), of KDA (arXiv:2510.26692), Mamba2 (arXiv:2405.21060; left dt * x,
// right B), lightning attention, RWKV6, and with a gate an element of Mamba and RG-LRU.
// Every product and the sum are rounded to float32, none fused: all instruction sets give the bytes
// that NumPy gives, NaN where it gives NaN.
// Thread safety: pure functions of their arguments.
#pragma once

#include <cstddef>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache::codec {

// [heads, lines, columns], contiguous. dtype: kF32, kF16 or kBf16.
struct FoldState {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::size_t heads = 1;
  std::size_t lines = 1;
  std::size_t columns = 1;
};

// `rows` rows of inputs; each kind is contiguous within a row, and its strides are in floats from
// one row to the next. `left` and `right` may have fewer heads than the state: heads / left_heads
// neighbours then share one, as value heads share a key head and Mamba2's heads a group.
struct FoldRows {
  std::size_t rows = 0;
  Gate gate_of = Gate::kHead;
  const float* gate = nullptr;  // [heads], [heads, lines] or [heads, lines, columns], by gate_of
  std::size_t gate_stride = 0;
  const float* left = nullptr;  // [left_heads, lines]
  std::size_t left_heads = 1;
  std::size_t left_stride = 0;
  const float* right = nullptr;  // [right_heads, columns]
  std::size_t right_heads = 1;
  std::size_t right_stride = 0;
};

// When a state of f16 or bf16 is rounded to its element. kEachRow is what decoding one token at a
// time does. kOnce keeps float32 in between: with gates of magnitude 1 at most it ends within
// (rows + 1) * u * M of the former, u being 2^-11 for f16 and 2^-8 for bf16, and M the largest
// magnitude that the element has on the way. For f32 they are the same.
enum class FoldRounding : std::uint8_t { kEachRow = 0, kOnce = 1 };

// `threads`: at most this many work on the call; small states use one. kInvalidArgument, and the
// state unchanged: its elements are not floating, or its heads are no multiple of left_heads or
// right_heads. Also fails as check_isa() does.
// REQUIRES: inputs do not overlap the state.
Status fold(const FoldState& state, const FoldRows& rows,
            FoldRounding rounding = FoldRounding::kEachRow, unsigned threads = 1);

// The history of a causal convolution: keeps the last `width` of the window's rows and of `count`
// that follow them. Rows are `row_bytes` each and contiguous. REQUIRES: no overlap.
void append_rows(void* window, std::size_t width, std::size_t row_bytes, const void* rows,
                 std::size_t count);

}  // namespace kvcache::codec
