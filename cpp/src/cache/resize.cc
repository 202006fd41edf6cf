// Another byte budget for a cache in service.
#include "cache/cache_core.h"

namespace kvcache {

Status CacheCore::set_budget(std::uint64_t bytes, const BudgetRefusal& refuse) {
  if (arena->in_use_bytes() > bytes) {
    return refuse(arena->in_use_bytes(), "open sequences and views");
  }
  tell_time({});
  index.lapse();
  if (index.pins().bytes() > bytes) return refuse(index.pins().bytes(), "pins");
  while (arena->committed_bytes() - arena->idle_bytes() > bytes) {
    if (evict_one()) continue;
    return refuse(arena->committed_bytes() - arena->idle_bytes(),
                  "open sequences, views, pins and what their prefixes share");
  }
  arena->resize(bytes);
  return Status::ok();
}

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
  const BudgetRefusal refuse = [&](std::uint64_t bytes, const char* by) {
    return Status::out_of_capacity("resize to ", memory_bytes, " bytes: ", by, " need ", bytes,
                                   " of the ", arena.budget_bytes(),
                                   "; close sequences, let go of views or release pins first");
  };
  if (Status status = core_->set_budget(memory_bytes - reserved, refuse); !status) return status;
  core_->follow_budget();
  return Status::ok();
}

}  // namespace kvcache
