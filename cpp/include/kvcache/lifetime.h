// How long stored prefixes stay, beyond what an eviction policy would do by itself.
//
//   auto pin = cache->pin(tokens, {}, {.lease_ms = 60'000});
//   pin->tokens();   // so many positions of the longest stored prefix stay
//   pin->release();  // or by the destructor
//
// Times are milliseconds of the caller's clock, where open(), close() or pin() are given `now_ms`,
// else of a steady clock. Once a call has given `now_ms`, calls that give none happen at the latest
// time given. A clock that goes back by up to a minute stands still until it is there again; one
// that goes back further has been set anew and goes on from there, as if no time had passed.
// Thread safety: values, and Pin, which is thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kvcache/status.h"

namespace kvcache {

class CacheCore;

// So many bytes, or, without them, a share of the budget that follows resize().
struct MemoryShare {
  double fraction = 1.0;
  std::optional<std::uint64_t> bytes = {};
};

// Of a time to live: it never ends.
inline constexpr std::uint64_t kForever = UINT64_MAX;

struct PinOptions {
  std::optional<std::uint64_t> lease_ms = {};  // the pin lapses by itself after that
  std::optional<std::uint64_t> now_ms = {};
};

// Keeps a stored prefix where open() finds it: its pages in every group, the window before its end
// and the snapshots there, though not what continues it. It guards against the cache's own choices
// (eviction, times to live, the limit of snapshots on a path, quotas), not against its owner's:
// clear(), erase() and bump_epoch() drop what is pinned and end the pin.
// Handles do not survive fork() of the process: in the child they hold nothing.
class Pin {
 public:
  Pin() = default;
  Pin(Pin&& other) noexcept;
  Pin& operator=(Pin&& other) noexcept;
  ~Pin();  // releases

  // Positions that it keeps, or has kept.
  std::uint64_t tokens() const { return tokens_; }
  // When it lapses; none: never.
  std::optional<std::uint64_t> expires_ms() const { return expires_ms_; }
  // False once it is released, lapsed, or what it kept was dropped.
  bool is_held() const;
  // Another end, counted from now; none: never. kNotFound: it is not held any more.
  Status renew(const PinOptions& options);
  // Lets go; more than once is no error.
  void release();
  // kInvalidArgument: this is a child of the process that made it.
  Status check_process() const;

 private:
  friend class Cache;

  std::shared_ptr<CacheCore> cache_;
  std::uint64_t id_ = 0;
  std::uint64_t tokens_ = 0;
  std::optional<std::uint64_t> expires_ms_;
};

}  // namespace kvcache
