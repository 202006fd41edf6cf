// The rows of an accepted path become those of consecutive positions.
#include <cstring>

#include "sequence/sequence_state.h"

namespace kvcache::sequence {

void SequenceState::compact_rows(std::uint64_t start, std::span<const std::int32_t> path) const {
  std::size_t first = 0;  // rows before it are where they belong
  while (first < path.size() && static_cast<std::size_t>(path[first]) == first) ++first;
  if (first == path.size()) return;
  for (std::size_t group = 0; group < tables_.size(); ++group) {
    const Group& needs = plan_->groups()[group];
    if (needs.record_tokens != 1) continue;
    const Pool& pool = *pools_.pages[group];
    const std::vector<ItemId>& pages = tables_[group].pages();
    const std::uint64_t size = page_rows(group);
    // Ascending: a row takes the place of one that is rejected, or has moved before.
    for (std::size_t i = first; i < path.size(); ++i) {
      const std::uint64_t from = start + static_cast<std::uint64_t>(path[i]);
      const std::uint64_t to = start + i;
      const std::byte* source = pool.data(pages[from / size]);
      std::byte* target = pool.data(pages[to / size]);
      for (const PagedComponent& component : needs.components) {
        const auto copy = [&](std::uint64_t offset, std::uint64_t row_bytes) {
          std::memcpy(target + offset + to % size * row_bytes,
                      source + offset + from % size * row_bytes, row_bytes);
        };
        copy(component.rows_offset, component.row_bytes());
        copy(component.scales_offset, component.scale_bytes());
      }
    }
  }
}

}  // namespace kvcache::sequence
