// Sequence::import_rows() and export_rows().
#include "cache/cache_core.h"
#include "kvcache/sequence.h"

namespace kvcache {

using sequence::EngineTransfer;

Status Sequence::import_rows(std::span<const std::int32_t> layers, std::uint64_t start,
                             std::uint64_t stop, std::span<const EngineTensor> tensors,
                             const EnginePlaces& places) {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("import_rows"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  if (Status status = cache.check_backing("import_rows"); !status) return status;
  const EngineTransfer transfer = {start, stop, tensors, places};
  const auto moves = state.find_moves(layers, transfer, false);
  if (!moves) return moves.status();
  for (const std::int32_t layer : layers) {
    if (Status status = state.check_start(layer, start, stop - start); !status) return status;
  }
  const sequence::RowsAhead rows{&state, start, stop};
  if (Status status = cache.take_pages({&rows, 1}, cache.layers.groups(layers)); !status) {
    return status;
  }
  return state.import_rows(*moves, transfer);
}

Status Sequence::export_rows(std::span<const std::int32_t> layers, std::uint64_t start,
                             std::uint64_t stop, std::span<const EngineTensor> tensors,
                             const EnginePlaces& places) const {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_open(); !status) return status;
  if (Status status = core_->cache->check_backing("export_rows"); !status) return status;
  const EngineTransfer transfer = {start, stop, tensors, places};
  const auto moves = core_->state->find_moves(layers, transfer, true);
  if (!moves) return moves.status();
  for (const std::int32_t layer : layers) {
    if (Status status = core_->state->check_read(layer, start, stop); !status) return status;
  }
  return core_->state->export_rows(*moves, transfer);
}

}  // namespace kvcache
