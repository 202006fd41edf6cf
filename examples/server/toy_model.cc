#include "toy_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "kvcache/fold.h"

namespace server {
namespace {

using kvcache::Result;
using kvcache::Status;

// splitmix64: the same weights everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::vector<float> weights(std::size_t inputs, std::size_t outputs) {
    std::vector<float> values(inputs * outputs);
    const float scale = 3.0F / std::sqrt(static_cast<float>(inputs));
    for (float& value : values) value = (uniform() - 0.5F) * scale;
    return values;
  }

 private:
  float uniform() {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-24F;
  }

  std::uint64_t state_;
};

// out = weights * in; the inner loop has no sum, so that compilers vectorize it as it stands.
template <std::size_t kOutputs>
std::array<float, kOutputs> product(const std::vector<float>& weights, std::span<const float> in) {
  std::array<float, kOutputs> out{};
  for (std::size_t i = 0; i < in.size(); ++i) {
    const float* row = weights.data() + i * kOutputs;
    for (std::size_t j = 0; j < kOutputs; ++j) out[j] += row[j] * in[i];
  }
  return out;
}

template <std::size_t kOutputs>
void add_product(const std::vector<float>& weights, std::span<const float> in, float* to) {
  const auto out = product<kOutputs>(weights, in);
  for (std::size_t j = 0; j < kOutputs; ++j) to[j] += out[j];
}

