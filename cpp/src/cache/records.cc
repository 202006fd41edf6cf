// Records of pooled state, by stream: of a sequence and of a verify session.
#include "cache/cache_core.h"
#include "cache/verify_life.h"
#include "kvcache/sequence.h"
#include "kvcache/verify.h"

namespace kvcache {

Result<std::uint64_t> Sequence::written_records(std::int32_t layer, std::string_view name) const {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_open(); !status) return status;
  const auto stream = core_->cache->layers.stream(layer, name);
  if (!stream) return stream.status();
  return core_->state->records(**stream);
}

Status Sequence::write_records(std::int32_t layer, std::string_view name, std::uint64_t first,
                               const codec::RowsView& rows) {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("write_records"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  if (Status status = cache.check_backing("write_records"); !status) return status;
  const auto stream = cache.layers.stream(layer, name);
  if (!stream) return stream.status();
  if (Status status = state.check_write(**stream, first, rows); !status) return status;
  const std::uint64_t pooled = (*stream)->record_tokens;
  const sequence::RowsAhead ahead{&state, first * pooled, (first + rows.tokens) * pooled};
  const std::size_t group = (*stream)->ref.group;
  if (Status status = cache.take_pages({&ahead, 1}, {&group, 1}); !status) return status;
  return state.encode(**stream, first, rows);
}

Status Sequence::read_records(std::int32_t layer, std::string_view name, std::uint64_t first,
                              const codec::MutableRowsView& rows) const {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_open(); !status) return status;
  if (Status status = core_->cache->check_backing("read_records"); !status) return status;
  const auto stream = core_->cache->layers.stream(layer, name);
  if (!stream) return stream.status();
  const sequence::SequenceState& state = *core_->state;
  if (Status status = state.check_record_shape(**stream, rows); !status) return status;
  if (rows.tokens > UINT64_MAX - first) {
    return Status::invalid_argument("read_records: records overflow");
  }
  if (Status status = state.check_read(**stream, first, first + rows.tokens); !status) {
    return status;
  }
  return state.decode(**stream, first, rows);
}

Status VerifySession::write_records(std::int32_t layer, std::string_view name,
                                    const codec::RowsView& rows) {
  if (!core_) return verify_ended("write_records");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("write_records"); !status) return status;
  CacheCore& cache = *core_->cache;
  if (Status status = cache.check_backing("write_records"); !status) return status;
  const auto stream = cache.layers.stream(layer, name);
  if (!stream) return stream.status();
  sequence::SequenceState& state = *core_->state;
  if (Status status = state.check_record_shape(**stream, rows); !status) return status;
  const std::uint64_t first = start_ / (*stream)->record_tokens;
  const std::uint64_t last = (start_ + this->rows()) / (*stream)->record_tokens;
  if (rows.tokens != last - first) {
    return Status::invalid_argument("layer ", layer, " ", name, ": the verify session completes ",
                                    last - first, " records from ", first, " on, got ",
                                    rows.tokens);
  }
  return state.encode(**stream, first, rows);
}

}  // namespace kvcache
