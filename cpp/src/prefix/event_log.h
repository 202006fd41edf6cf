// What happened to the index and was not taken yet, and the names of what it has announced.
// Thread safety: thread-compatible; the cache's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvcache/events.h"

namespace kvcache::prefix {

// An event whose space is its key, which all events of the space share; `event.space` is null. No
// key: nothing is stored.
struct LoggedEvent {
  CacheEvent event;
  std::shared_ptr<const std::string> key;
};

// A path from its first token on. Borrows.
struct NamedPath {
  std::string_view key;
  std::span<const MediaSpan> media;
  std::span<const std::int32_t> tokens;
  std::span<const std::uint64_t> names;  // of its whole blocks
};

class EventLog {
 public:
  // `capacity`: most names in events that wait.
  EventLog(std::uint64_t block_tokens, std::uint64_t capacity)
      : block_tokens_(block_tokens), capacity_(capacity) {}

  // Names of a run's whole blocks, from its first block on; those that were announced.
  std::vector<std::uint64_t>& run(std::uint32_t id);
  // Room for the names of the upper part, so that split_run() cannot fail.
  void reserve_split(std::uint32_t upper, std::uint64_t upper_blocks) {
    run(upper).reserve(upper_blocks);
  }
  void split_run(std::uint32_t upper, std::uint32_t lower, std::uint64_t upper_blocks) noexcept;
  void cut_run(std::uint32_t id, std::uint64_t blocks);
  // Of a snapshot; nothing while it is not announced.
  std::optional<std::uint64_t>& snapshot(std::uint32_t index);

  // Blocks [first, last) of a path in one group.
  void stored(const NamedPath& path, std::uint32_t group, std::uint64_t first, std::uint64_t last);
  void stored_snapshot(const NamedPath& path, std::uint32_t group, std::uint64_t position,
                       std::uint64_t name);
  void removed(std::uint32_t group, std::uint64_t name);
  // Everything at once: what was to be told before is of no interest any more.
  void cleared();

  // Nothing is announced any more, and events were dropped.
  void forget_all() noexcept;

  // Events were dropped: only the whole content tells what is there.
  void lose() noexcept;
  bool lost() const { return lost_; }
  std::vector<LoggedEvent> take();
  // Whoever asks is told the whole content instead of what waits.
  void restated() noexcept;

  std::uint64_t waiting() const { return waiting_; }
  std::uint64_t losses() const { return losses_; }

 private:
  bool make_room(std::uint64_t names);
  void drop_waiting() noexcept;
  const std::shared_ptr<const std::string>& shared(std::string_view key);

  const std::uint64_t block_tokens_;
  const std::uint64_t capacity_;
  std::vector<std::vector<std::uint64_t>> runs_;
  std::vector<std::optional<std::uint64_t>> snapshots_;
  std::vector<LoggedEvent> events_;
  std::unordered_map<std::string_view, std::shared_ptr<const std::string>> keys_;  // of events_
  std::uint64_t waiting_ = 0;  // names in events_
  std::uint64_t losses_ = 0;
  bool lost_ = false;
};

}  // namespace kvcache::prefix
