// When runs end by themselves. A run lives as long as the longest time to live it was stored with,
// counted anew from each use; whoever uses a run uses all that lead to it, so none outlives those.
// Thread safety: thread-compatible; the cache's lock guards it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "prefix/pins.h"

namespace kvcache::prefix {

class LifeTable {
 public:
  // Whether no run ends by itself.
  bool empty() const { return queue_.empty() && paused_ == 0; }
  bool is_over(RunId run, std::uint64_t now) const {
    return run < lives_.size() && lives_[run].end <= now;
  }

  // The longest that it was stored with.
  std::uint64_t ttl(RunId run) const { return run < lives_.size() ? lives_[run].ttl : kNever; }

  // A new run, whose first position is `start`.
  void begin(RunId run, std::uint64_t start, std::uint64_t ttl, std::uint64_t now);
  // It is stored once more.
  void renew(RunId run, std::uint64_t ttl, std::uint64_t now);
  // A hit used it.
  void use(RunId run, std::uint64_t now) {
    if (run >= lives_.size()) return;
    Life& life = lives_[run];
    life.end = std::max(life.end, after(now, life.ttl));
  }
  // `upper` was cut off the front of `run`, which begins at `position` now.
  void split(RunId upper, RunId run, std::uint64_t position);
  void forget(RunId run);
  void clear() noexcept {
    lives_.clear();
    queue_.clear();
    paused_ = 0;
  }

  // A run whose time is over; none of those below it comes later.
  std::optional<RunId> next(std::uint64_t now);
  // next() passes a run over until it is resumed.
  void pause(RunId run);
  void resume(RunId run);

 private:
  struct Life {
    std::uint64_t ttl = kNever;
    std::uint64_t end = kNever;
    std::uint64_t start = 0;
    std::uint64_t queued = kNever;  // an end it had; kNever: it is not in the queue
    bool paused = false;
  };
  using Key = std::tuple<std::uint64_t, std::uint64_t, RunId>;

  static std::uint64_t after(std::uint64_t now, std::uint64_t ttl) {
    return ttl < kNever - now ? now + ttl : kNever;
  }
  // Of equal ends the deepest comes first.
  static Key key(RunId run, const Life& life) { return {life.queued, ~life.start, run}; }
  void enqueue(RunId run);
  void dequeue(RunId run);

  std::vector<Life> lives_;  // as far as a run ever ended by itself
  // By an end that each had when it was queued: later ones are looked up when its turn comes.
  std::set<Key> queue_;
  std::uint64_t paused_ = 0;
};

}  // namespace kvcache::prefix
