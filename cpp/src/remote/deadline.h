// The moment by which an operation ends, one way or the other. Thread safety: immutable.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace kvcache::remote {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after_ms(std::uint64_t ms) {
    constexpr std::uint64_t kYear = 365ULL * 24 * 3600 * 1000;
    return Deadline(Clock::now() + std::chrono::milliseconds(std::min(ms, kYear)), ms);
  }

  Clock::time_point at() const { return at_; }
  // What it was made with, for messages.
  std::uint64_t ms() const { return ms_; }
  // An earlier one, when 1/n of the time that is left has passed.
  Deadline part(int n) const {
    const auto now = Clock::now();
    const auto left = std::max(Clock::duration(0), at_ - now) / n;
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    return Deadline(now + left, static_cast<std::uint64_t>(ms));
  }
  bool has_passed() const { return Clock::now() >= at_; }
  // For poll(): rounded up, so that waiting so long gets there.
  int poll_ms() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
  }

 private:
  Deadline(Clock::time_point at, std::uint64_t ms) : at_(at), ms_(ms) {}

  Clock::time_point at_;
  std::uint64_t ms_;
};

}  // namespace kvcache::remote
