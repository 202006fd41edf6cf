#include "kvcache/reservation.h"

#include <utility>

#include "cache/cache_core.h"

namespace kvcache {

Result<Reservation> Cache::reserve(std::uint64_t bytes) {
  if (Status status = check_process(); !status) return status;
  const auto least = core_->plan.sequence_bytes(1, 1);
  if (!least) return least.status();
  const std::lock_guard lock(core_->mutex);
  arena::Arena& arena = *core_->arena;
  const auto refuse = [&](std::uint64_t taken, const char* by, const char* needs) {
    return Status::out_of_capacity("reserve ", bytes, " bytes: ", by, needs, taken, " of the ",
                                   arena.budget_bytes(), "; raise memory");
  };
  const std::uint64_t budget = arena.budget_bytes();
  if (bytes > budget || budget - bytes < *least) {
    return refuse(*least, "one position of one sequence", " takes ");
  }
  Status status = core_->set_budget(budget - bytes, [&](std::uint64_t taken, const char* by) {
    return refuse(taken, by, " need ");
  });
  if (!status) return status;
  core_->reserved_bytes += bytes;
  Reservation made;
  made.core_ = core_;
  made.bytes_ = bytes;
  return made;
}

Reservation::Reservation(Reservation&& other) noexcept
    : core_(std::move(other.core_)), bytes_(other.bytes_.exchange(0)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    release();
    core_ = std::move(other.core_);
    bytes_ = other.bytes_.exchange(0);
  }
  return *this;
}

Reservation::~Reservation() { release(); }

Status Reservation::check_process() const {
  return core_ ? core_->mutex.check_process() : Status::ok();
}

void Reservation::release() {
  if (core_ == nullptr || !core_->mutex.is_own_process()) return;
  const std::lock_guard lock(core_->mutex);
  const std::uint64_t bytes = bytes_.exchange(0);
  if (bytes == 0) return;
  core_->reserved_bytes -= bytes;
  core_->arena->resize(core_->arena->budget_bytes() + bytes);
}

}  // namespace kvcache
