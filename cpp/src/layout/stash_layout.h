// Where each tensor's rows lie in the carry stash of a sequence.
#pragma once

#include "kvcache/stash.h"
#include "kvcache/state_plan.h"

namespace kvcache {

// REQUIRES: `fixed` of a plan, whose sizes are checked, and its `decls`.
// kInvalidArgument: the stash would take more than `max_bytes`.
Result<StashLayout> lay_out_stash(const std::vector<FixedComponent>& fixed,
                                  const std::vector<StateDecl>& decls, std::uint32_t rows,
                                  std::uint64_t max_bytes);

}  // namespace kvcache
