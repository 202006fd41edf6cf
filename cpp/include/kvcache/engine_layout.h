// How an engine's tensors hold rows of attention state, so that they are moved into pages and out
// of them in one pass, encoding included: Sequence::import_rows() and export_rows().
// Thread safety: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

enum class EngineAxis : std::uint8_t {
  kOne,     // "1": an axis of one element
  kLayers,  // the layers of the call, in its order
  kKv,      // the components of a layer: keys, values; or latent, rotary keys
  kBlocks,  // the engine's blocks, by the ids of its block table
  kBlock,   // positions inside a block
  kTokens,  // positions, or slots of a slot mapping
  kHeads,
  kDim,
};

// Words whose size is how many positions there are.
constexpr bool is_position(EngineAxis axis) {
  return axis == EngineAxis::kTokens || axis == EngineAxis::kBlocks || axis == EngineAxis::kBlock;
}

// The axes of a tensor, outermost first. Words in parentheses share one axis, the last of them
// running fastest; parts of unequal width then simply follow each other:
//   "tokens heads dim"              "kv blocks block heads dim"   (FlashAttention in vLLM)
//   "1 heads tokens dim" (HF)       "blocks kv heads block dim"   (FlashInfer, HND)
//   "heads dim tokens"              "layers kv blocks block heads dim"
//   "tokens (kv heads dim)"         "blocks block (kv dim)"       (MLA: latent, then rotary keys)
class EngineLayout {
 public:
  // kInvalidArgument: an unknown word, one said twice, no `dim`, or positions that are not
  // `tokens` alone or `blocks` with `block`.
  static Result<EngineLayout> parse(std::string_view axes);

  // One list for each axis of the tensor: several words where they share it.
  const std::vector<std::vector<EngineAxis>>& axes() const { return axes_; }
  bool has(EngineAxis axis) const;
  std::string text() const;

 private:
  std::vector<std::vector<EngineAxis>> axes_;
};

// A tensor of the engine in host memory, borrowed for the call. dtype: kF32, kF16 or kBf16.
// Any strides; rows whose `dim` has gaps are transposed on the way, which is slower.
struct EngineTensor {
  void* data = nullptr;
  DType dtype = DType::kF16;
  std::vector<std::uint64_t> shape = {};
  std::vector<std::ptrdiff_t> strides = {};  // bytes
  EngineLayout layout = {};
};

// Where the positions lie. With neither, `tokens` are the positions of the call, in order.
struct EnginePlaces {
  // Ids of the engine's blocks, by block of the sequence from position 0 on: for `blocks`.
  std::span<const std::int32_t> block_table = {};
  // For each position of the call the index of its row: of `tokens`, or block * size + offset.
  std::span<const std::int64_t> slot_mapping = {};
};

}  // namespace kvcache
