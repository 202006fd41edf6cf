// Pages before rows: what a sequence does for several layers or positions at once, and for kernels
// that store rows in place.
#include <algorithm>
#include <mutex>
#include <vector>

#include "cache/cache_core.h"

namespace kvcache {

using sequence::PageCopy;
using sequence::RowsAhead;
using sequence::SequenceState;

Status CacheCore::take_pages(std::span<const RowsAhead> rows, std::span<const std::size_t> wanted) {
  std::vector<PageCopy> copies;
  {
    const std::lock_guard lock(mutex);
    for (const RowsAhead& ahead : rows) {
      if (ahead.start < ahead.stop) ahead.state->trim_windows();
    }
    if (Status status = sequence::take_pages(rows, wanted, pools, *this, copies); !status) {
      return status;
    }
  }
  copy_shared(*rows[0].state, copies);
  return Status::ok();
}

Status CacheCore::make_writable(std::span<const RowsAhead> rows,
                                std::span<const std::size_t> wanted) {
  return sequence::pages_ready(rows, wanted) ? Status::ok() : take_pages(rows, wanted);
}

void CacheCore::copy_shared(SequenceState& state, std::span<const PageCopy> copies) {
  if (copies.empty()) return;
  if (backing) state.copy_pages(copies);
  const std::lock_guard lock(mutex);
  state.drop_sources(copies);
}

Status CacheCore::check_in_place(const RowsAhead& rows) const {
  if (sequence::pages_ready({&rows, 1}, groups)) return Status::ok();
  return Status::invalid_argument("advance in place to position ", rows.stop,
                                  ": the pages from position ", rows.start,
                                  " on are not the sequence's own; prepare() them first");
}

Status Sequence::prepare(std::uint64_t positions) {
  if (!core_) return Status::invalid_argument("prepare: the sequence is closed");
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("prepare"); !status) return status;
  SequenceState& state = *core_->state;
  if (Status status = state.check_known(positions); !status) return status;
  const RowsAhead rows{&state, state.length(), state.length() + positions};
  return core_->cache->make_writable({&rows, 1}, core_->cache->groups);
}

Status Sequence::advance_in_place(std::uint64_t positions) {
  if (!core_) return Status::invalid_argument("advance_in_place: the sequence is closed");
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("advance_in_place"); !status) return status;
  SequenceState& state = *core_->state;
  if (Status status = state.check_known(positions); !status) return status;
  const RowsAhead rows{&state, state.length(), state.length() + positions};
  if (Status status = core_->cache->check_in_place(rows); !status) return status;
  return state.advance(positions, false);
}

Status Sequence::write_layers(std::uint64_t start, std::span<const LayerRows> layers) {
  if (!core_) return Status::invalid_argument("write_layers: the sequence is closed");
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("write_layers"); !status) return status;
  CacheCore& cache = *core_->cache;
  SequenceState& state = *core_->state;
  if (Status status = cache.check_backing("write_layers"); !status) return status;
  std::vector<std::int32_t> named;
  for (const LayerRows& rows : layers) {
    if (Status status = state.check_write(rows.layer, start, rows.components); !status) {
      return status;
    }
    const std::size_t count = rows.components[0].tokens;
    if (count != layers[0].components[0].tokens) {
      return Status::invalid_argument("layer ", rows.layer, ": ", count, " rows, but layer ",
                                      layers[0].layer, " has ", layers[0].components[0].tokens);
    }
    if (std::find(named.begin(), named.end(), rows.layer) != named.end()) {
      return Status::invalid_argument("layer ", rows.layer, " is named twice");
    }
    named.push_back(rows.layer);
  }
  if (layers.empty()) return Status::ok();
  const RowsAhead ahead{&state, start, start + layers[0].components[0].tokens};
  if (Status status = cache.make_writable({&ahead, 1}, cache.layers.groups(named)); !status)
    return status;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Status status = state.encode(layers[i].layer, start, layers[i].components);
    if (status) continue;
    for (std::size_t j = 0; j < i; ++j) state.forget_rows(layers[j].layer, start);
    return status;
  }
  return Status::ok();
}

Status Sequence::read_layers(std::uint64_t start, std::span<const MutableLayerRows> layers) const {
  if (!core_) return Status::invalid_argument("read_layers: the sequence is closed");
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_open(); !status) return status;
  const SequenceState& state = *core_->state;
  if (Status status = core_->cache->check_backing("read_layers"); !status) return status;
  for (const MutableLayerRows& rows : layers) {
    if (Status status = state.check_rows(rows.layer, rows.components); !status) return status;
    const std::uint64_t count = rows.components[0].tokens;
    if (count > UINT64_MAX - start) {
      return Status::invalid_argument("read_layers: positions overflow");
    }
    if (Status status = state.check_read(rows.layer, start, start + count); !status) return status;
  }
  for (const MutableLayerRows& rows : layers) {
    if (Status status = state.decode(rows.layer, start, rows.components); !status) return status;
  }
  return Status::ok();
}

}  // namespace kvcache
