// Memory of calloc() and aligned_alloc(), for large arrays that take none before they are used.
// Thread safety: values.
#pragma once

#include <cstdlib>
#include <memory>

namespace kvcache {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
template <typename T>
using Malloced = std::unique_ptr<T, FreeMemory>;

}  // namespace kvcache
