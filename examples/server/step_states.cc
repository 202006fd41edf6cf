#include "step_states.h"

namespace server {

using kvcache::Result;
using kvcache::StateView;
using kvcache::Status;

Result<std::vector<History>> batch_histories(const kvcache::Cache& cache, kvcache::Batch& batch,
                                             std::int32_t layer) {
  const auto keys = cache.pages(layer, "attention.keys");
  if (!keys) return keys.status();
  const auto values = cache.pages(layer, "attention.values");
  if (!values) return values.status();
  const auto table = batch.block_table(keys->group);  // the batch keeps it alive
  if (!table) return table.status();
  std::vector<History> histories;
  for (std::size_t i = 0; i < table->rows; ++i) {
    histories.push_back({table->data + i * table->columns, keys->block_tokens, keys->page_stride,
                         keys->rows, values->rows});
  }
  return histories;
}

PrefillState::PrefillState(const kvcache::Cache& cache, kvcache::Batch& batch,
                           std::span<kvcache::Sequence* const> sequences,
                           std::span<const StepRows> step)
    : cache_(cache), batch_(batch), sequences_(sequences) {
  for (const StepRows& rows : step) {
    starts_.push_back(rows.start);
    counts_.push_back(rows.tokens.size());
  }
}

Result<StateView> PrefillState::state(std::size_t sequence, std::uint64_t /*row*/,
                                      std::int32_t layer, std::string_view name) {
  return sequences_[sequence]->state(layer, name);
}

Status PrefillState::write(std::int32_t layer,
                           std::span<const kvcache::codec::RowsView> components) {
  return batch_.write(layer, starts_, counts_, components);
}

Result<std::vector<History>> PrefillState::histories(std::int32_t layer) {
  return batch_histories(cache_, batch_, layer);
}

Result<StateView> PlainState::state(std::size_t /*sequence*/, std::uint64_t /*row*/,
                                    std::int32_t layer, std::string_view name) {
  std::vector<float>& tensor = fixed_[{layer, std::string(name)}];
  tensor.resize(name == "state.recurrent" ? kStateWidth * kStateDim : (kKernel - 1) * kChannels);
  StateView view;
  view.data = reinterpret_cast<std::byte*>(tensor.data());
  return view;
}

Status PlainState::write(std::int32_t /*layer*/,
                         std::span<const kvcache::codec::RowsView> components) {
  for (std::size_t i = 0; i < components.size(); ++i) {
    const auto* rows = static_cast<const float*>(components[i].data);
    rows_[i].insert(rows_[i].end(), rows, rows + components[i].tokens * kKvWidth);
  }
  return Status::ok();
}

Result<std::vector<History>> PlainState::histories(std::int32_t /*layer*/) {
  static constexpr std::int32_t kFirst = 0;  // all of it is one page
  return std::vector<History>{{&kFirst, UINT64_MAX, 0,
                               reinterpret_cast<const std::byte*>(rows_[0].data()),
                               reinterpret_cast<const std::byte*>(rows_[1].data())}};
}

}  // namespace server
