#include "cache/tier_layout.h"

#include <algorithm>
#include <cstring>

namespace kvcache {

bool needs_boundaries(const StatePlan& plan) {
  const auto& groups = plan.groups();
  return plan.has_fixed_state() || std::any_of(groups.begin(), groups.end(),
                                               [](const Group& each) { return each.forgets(); });
}

std::uint64_t most_run_blocks(const StatePlan& plan) {
  constexpr std::uint64_t kBytes = 2 << 20;
  constexpr std::uint64_t kMostBlocks = 16;
  std::uint64_t block = 0;
  for (const Group& group : plan.groups()) block += group.forgets() ? 0 : group.page_bytes;
  return std::clamp<std::uint64_t>(block == 0 ? kMostBlocks : kBytes / block, 1, kMostBlocks);
}

std::vector<PageOf> run_pages(const StatePlan& plan, std::uint64_t first, std::uint64_t last) {
  std::vector<PageOf> pages;
  for (std::size_t group = 0; group < plan.groups().size(); ++group) {
    if (plan.groups()[group].forgets()) continue;
    for (std::uint64_t block = first; block < last; ++block) pages.push_back({group, block});
  }
  return pages;
}

std::vector<PageOf> boundary_pages(const StatePlan& plan, std::uint64_t position) {
  const std::uint64_t block_tokens = plan.block_tokens();
  std::vector<PageOf> pages;
  for (std::size_t index = 0; index < plan.groups().size(); ++index) {
    const Group& group = plan.groups()[index];
    const BlockRange live = group.live_blocks(position, block_tokens);
    const auto add = [&](std::uint64_t first, std::uint64_t last) {
      for (std::uint64_t block = first; block < last; ++block) pages.push_back({index, block});
    };
    if (group.forgets()) {
      add(0, std::min(group.sink_blocks(position, block_tokens), live.first));
      add(live.first, live.last);
    } else {
      add(position / block_tokens, live.last);
    }
  }
  return pages;
}

void copy_rows(const Group& group, std::uint64_t rows, const std::byte* from, std::byte* to) {
  for (const PagedComponent& component : group.components) {
    std::memcpy(to + component.rows_offset, from + component.rows_offset,
                rows * component.row_bytes());
    if (component.row_scale_bytes == 0) continue;
    std::memcpy(to + component.scales_offset, from + component.scales_offset,
                rows * component.scale_bytes());
  }
}

std::uint64_t bytes_of(const StatePlan& plan, const std::vector<PageOf>& pages) {
  std::uint64_t bytes = 0;
  for (const PageOf& page : pages) bytes += plan.groups()[page.group].page_bytes;
  return bytes;
}

}  // namespace kvcache
