// Hidden rows whose memory counts against a cache's budget, if there is one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kvcache/cache.h"
#include "kvcache/hidden_rows.h"
#include "speculate/hidden_rows.h"

namespace kvcache {

// `rows` of them, of the options' width and element. `name` begins every error. The budget has the
// bytes back when the memory goes: a view keeps both.
inline Result<speculate::HiddenRows> hidden_memory(std::string_view name, std::uint64_t rows,
                                                   const HiddenRowsOptions& options) {
  auto made = speculate::HiddenRows::create(name, rows, options.width, options.dtype);
  if (!made || options.cache == nullptr) return made;
  auto reserved = options.cache->reserve(made->bytes());
  if (!reserved) return reserved.status().prefixed(std::string(name) + ": ");
  made->keep(std::make_shared<Reservation>(std::move(reserved).value()));
  return made;
}

}  // namespace kvcache
