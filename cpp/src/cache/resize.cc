// Another byte budget for a cache in service.
#include "cache/cache_core.h"

namespace kvcache {

Status Cache::resize(std::uint64_t memory_bytes) {
  if (Status status = check_process(); !status) return status;
  const auto least = core_->plan.sequence_bytes(1, 1);
  if (!least) return least.status();
  if (memory_bytes < *least) {
    return Status::out_of_capacity("resize to ", memory_bytes,
                                   " bytes: one position of one sequence takes ", *least,
                                   " with its block");
  }
  const std::lock_guard lock(core_->mutex);
  arena::Arena& arena = *core_->arena;
  if (memory_bytes > arena.max_bytes()) {
    return Status::invalid_argument("resize to ", memory_bytes, " bytes: this cache can have ",
                                    arena.max_bytes(), "; raise max_memory when it is made");
  }
  const std::uint64_t reserved = core_->reserved_bytes;
  if (memory_bytes < *least + reserved) {
    return Status::out_of_capacity("resize to ", memory_bytes, " bytes: ", reserved,
                                   " are reserved, and one position of one sequence takes ",
                                   *least);
  }
  const std::uint64_t budget = memory_bytes - reserved;
  const std::uint64_t needed = arena.in_use_bytes();
  const auto refuse = [&](std::uint64_t bytes, const char* by) {
    return Status::out_of_capacity("resize to ", memory_bytes, " bytes: ", by, " need ", bytes,
                                   " of the ", arena.budget_bytes(),
                                   "; close sequences, let go of views or release pins first");
  };
  if (needed > budget) return refuse(needed, "open sequences and views");
  core_->tell_time({});
  core_->index.lapse();
  if (core_->index.pins().bytes() > budget) return refuse(core_->index.pins().bytes(), "pins");
  while (arena.committed_bytes() - arena.idle_bytes() > budget) {
    if (!core_->evict_one()) {
      return refuse(arena.committed_bytes() - arena.idle_bytes(),
                    "open sequences, views, pins and what their prefixes share");
    }
  }
  arena.resize(budget);
  core_->follow_budget();
  return Status::ok();
}

}  // namespace kvcache
