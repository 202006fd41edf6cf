// Hidden rows whose memory counts against a cache's budget, if there is one.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "kvcache/cache.h"
#include "kvcache/hidden_rows.h"
#include "speculate/hidden_rows.h"

namespace kvcache {

struct HiddenMemory {
  Reservation reserved;  // goes last
  speculate::HiddenRows rows;

  // `rows` of them, of the options' width and element. `name` begins every error.
  static Result<HiddenMemory> create(std::string_view name, std::uint64_t rows,
                                     const HiddenRowsOptions& options) {
    auto made = speculate::HiddenRows::create(name, rows, options.width, options.dtype);
    if (!made) return made.status();
    HiddenMemory memory{{}, std::move(made).value()};
    if (options.cache == nullptr) return memory;
    auto reserved = options.cache->reserve(memory.rows.bytes());
    if (!reserved) return reserved.status().prefixed(std::string(name) + ": ");
    memory.reserved = std::move(reserved).value();
    return memory;
  }
};

}  // namespace kvcache
