#include "arena/pool_map.h"

namespace kvcache::arena {

std::vector<PoolSpec> pool_specs(const StatePlan& plan, std::uint64_t max_blocks) {
  std::vector<PoolSpec> specs;
  for (std::size_t group = 0; group < plan.groups().size(); ++group) {
    specs.push_back(
        {"pages of group " + std::to_string(group), plan.groups()[group].page_bytes, max_blocks});
  }
  if (plan.has_fixed_state()) {
    specs.push_back({"slots", plan.slot_bytes(), plan.options().sequences});
    specs.push_back({"snapshots", plan.slot_bytes(), 0});
    for (const SnapshotFormat format : {SnapshotFormat::kF16, SnapshotFormat::kInt8}) {
      specs.push_back({std::string(snapshot_format_name(format)) + " snapshots",
                       plan.snapshot_layout(format).bytes, 0});
    }
    const PlanOptions& options = plan.options();
    const std::uint64_t ring_items = std::uint64_t{options.ring_depth} * options.sequences;
    if (ring_items > 0) specs.push_back({"decode ring", plan.slot_bytes(), ring_items});
    if (plan.stash().bytes > 0) {
      specs.push_back({"carry stashes", plan.stash().bytes, options.sequences});
    }
  }
  return specs;
}

PoolMap map_pools(const StatePlan& plan, Arena& arena) {
  PoolMap map;
  for (std::size_t group = 0; group < plan.groups().size(); ++group) {
    map.pages.push_back(&arena.pool(group));
  }
  if (plan.has_fixed_state()) {
    map.slots = &arena.pool(plan.groups().size());
    for (std::size_t format = 0; format < kSnapshotFormats; ++format) {
      map.by_format[format] = &arena.pool(plan.groups().size() + 1 + format);
    }
    map.snapshots = map.by_format[0];
    std::size_t next = plan.groups().size() + 1 + kSnapshotFormats;
    if (plan.options().ring_depth > 0) map.ring = &arena.pool(next++);
    if (plan.stash().bytes > 0) map.stashes = &arena.pool(next++);
  }
  return map;
}

}  // namespace kvcache::arena
