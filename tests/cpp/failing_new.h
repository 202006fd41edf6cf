// An allocator that runs out when a test says so. It replaces the process's: one file of a binary
// includes it.
#pragma once

#include <cstdlib>
#include <new>

namespace {

// Allocations of this thread until one fails; negative: none does.
thread_local long remaining = -1;

bool fails_now() {
  if (remaining < 0) return false;
  return remaining-- == 0;
}

}  // namespace

// std::stable_sort asks for its buffer this way.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return fails_now() ? nullptr : std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void* operator new(std::size_t size) {
  void* memory = operator new(size, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