float dot(const float* a, const float* b, std::size_t count) {
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void scale(float* values, std::size_t count, float factor) {
  for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
}

std::array<float, kHidden> normalized(const float* hidden) {
  std::array<float, kHidden> out;
  std::copy_n(hidden, kHidden, out.begin());
  scale(out.data(), kHidden, 1 / std::sqrt(dot(hidden, hidden, kHidden) / kHidden + 1e-6F));
  return out;
}

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// Rotary embedding (arXiv:2104.09864) of one head.
void rotate(float* head, std::uint64_t position) {
  for (std::size_t i = 0; i < kHeadDim / 2; ++i) {
    const float turn = std::pow(10000.0F, -2.0F * static_cast<float>(i) / kHeadDim);
    const float angle = static_cast<float>(position) * turn;
    const float a = head[i], b = head[i + kHeadDim / 2];
    head[i] = a * std::cos(angle) - b * std::sin(angle);
    head[i + kHeadDim / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
}

// One query head over positions [0, end), added up in their order.
void attend(const float* query, std::size_t kv_head, const History& history, std::uint64_t end,
            std::vector<float>& scores, float* out) {
  const auto row = [&](const std::byte* rows, std::uint64_t p) {
    const auto page = static_cast<std::uint64_t>(history.blocks[p / history.block_tokens]);
    const std::byte* at = rows + page * history.page_stride;
    return reinterpret_cast<const float*>(at) + (p % history.block_tokens) * kKvWidth +
           kv_head * kHeadDim;
  };
  scores.resize(end);
  for (std::uint64_t p = 0; p < end; ++p) {
    scores[p] = dot(query, row(history.keys, p), kHeadDim) / std::sqrt(float{kHeadDim});
  }
  const float most = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  std::fill_n(out, kHeadDim, 0.0F);
  for (std::uint64_t p = 0; p < end; ++p) {
    const float weight = std::exp(scores[p] - most);
    const float* value = row(history.values, p);
    for (std::size_t i = 0; i < kHeadDim; ++i) out[i] += weight * value[i];
    sum += weight;
  }
  scale(out, kHeadDim, 1 / sum);
}

kvcache::codec::RowsView rows_view(const std::vector<float>& rows) {
  constexpr auto kHeadBytes = static_cast<std::ptrdiff_t>(kHeadDim * sizeof(float));
  return {rows.data(),
          kvcache::DType::kF32,
          rows.size() / kKvWidth,
          kKvHeads,
          kHeadDim,
          kHeadBytes * std::ptrdiff_t{kKvHeads},
          kHeadBytes};
}

}  // namespace

ToyModel::ToyModel(std::uint64_t seed) {
  Random random(seed);
  embedding_ = random.weights(kVocabulary, kHidden);
  scale(embedding_.data(), embedding_.size(), 8);
  head_ = random.weights(kHidden, kVocabulary);
  for (std::int32_t i = 0; i < kLayers; ++i) {
    Layer& layer = layers_[static_cast<std::size_t>(i)];
    const bool attends = i == kAttentionLayer;
    layer.in = random.weights(
        kHidden, attends ? kHeads * kHeadDim + 2 * kKvWidth : kChannels + 2 * kStateHeads);
    layer.taps = random.weights(kKernel, kChannels);
    layer.out = random.weights(attends ? kHeads * kHeadDim : kStateWidth, kHidden);
    layer.up = random.weights(kHidden, 2 * kMlp);
    layer.down = random.weights(kMlp, kHidden);
  }
}

Result<std::vector<std::int32_t>> ToyModel::run(std::span<const StepRows> step, StepState& state,
                                                bool pick, Workers& workers) const {
  std::vector<std::size_t> offsets{0};
  for (const StepRows& rows : step) offsets.push_back(offsets.back() + rows.tokens.size());
  std::vector<float> hidden;
  hidden.reserve(offsets.back() * kHidden);
  for (const StepRows& rows : step) {
    for (const std::int32_t token : rows.tokens) {
      const float* row = embedding_.data() + static_cast<std::size_t>(token) * kHidden;
      hidden.insert(hidden.end(), row, row + kHidden);
    }
  }
  std::vector<Status> statuses(step.size());
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    if (layer == kAttentionLayer) {
      Status status = attention(layer, step, offsets, hidden.data(), state, workers);
      if (!status) return status;
    }
    workers.run(step.size(), [&](std::size_t i) {
      float* rows = hidden.data() + offsets[i] * kHidden;
      if (layer != kAttentionLayer) statuses[i] = delta_net(layer, i, step[i], rows, state);
      for (std::size_t row = 0; row < step[i].tokens.size(); ++row) {
        mlp(layers_[static_cast<std::size_t>(layer)], rows + row * kHidden);
      }
    });
    for (const Status& status : statuses) {
      if (!status) return status;
    }
  }
  std::vector<std::int32_t> picks(pick ? offsets.back() : 0);
  workers.run(picks.size(), [&](std::size_t i) { picks[i] = likeliest(&hidden[i * kHidden]); });
  return picks;
}

Status ToyModel::delta_net(std::int32_t layer, std::size_t sequence, const StepRows& rows,
                           float* hidden, StepState& state) const {
  const Layer& weights = layers_[static_cast<std::size_t>(layer)];
  for (std::size_t row = 0; row < rows.tokens.size(); ++row, hidden += kHidden) {
    const auto convolution = state.state(sequence, row, layer, "state.convolution.0");
    if (!convolution) return convolution.status();
    const auto recurrent = state.state(sequence, row, layer, "state.recurrent");
    if (!recurrent) return recurrent.status();
    auto in = product<kChannels + 2 * kStateHeads>(weights.in, normalized(hidden));
    // A causal convolution over the last inputs, then SiLU.
    const auto* history = reinterpret_cast<const float*>(convolution->data);
    std::array<float, kChannels> mixed{};
    for (std::size_t k = 0; k < kKernel; ++k) {
      const float* input = k + 1 < kKernel ? history + k * kChannels : in.data();
      for (std::size_t c = 0; c < kChannels; ++c) {
        mixed[c] += weights.taps[k * kChannels + c] * input[c];
      }
    }
    kvcache::codec::append_rows(convolution->data, kKernel - 1, kChannels * sizeof(float),
                                in.data(), 1);
    for (float& value : mixed) value *= sigmoid(value);

    std::array<float, kStateWidth> delta{}, read{};
    std::array<float, kStateHeads> gates;
    auto* matrix = reinterpret_cast<float*>(recurrent->data);
    float* key = mixed.data() + kStateWidth;
    for (std::size_t h = 0; h < kStateHeads; ++h, key += kStateDim) {
      scale(key, kStateDim, 1 / std::sqrt(dot(key, key, kStateDim) + 1e-6F));
      gates[h] = sigmoid(in[kChannels + h] + 3);
      float* missing = delta.data() + h * kStateDim;  // what the memory misses of the value
      for (std::size_t i = 0; i < kStateDim; ++i) {
        const float* line = matrix + (h * kStateDim + i) * kStateDim;
        for (std::size_t j = 0; j < kStateDim; ++j) missing[j] -= gates[h] * key[i] * line[j];
      }
      const float beta = sigmoid(in[kChannels + kStateHeads + h]);
      const float* value = mixed.data() + 2 * kStateWidth + h * kStateDim;
      for (std::size_t j = 0; j < kStateDim; ++j) missing[j] = beta * (value[j] + missing[j]);
    }
    kvcache::codec::FoldRows fold{.rows = 1};
    fold.gate = gates.data();
    fold.left = mixed.data() + kStateWidth;
    fold.left_heads = kStateHeads;
    fold.right = delta.data();
    fold.right_heads = kStateHeads;
    Status folded = kvcache::codec::fold(
        {matrix, kvcache::DType::kF32, kStateHeads, kStateDim, kStateDim}, fold);
    if (!folded) return folded;
    for (std::size_t i = 0; i < kStateWidth; ++i) {  // queries read the updated memory
      float* out = read.data() + i / kStateDim * kStateDim;
      const float* line = matrix + i * kStateDim;
      for (std::size_t j = 0; j < kStateDim; ++j) out[j] += mixed[i] * line[j];
    }
    add_product<kHidden>(weights.out, read, hidden);
  }
  return Status::ok();
}

Status ToyModel::attention(std::int32_t layer, std::span<const StepRows> step,
                           std::span<const std::size_t> offsets, float* hidden, StepState& state,
                           Workers& workers) const {
  constexpr std::size_t kQueries = kHeads * kHeadDim;
  const Layer& weights = layers_[static_cast<std::size_t>(layer)];
  std::vector<float> queries(offsets.back() * kQueries);
  std::vector<float> keys(offsets.back() * kKvWidth), values(keys.size());
  workers.run(step.size(), [&](std::size_t i) {
    for (std::size_t row = offsets[i]; row < offsets[i + 1]; ++row) {
      auto in = product<kQueries + 2 * kKvWidth>(weights.in, normalized(hidden + row * kHidden));
      for (std::size_t h = 0; h < kHeads + kKvHeads; ++h) {
        rotate(in.data() + h * kHeadDim, step[i].start + row - offsets[i]);
      }
      std::copy_n(in.data(), kQueries, &queries[row * kQueries]);
      std::copy_n(in.data() + kQueries, kKvWidth, &keys[row * kKvWidth]);
      std::copy_n(in.data() + kQueries + kKvWidth, kKvWidth, &values[row * kKvWidth]);
    }
  });
  const std::array components{rows_view(keys), rows_view(values)};
  if (Status status = state.write(layer, components); !status) return status;
  const auto histories = state.histories(layer);
  if (!histories) return histories.status();
  workers.run(step.size(), [&](std::size_t i) {
    std::vector<float> scores;
    std::array<float, kQueries> out;
    for (std::size_t row = offsets[i]; row < offsets[i + 1]; ++row) {
      const std::uint64_t end = step[i].start + (row - offsets[i]) + 1;
      for (std::size_t h = 0; h < kHeads; ++h) {
        attend(&queries[row * kQueries + h * kHeadDim], h * kKvHeads / kHeads, (*histories)[i], end,
               scores, out.data() + h * kHeadDim);
      }
      add_product<kHidden>(weights.out, out, hidden + row * kHidden);
    }
  });
  return Status::ok();
}

void ToyModel::mlp(const Layer& layer, float* hidden) const {
  const auto up = product<2 * kMlp>(layer.up, normalized(hidden));
  std::array<float, kMlp> gated;
  for (std::size_t i = 0; i < kMlp; ++i) gated[i] = up[i] * sigmoid(up[i]) * up[kMlp + i];
  add_product<kHidden>(layer.down, gated, hidden);
}

std::int32_t ToyModel::likeliest(const float* hidden) const {
  const auto scores = product<kVocabulary>(head_, normalized(hidden));
  return static_cast<std::int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

}  // namespace server
