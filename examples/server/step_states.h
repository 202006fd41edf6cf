// The decoder state of a step, wherever it is: in a cache, in a verify session of it, or, for
// answers to compare with, in plain memory. Thread safety: as StepState says.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/batch.h"
#include "kvcache/batch_verify.h"
#include "kvcache/cache.h"
#include "toy_model.h"

namespace server {

// Attention history of every sequence of a batch, read where its pages lie.
kvcache::Result<std::vector<History>> batch_histories(const kvcache::Cache& cache,
                                                      kvcache::Batch& batch, std::int32_t layer);

// Prompts: rows go behind what their sequences have, fixed-size state is updated in place.
class PrefillState final : public StepState {
 public:
  PrefillState(const kvcache::Cache& cache, kvcache::Batch& batch,
               std::span<kvcache::Sequence* const> sequences, std::span<const StepRows> step);

  kvcache::Result<kvcache::StateView> state(std::size_t sequence, std::uint64_t row,
                                            std::int32_t layer, std::string_view name) override;
  kvcache::Status write(std::int32_t layer,
                        std::span<const kvcache::codec::RowsView> components) override;
  kvcache::Result<std::vector<History>> histories(std::int32_t layer) override;

 private:
  const kvcache::Cache& cache_;
  kvcache::Batch& batch_;
  std::span<kvcache::Sequence* const> sequences_;
  std::vector<std::uint64_t> starts_, counts_;
};

// Decoding: a waiting token and its drafts, beside the live state until commit().
class VerifyState final : public StepState {
 public:
  VerifyState(const kvcache::Cache& cache, kvcache::Batch& batch,
              kvcache::BatchVerifySession& session)
      : cache_(cache), batch_(batch), session_(session) {}

  kvcache::Result<kvcache::StateView> state(std::size_t sequence, std::uint64_t row,
                                            std::int32_t layer, std::string_view name) override {
    return session_.state(sequence, row, layer, name);
  }
  kvcache::Status write(std::int32_t layer,
                        std::span<const kvcache::codec::RowsView> components) override {
    return session_.write(layer, components);
  }
  kvcache::Result<std::vector<History>> histories(std::int32_t layer) override {
    return batch_histories(cache_, batch_, layer);
  }

 private:
  const kvcache::Cache& cache_;
  kvcache::Batch& batch_;
  kvcache::BatchVerifySession& session_;
};

// One sequence without a cache.
class PlainState final : public StepState {
 public:
  kvcache::Result<kvcache::StateView> state(std::size_t sequence, std::uint64_t row,
                                            std::int32_t layer, std::string_view name) override;
  kvcache::Status write(std::int32_t layer,
                        std::span<const kvcache::codec::RowsView> components) override;
  kvcache::Result<std::vector<History>> histories(std::int32_t layer) override;

 private:
  std::map<std::pair<std::int32_t, std::string>, std::vector<float>> fixed_;
  std::array<std::vector<float>, 2> rows_;  // keys, values
};

}  // namespace server
