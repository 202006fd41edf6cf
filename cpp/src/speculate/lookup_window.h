// How many looked-up tokens are worth a verify: doubles while all of them are accepted, halves when
// not, and pauses after rounds of which nothing was accepted, longer each time.
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvcache::speculate {

class LookupWindow {
 public:
  // Most tokens of a round, and most rounds of a pause.
  LookupWindow(std::uint64_t max_window, std::uint64_t max_pause)
      : max_window_(max_window), max_pause_(max_pause) {}

  std::uint64_t window() const { return window_; }
  std::uint64_t pause() const { return pause_; }          // rounds still to be passed over
  std::uint64_t in_flight() const { return in_flight_; }  // proposed, not settled

  // Begins a round. False in a pause, of which one round passes.
  bool begin() {
    if (pause_ == 0) return true;
    --pause_;
    return false;
  }
  void propose(std::uint64_t tokens) { in_flight_ = tokens; }

  // REQUIRES: accepted <= in_flight(), which is not 0.
  void settle(std::uint64_t accepted) {
    const bool all = accepted == in_flight_;
    window_ = all ? std::min(2 * window_, max_window_) : std::max(window_ / 2, std::uint64_t{1});
    in_flight_ = 0;
    misses_ = accepted == 0 ? std::min(misses_ + 1, std::uint64_t{32}) : 0;
    pause_ = accepted == 0 ? std::min(std::uint64_t{1} << (misses_ - 1), max_pause_) : 0;
  }
  void abandon() { in_flight_ = 0; }

 private:
  std::uint64_t max_window_;
  std::uint64_t max_pause_;
  std::uint64_t window_ = std::min(std::uint64_t{2}, max_window_);
  std::uint64_t misses_ = 0;  // rounds in a row of which nothing was accepted
  std::uint64_t pause_ = 0;
  std::uint64_t in_flight_ = 0;
};

}  // namespace kvcache::speculate
