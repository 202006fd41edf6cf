#include "cache/verify_commit.h"

#include "base/check.h"

namespace kvcache {

using speculate::KeptRows;
using speculate::VerifyState;

Status check_commit(const SequenceCore& core, const KeptRows& kept, bool in_place) {
  const VerifyState& verify = *core.verify;
  if (Status status = verify.check_rows(kept); !status) return status;
  if (!core.cache->backing) return Status::ok();
  if (!in_place) {
    const std::uint64_t stop = verify.start() + verify.rows();
    if (Status status = core.state->check_complete("commit", stop); !status) return status;
  }
  return verify.check_taken(kept.last());
}

void reserve_rows(SequenceCore& core, const KeptRows& kept) {
  core.state->reserve_tokens(kept.count);
}

void keep_rows(SequenceCore& core, const KeptRows& kept) {
  sequence::SequenceState& state = *core.state;
  const VerifyState& verify = *core.verify;
  if (core.cache->backing) {
    state.compact_rows(verify.start(), kept.path);
    verify.adopt(kept.last(), state.slot_bytes());
  }
  for (std::uint64_t i = 1; i < kept.count; ++i) {
    state.extend({&verify.tokens()[kept.row(i)], 1});
  }
  const Status status = state.advance(kept.count, false);
  KVCACHE_CHECK(status.is_ok());
}

void end_verify(SequenceCore& core) {
  sequence::SequenceState& state = *core.state;
  const std::uint64_t start = core.verify->start();
  core.verify->release();
  core.verify.reset();
  state.drop_unfinished();
  // By the old length: what may be truncated afterwards is the same as without speculation.
  if (state.length() > start) state.trim_windows(start);
}

}  // namespace kvcache
