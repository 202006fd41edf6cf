// Records of pooled state in and out of a sequence's pages: what sequence_rows.cc is to rows.
#include <algorithm>

#include "sequence/sequence_state.h"

namespace kvcache::sequence {

template <typename View>
Status SequenceState::check_record_shape(const Stream& stream, const View& rows) const {
  const PagedComponent& want = *stream.ref.component;
  if (rows.heads == want.heads && rows.width == want.width) return Status::ok();
  return Status::invalid_argument("layer ", stream.layer, " ", stream.name, ": expected [",
                                  rows.tokens, ", ", want.heads, ", ", want.width, "], got [",
                                  rows.tokens, ", ", rows.heads, ", ", rows.width, "]");
}

template Status SequenceState::check_record_shape(const Stream&, const codec::RowsView&) const;
template Status SequenceState::check_record_shape(const Stream&,
                                                  const codec::MutableRowsView&) const;

Status SequenceState::check_write(const Stream& stream, std::uint64_t first,
                                  const codec::RowsView& rows) const {
  if (Status status = check_record_shape(stream, rows); !status) return status;
  const std::uint64_t complete = length_ / stream.record_tokens;
  if (first < complete || first > records(stream)) {
    return Status::invalid_argument("layer ", stream.layer, " ", stream.name,
                                    ": writes may start at record ", complete, "..",
                                    records(stream), " (complete..written), got ", first);
  }
  const std::uint64_t known = tokens_.size() / stream.record_tokens;
  if (rows.tokens > known - std::min(first, known)) {
    return Status::invalid_argument("layer ", stream.layer, " ", stream.name, ": ", rows.tokens,
                                    " records from ", first, " on, but ", tokens_.size(),
                                    " known tokens make ", known, " records of ",
                                    stream.record_tokens, "; extend() the sequence first");
  }
  return Status::ok();
}

Status SequenceState::encode(const Stream& stream, std::uint64_t first,
                             const codec::RowsView& rows) {
  if (rows.tokens == 0) return Status::ok();
  const Status status = encode_rows(stream.ref, first, rows);
  std::uint64_t& frontier = records_[stream.index];
  // Records that were there before may be half overwritten: they must be written again.
  frontier = status.is_ok() ? std::max(frontier, first + rows.tokens) : std::min(frontier, first);
  return status;
}

Status SequenceState::check_read(const Stream& stream, std::uint64_t first,
                                 std::uint64_t stop) const {
  if (first <= stop && stop <= records(stream)) return Status::ok();
  return Status::invalid_argument("layer ", stream.layer, " ", stream.name, ": records [", first,
                                  ", ", stop, ") are not within the ", records(stream),
                                  " written ones");
}

Status SequenceState::decode(const Stream& stream, std::uint64_t first,
                             const codec::MutableRowsView& rows) const {
  return rows.tokens == 0 ? Status::ok() : decode_rows(stream.ref, first, rows);
}

}  // namespace kvcache::sequence
