#include <utility>

#include "cache/verify_life.h"
#include "kvcache/verify.h"

namespace kvcache {

using speculate::KeptRows;
using speculate::VerifyState;

Result<VerifySession> Sequence::begin_verify(std::span<const std::int32_t> drafts,
                                             const TokenTree* tree, VerifyStrategy strategy) {
  if (!core_) return Status::invalid_argument("begin_verify: the sequence is closed");
  VerifySession session;  // before the lock: should memory run out, it rolls back behind it
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("begin_verify"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  if (Status status = VerifyState::check_begin(state); !status) return status;
  Status fits = VerifyState::check_strategy(cache.plan, strategy, drafts.size() + 1);
  if (!fits) return fits;
  std::optional<TokenTree> shape;
  if (tree != nullptr) {
    Status status = VerifyState::check_tree(cache.plan, *tree, drafts.size());
    if (!status) return status;
    shape = *tree;
  }
  VerifyState verify(cache.plan, cache.pools, state, drafts, std::move(shape), strategy);
  session.start_ = verify.start();
  session.tokens_ = verify.tokens();
  session.strategy_ = strategy;
  for (std::uint64_t row = 0; row < verify.rows(); ++row) {
    session.positions_.push_back(static_cast<std::int64_t>(verify.position(row)));
  }
  session.core_ = core_;
  session.serial_ = ++core_->verify_serial;
  core_->verify.emplace(std::move(verify));
  core_->verify->reserve_slots();
  std::vector<sequence::PageCopy> copies;
  {
    const std::lock_guard lock(cache.mutex);
    const Status prepared = take_memory(cache, {&core_, 1}, copies);
    if (!prepared) {
      end_verify(*core_);
      return prepared;
    }
  }
  cache.copy_shared(state, copies);
  place_inputs(*core_);
  core_->verify_begun = true;
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
    positions_ = std::move(other.positions_);
    strategy_ = other.strategy_;
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

Status VerifySession::write(std::int32_t layer, std::span<const codec::RowsView> components) {
  if (!core_) return verify_ended("write");
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
  if (!core_) return verify_ended("state");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("state"); !status) return status;
  return verify_tensor(*core_, row, layer, name);
}

Result<std::uint64_t> VerifySession::commit(std::uint64_t accepted) {
  return commit_rows(accepted, {});
}

Result<std::uint64_t> VerifySession::commit(std::span<const std::int32_t> path) {
  return commit_rows(path.size(), path);
}

Result<std::uint64_t> VerifySession::commit_rows(std::uint64_t count,
                                                 std::span<const std::int32_t> path) {
  if (!core_) return verify_ended("commit");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("commit"); !status) return status;
  const KeptRows kept{count, path};
  if (Status status = check_commit(*core_, kept, false); !status) return status;
  reserve_rows(*core_, kept);
  keep_rows(*core_, kept);
  const std::lock_guard lock(core_->cache->mutex);
  end_verify(*core_);
  return core_->state->length();
}

Status VerifySession::rollback() {
  if (!core_) return verify_ended("rollback");
  const std::lock_guard own(core_->mutex);
  if (Status status = check_open("rollback"); !status) return status;
  const std::lock_guard lock(core_->cache->mutex);
  end_verify(*core_);
  return Status::ok();
}

}  // namespace kvcache
