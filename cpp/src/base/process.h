// What fork() of the process does to our objects. The child has a copy of the memory but none of
// the other threads: a lock that one of them held stays held for ever, and what it was changing is
// half changed. So an object belongs to the process that made it. In a child its lock does not
// block, its handles refuse to work, and it is never destroyed.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "kvcache/status.h"

namespace kvcache {

// Counts the fork()s between the first process and this one. No system call.
std::uint64_t fork_generation() noexcept;

// Remembers which process made it.
// Thread safety: immutable.
class OwnProcess {
 public:
  // False in a child of the process that made it. What an object's mutex guards must not be read
  // then.
  bool is_own_process() const noexcept { return generation_ == fork_generation(); }
  // kInvalidArgument: in a child of the process that made it.
  Status check_process() const {
    if (is_own_process()) return Status::ok();
    return Status::invalid_argument(
        "this handle was made before fork() and is of no use in the child process; "
        "make a new cache here, or start the process by spawn");
  }

 private:
  const std::uint64_t generation_ = fork_generation();
};

// A mutex of an object that other threads may be using while the process forks.
// Thread safety: thread-safe.
class ProcessMutex : public OwnProcess {
 public:
  // In a child of the process that made it, nothing: it may be locked for ever.
  void lock() {
    if (is_own_process()) mutex_.lock();
  }
  void unlock() {
    if (is_own_process()) mutex_.unlock();
  }
  // The mutex itself, for who takes many. REQUIRES: is_own_process().
  std::mutex& own() { return mutex_; }

 private:
  std::mutex mutex_;
};

// Deletes an object that has a ProcessMutex `mutex`; in a child of the process that made it the
// object stays, because it may be half changed.
struct DeleteInOwnProcess {
  template <typename Object>
  void operator()(Object* object) const {
    if (object->mutex.is_own_process()) delete object;
  }
};

}  // namespace kvcache
