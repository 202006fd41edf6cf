// Keeps a tier from waiting again and again for a server that does not answer: after a failure
// nothing is tried for a while, each time twice as long, and then by one caller at first.
// Thread safety: thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace kvcache::remote {

class Breaker {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kFirstPause{250};
  static constexpr std::chrono::milliseconds kLongestPause{10'000};

  // Whether to try now. After a pause the first who asks may, and the others wait for how it ends.
  bool may_try(Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    if (pause_.count() == 0) return true;
    if (now < until_) return false;
    until_ = now + pause_;
    return true;
  }
  void succeed() {
    const std::lock_guard lock(mutex_);
    pause_ = {};
  }
  void fail(Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    // Several may fail of one cause.
    if (pause_.count() > 0 && now < until_ && now - failed_ < pause_ / 2) return;
    pause_ = pause_.count() == 0 ? kFirstPause : std::min(2 * pause_, kLongestPause);
    failed_ = now;
    until_ = now + pause_;
  }
  bool is_open() const {
    const std::lock_guard lock(mutex_);
    return pause_.count() > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::chrono::milliseconds pause_{};  // 0: all is well
  Clock::time_point failed_{};
  Clock::time_point until_{};
};

}  // namespace kvcache::remote
