// The time that leases and times to live are counted in: it never goes back, whatever the clock it
// is told does.
// Thread safety: thread-compatible; the cache's lock guards it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace kvcache {

class Clock {
 public:
  // Milliseconds that have passed, from any beginning. `callers`: what the caller's clock shows;
  // without it the time is the latest one that callers gave, or a steady clock's if none ever did.
  std::uint64_t read(std::optional<std::uint64_t> callers) {
    if (!callers && callers_) return passed_;
    if (callers && !callers_) shown_.reset();  // another clock
    callers_ = callers.has_value();
    const std::uint64_t now = callers ? *callers : steady_ms();
    const std::uint64_t before = shown_.value_or(now);
    if (now >= before) {
      passed_ += std::min(now - before, kMost - passed_);
    } else if (before - now <= kJitter) {
      return passed_;
    }
    shown_ = now;
    return passed_;
  }

  // What the clock showed when it was read last.
  std::uint64_t shown() const { return shown_.value_or(0); }

  static std::uint64_t steady_ms() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
    return static_cast<std::uint64_t>(ms);
  }

 private:
  static constexpr std::uint64_t kMost = UINT64_MAX / 2;  // so that a deadline fits behind it
  // Calls of several threads come in another order than they read the clock.
  static constexpr std::uint64_t kJitter = 60'000;

  std::uint64_t passed_ = 0;
  std::optional<std::uint64_t> shown_;
  bool callers_ = false;
};

}  // namespace kvcache
