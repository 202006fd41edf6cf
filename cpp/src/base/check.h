// Assertions on our own invariants. A value that comes from a caller or a file never reaches one.
#pragma once

#include <cstdio>
#include <cstdlib>

#define KVCACHE_CHECK(condition)                                                            \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::fprintf(stderr, "kvcache: broken invariant %s at %s:%d\n", #condition, __FILE__, \
                   __LINE__);                                                               \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)
