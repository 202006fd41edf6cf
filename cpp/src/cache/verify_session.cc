#include <utility>

#include "base/check.h"
#include "cache/cache_core.h"
#include "kvcache/verify.h"

namespace kvcache {

using speculate::VerifyState;

Result<VerifySession> Sequence::begin_verify(std::span<const std::int32_t> drafts) {
  if (!core_) return Status::invalid_argument("begin_verify: the sequence is closed");
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("begin_verify"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  if (Status status = VerifyState::check_begin(state); !status) return status;
  VerifyState verify(cache.plan, cache.pools, state, drafts);
  std::vector<sequence::PageCopy> copies;
  Status prepared;
  {
    const std::lock_guard lock(cache.mutex);
    prepared = verify.take_slots(cache);
    // Pages are taken here too: a forward pass that has begun does not run out of them.
    if (prepared) {
      const sequence::RowsAhead rows{&state, verify.start(), verify.start() + verify.rows()};
      prepared = sequence::take_pages({&rows, 1}, cache.groups, cache.pools, cache, copies);
    }
    if (!prepared) {
      verify.release();
      state.drop_unfinished();
    }
  }
  if (!prepared) return prepared;
  cache.copy_shared(state, copies);
  VerifySession session;
  session.core_ = core_;
  session.serial_ = ++core_->verify_serial;
  session.start_ = verify.start();
  session.tokens_ = verify.tokens();
  core_->verify.emplace(std::move(verify));
  return session;
}

VerifySession::VerifySession(VerifySession&& other) noexcept = default;

VerifySession& VerifySession::operator=(VerifySession&& other) noexcept {
  if (this != &other) {
    if (is_open()) static_cast<void>(rollback());
    core_ = std::move(other.core_);
    serial_ = other.serial_;
    start_ = other.start_;
    tokens_ = std::move(other.tokens_);
  }
  return *this;
}

VerifySession::~VerifySession() {
  // Fails when the session has ended, which is fine.
  static_cast<void>(rollback());
}

bool VerifySession::is_open() const {
  if (!core_) return false;
  const std::lock_guard own(core_->mutex);
  return check_open("").is_ok();
}

Status VerifySession::check_process() const {
  return core_ ? core_->mutex.check_process() : Status::ok();
}

Status VerifySession::check_open(std::string_view call) const {
  if (Status status = check_process(); !status) return status;
  if (core_->verify && core_->verify_serial == serial_) return Status::ok();
  return Status::invalid_argument(call, ": the verify session has ended",
                                  core_->state ? "" : "; its sequence is closed");
}

void VerifySession::end() {
  const std::lock_guard lock(core_->cache->mutex);
  core_->verify->release();
  core_->verify.reset();
  core_->state->drop_unfinished();
}

Status VerifySession::write(std::int32_t layer, std::span<const codec::RowsView> components) {
  if (!core_) return Status::invalid_argument("write: the verify session has ended");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("write"); !status) return status;
  if (Status status = core_->cache->check_backing("write"); !status) return status;
  sequence::SequenceState& state = *core_->state;
  if (Status status = state.check_rows(layer, components); !status) return status;
  if (components[0].tokens != rows()) {
    return Status::invalid_argument("layer ", layer, ": the verify session has ", rows(),
                                    " rows, got ", components[0].tokens);
  }
  return state.encode(layer, start_, components);
}

Result<StateView> VerifySession::state(std::uint64_t row, std::int32_t layer,
                                       std::string_view name) {
  if (!core_) return Status::invalid_argument("state: the verify session has ended");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("state"); !status) return status;
  CacheCore& cache = *core_->cache;
  if (Status status = cache.check_backing("state"); !status) return status;
  if (row >= rows()) {
    return Status::invalid_argument("state: the verify session has rows 0..", rows() - 1, ", got ",
                                    row);
  }
  const auto component = cache.layers.fixed(layer, name);
  if (!component) return component.status();
  const arena::ItemId slot = core_->verify->take(row, **component, core_->state->slot_bytes());
  return pin_tensor(core_->cache, *cache.pools.snapshots, slot, **component);
}

Result<std::uint64_t> VerifySession::commit(std::uint64_t accepted) {
  if (!core_) return Status::invalid_argument("commit: the verify session has ended");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("commit"); !status) return status;
  if (accepted == 0 || accepted > rows()) {
    return Status::invalid_argument("commit: accepted must be 1..", rows(), ", got ", accepted,
                                    accepted == 0 ? "; rollback() accepts nothing" : "");
  }
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  if (cache.backing) {
    if (Status status = state.check_complete("commit", start_ + rows()); !status) return status;
    if (Status status = core_->verify->check_taken(accepted - 1); !status) return status;
  }
  state.extend(std::span(tokens_).subspan(1, accepted - 1), {});
  if (cache.backing) core_->verify->adopt(accepted - 1, state.slot_bytes());
  {
    const std::lock_guard lock(cache.mutex);
    // By the old length: what may be truncated afterwards is the same as without speculation.
    state.trim_windows();
  }
  const Status status = state.advance(accepted, cache.backing);
  KVCACHE_CHECK(status.is_ok());
  end();
  return state.length();
}

Status VerifySession::rollback() {
  if (!core_) return Status::invalid_argument("rollback: the verify session has ended");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("rollback"); !status) return status;
  end();
  return Status::ok();
}

}  // namespace kvcache
