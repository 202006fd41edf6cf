// Asks for memory that will be read or written soon. Any address will do.
#pragma once

#include <cstddef>

namespace kvcache::base {

inline void prefetch(const void* address) { __builtin_prefetch(address); }

template <typename T>
void prefetch(const T* object) {
  constexpr std::size_t kLine = 64;
  const auto* bytes = reinterpret_cast<const std::byte*>(object);
  for (std::size_t at = 0; at < sizeof(T); at += kLine) __builtin_prefetch(bytes + at);
  __builtin_prefetch(bytes + sizeof(T) - 1);
}

}  // namespace kvcache::base
