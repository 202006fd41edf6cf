#include "prefix/lives.h"

namespace kvcache::prefix {

void LifeTable::enqueue(RunId run) {
  Life& life = lives_[run];
  if (life.end == kNever || life.paused || life.queued != kNever) return;
  life.queued = life.end;
  queue_.insert(key(run, life));
}

void LifeTable::dequeue(RunId run) {
  Life& life = lives_[run];
  if (life.queued == kNever) return;
  queue_.erase(key(run, life));
  life.queued = kNever;
}

void LifeTable::begin(RunId run, std::uint64_t start, std::uint64_t ttl, std::uint64_t now) {
  const std::uint64_t end = after(now, ttl);
  if (run >= lives_.size()) {
    if (end == kNever) return;
    lives_.resize(run + std::size_t{1});
  }
  lives_[run] = {.ttl = ttl, .end = end, .start = start};
  enqueue(run);
}

void LifeTable::renew(RunId run, std::uint64_t ttl, std::uint64_t now) {
  if (run >= lives_.size()) return;
  Life& life = lives_[run];
  life.ttl = std::max(life.ttl, ttl);
  use(run, now);
  if (life.end == kNever) dequeue(run);
}

void LifeTable::split(RunId upper, RunId run, std::uint64_t position) {
  if (run >= lives_.size() || lives_[run].end == kNever) return;
  if (upper >= lives_.size()) lives_.resize(upper + std::size_t{1});
  const Life life = lives_[run];
  dequeue(run);
  lives_[run].start = position;
  enqueue(run);
  lives_[upper] = {.ttl = life.ttl, .end = life.end, .start = life.start, .paused = life.paused};
  paused_ += life.paused;
  enqueue(upper);
}

void LifeTable::forget(RunId run) {
  if (run >= lives_.size()) return;
  dequeue(run);
  paused_ -= lives_[run].paused;
  lives_[run] = {};
}

std::optional<RunId> LifeTable::next(std::uint64_t now) {
  while (!queue_.empty()) {
    const auto [end, start, run] = *queue_.begin();
    if (end > now) break;
    if (lives_[run].end == end) return run;
    dequeue(run);
    enqueue(run);
  }
  return std::nullopt;
}

void LifeTable::pause(RunId run) {
  if (run >= lives_.size() || lives_[run].paused) return;
  dequeue(run);
  lives_[run].paused = true;
  ++paused_;
}

void LifeTable::resume(RunId run) {
  if (run >= lives_.size() || !lives_[run].paused) return;
  lives_[run].paused = false;
  --paused_;
  enqueue(run);
}

}  // namespace kvcache::prefix
