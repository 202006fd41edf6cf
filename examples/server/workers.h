// Threads that split one loop between them and the caller.
// Thread safety: one run() at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace server {

class Workers {
 public:
  // The caller of run() is one of `threads`.
  explicit Workers(std::size_t threads) {
    for (std::size_t i = 1; i < threads; ++i) threads_.emplace_back([this] { serve(); });
  }
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Calls body(0) to body(count - 1), in any order, and returns when all have.
  void run(std::size_t count, const std::function<void(std::size_t)>& body) {
    {
      const std::lock_guard lock(mutex_);
      body_ = &body;
      count_ = count;
      next_ = 0;
      working_ = threads_.size();
      ++round_;
    }
    wake_.notify_all();
    take();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return working_ == 0; });
  }

 private:
  void take() {
    for (std::size_t i = next_++; i < count_; i = next_++) (*body_)(i);
  }

  void serve() {
    std::size_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
      lock.unlock();
      take();
      lock.lock();
      if (--working_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(std::size_t)>* body_ = nullptr;
  std::size_t count_ = 0;
  std::atomic<std::size_t> next_ = 0;
  std::size_t working_ = 0;  // threads that have not finished this round
  std::size_t round_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace server
