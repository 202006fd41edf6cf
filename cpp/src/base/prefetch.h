// Asks for memory that will be read or written soon. Any address will do.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache::base {

inline void prefetch(const void* address) { __builtin_prefetch(address); }

template <typename T>
void prefetch(const T* object) {
  constexpr std::size_t kLine = 64;
  // As a number, for pointers to nothing have no bytes behind them.
  const auto first = reinterpret_cast<std::uintptr_t>(object);
  const auto fetch = [](std::uintptr_t at) { __builtin_prefetch(reinterpret_cast<void*>(at)); };
  for (std::size_t at = 0; at < sizeof(T); at += kLine) fetch(first + at);
  fetch(first + sizeof(T) - 1);
}

}  // namespace kvcache::base
