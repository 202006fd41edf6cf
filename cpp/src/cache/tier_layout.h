// What records of a disk tier hold of a plan's state: which pages, in which order. FORMAT.md says
// the same in words. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvcache/state_plan.h"

namespace kvcache {

// Whether going on at a position takes more than the runs before it.
bool needs_boundaries(const StatePlan& plan);

// Most blocks of a run: about 2 MiB of pages, at most 16 blocks, since a hit ends with a run.
std::uint64_t most_run_blocks(const StatePlan& plan);

struct PageOf {
  std::size_t group = 0;
  std::uint64_t block = 0;
};

// The pages of a run of blocks [first, last), in the order of its payload.
std::vector<PageOf> run_pages(const StatePlan& plan, std::uint64_t first, std::uint64_t last);
// The pages of a boundary at `position`; the snapshot comes before them.
std::vector<PageOf> boundary_pages(const StatePlan& plan, std::uint64_t position);

// The first `rows` rows of a page into one that is zero: the rows behind may be being written.
void copy_rows(const Group& group, std::uint64_t rows, const std::byte* from, std::byte* to);

std::uint64_t bytes_of(const StatePlan& plan, const std::vector<PageOf>& pages);

}  // namespace kvcache
