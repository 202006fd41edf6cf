// How far two runs of tokens agree. Thread safety: a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvcache::prefix {

// memcmp compares at memory speed but does not say where; so it narrows down in ever smaller steps.
inline std::size_t common_prefix(const std::int32_t* a, const std::int32_t* b, std::size_t count) {
  std::size_t at = 0;
  for (const std::size_t step : {std::size_t{4096}, std::size_t{256}, std::size_t{16}}) {
    while (count - at >= step && std::memcmp(a + at, b + at, step * sizeof(*a)) == 0) at += step;
  }
  while (at < count && a[at] == b[at]) ++at;
  return at;
}

}  // namespace kvcache::prefix
