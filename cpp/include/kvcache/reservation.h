// Part of a cache's byte budget for memory that lies elsewhere, so that one budget covers it too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "kvcache/status.h"

namespace kvcache {

class CacheCore;

// Made by Cache::reserve(); the budget has its bytes back when this goes.
// Thread safety: release() and bytes() are thread-safe, moving is not. In a child of fork() nothing
// is given back.
class Reservation {
 public:
  Reservation() = default;  // of nothing
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  std::uint64_t bytes() const { return bytes_; }
  void release();  // may be repeated

 private:
  friend class Cache;

  std::shared_ptr<CacheCore> core_;
  std::atomic<std::uint64_t> bytes_ = 0;  // changed under the cache's lock
};

}  // namespace kvcache
