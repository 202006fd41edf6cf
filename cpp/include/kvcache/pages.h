// Where rows lie, for kernels that read them in place through a block table.
// Every page is the bytes of one block for one group: of each component its scales, if it has any,
// and its rows. Layouts are row-major: rows [block_tokens, heads, width] of the component's dtype,
// scales [block_tokens, heads] of row_scale_bytes each.
// Thread safety: values; the memory behind them is shared, see each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvcache/state_plan.h"

namespace kvcache {

// One component in every page of its group: the row of position p, head h starts at
// rows + table[p / block_tokens] * page_stride + ((p % block_tokens) * heads + h) * row bytes.
// Of pooled state p is a record, and block_tokens the records in a page.
// The memory is valid as long as `owner` lives, also past the cache. What it holds is live: a page
// that is free, or of another sequence by now, is memory all the same. Rows at or past length() of
// pages that prepare() made a sequence's own may be written; nothing else may.
struct PageMemory {
  std::size_t group = 0;  // whose block table addresses it
  const PagedComponent* component = nullptr;
  std::uint32_t block_tokens = 0;
  std::uint64_t pages = 0;        // ids of a block table are below
  std::uint64_t page_stride = 0;  // bytes from one page to the next
  std::byte* rows = nullptr;      // of page 0
  std::byte* scales = nullptr;    // of page 0; null when the component has none
  std::shared_ptr<void> owner;
};

// Consecutive positions of one component in one page, which is pinned: it is not freed, trimmed or
// handed out while `pin` lives, whatever becomes of the sequence and the cache. Complete positions
// never change; later ones may be written again until they are complete. Not to be written.
struct PageView {
  std::int32_t page = -1;
  std::uint64_t start = 0;      // position of the first row
  std::uint64_t positions = 0;  // rows in view
  const PagedComponent* component = nullptr;
  const std::byte* rows = nullptr;    // of `start`
  const std::byte* scales = nullptr;  // likewise; null when the component has none
  std::shared_ptr<const void> pin;
};

// A live page and its references: of sequences and pins, and of the prefix index.
struct PageRefs {
  std::int32_t page = -1;
  std::uint32_t refs = 0;  // all of them
  std::uint32_t indexed = 0;
};

}  // namespace kvcache
