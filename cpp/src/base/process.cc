#include "base/process.h"

#include <pthread.h>

#include <atomic>

namespace kvcache {
namespace {

std::atomic<std::uint64_t> generation{0};

// Registered as the library is loaded: a registration on first use could itself be cut by a fork.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

std::uint64_t fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

}  // namespace kvcache
