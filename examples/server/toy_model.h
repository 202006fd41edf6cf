// A small decoder of the shape of Qwen3-Next with weights from a seed: three gated delta net layers
// (arXiv:2412.06464), one layer of full attention, a gated MLP each. Whatever the batch and however
// a prompt is cut, the same tokens give the same numbers, so that answers can be compared exactly.
// Thread safety: ToyModel is immutable.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/codec.h"
#include "kvcache/sequence.h"
#include "kvcache/status.h"
#include "workers.h"

namespace server {

inline constexpr std::int32_t kVocabulary = 256;
inline constexpr std::int32_t kLayers = 4;
inline constexpr std::int32_t kAttentionLayer = 3;
inline constexpr std::size_t kHidden = 64;
inline constexpr std::size_t kMlp = 128;
inline constexpr std::size_t kHeads = 4;  // of queries
inline constexpr std::size_t kKvHeads = 2;
inline constexpr std::size_t kHeadDim = 16;
inline constexpr std::size_t kKvWidth = kKvHeads * kHeadDim;
inline constexpr std::size_t kStateHeads = 2;
inline constexpr std::size_t kStateDim = 16;  // of keys and of values
inline constexpr std::size_t kStateWidth = kStateHeads * kStateDim;
inline constexpr std::size_t kChannels = 3 * kStateWidth;  // queries, keys, values
inline constexpr std::size_t kKernel = 4;                  // of the convolution

// Rows of one sequence in a step: its positions [start, start + tokens).
struct StepRows {
  std::span<const std::int32_t> tokens;
  std::uint64_t start = 0;
};

// Keys and values [kKvHeads, kHeadDim] of f32 of all positions of one sequence, by block table.
struct History {
  const std::int32_t* blocks = nullptr;
  std::uint64_t block_tokens = 0;
  std::uint64_t page_stride = 0;      // bytes
  const std::byte* keys = nullptr;    // of page 0
  const std::byte* values = nullptr;  // likewise
};

// Where a forward pass finds and leaves the decoder state of the sequences of one step.
// state() is called for several sequences side by side, the others for all at once.
class StepState {
 public:
  virtual ~StepState() = default;
  // A tensor as it is before `row`, to be updated to what it is after it.
  virtual kvcache::Result<kvcache::StateView> state(std::size_t sequence, std::uint64_t row,
                                                    std::int32_t layer, std::string_view name) = 0;
  // Keys and values of all rows, sequence by sequence.
  virtual kvcache::Status write(std::int32_t layer,
                                std::span<const kvcache::codec::RowsView> components) = 0;
  // One for each sequence, the rows of this step included.
  virtual kvcache::Result<std::vector<History>> histories(std::int32_t layer) = 0;
};

class ToyModel {
 public:
  explicit ToyModel(std::uint64_t seed);

  // Runs the rows of all sequences through all layers. Returns what comes after each row, the
  // likeliest token, where `pick` asks for it; else nothing. Errors are those of `state`.
  kvcache::Result<std::vector<std::int32_t>> run(std::span<const StepRows> step, StepState& state,
                                                 bool pick, Workers& workers) const;

 private:
  using Weights = std::vector<float>;  // [inputs, outputs]

  struct Layer {
    Weights in;    // of attention: queries, keys, values; of a delta net: channels, gate, beta
    Weights taps;  // [kKernel, kChannels]
    Weights out;
    Weights up;  // gate and value of the MLP
    Weights down;
  };

  kvcache::Status delta_net(std::int32_t layer, std::size_t sequence, const StepRows& rows,
                            float* hidden, StepState& state) const;
  kvcache::Status attention(std::int32_t layer, std::span<const StepRows> step,
                            std::span<const std::size_t> offsets, float* hidden, StepState& state,
                            Workers& workers) const;
  void mlp(const Layer& layer, float* hidden) const;
  std::int32_t likeliest(const float* hidden) const;

  Weights embedding_;  // [kVocabulary, kHidden]
  Weights head_;       // [kHidden, kVocabulary]
  std::array<Layer, kLayers> layers_;
};

}  // namespace server
