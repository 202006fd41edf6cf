// Where each fixed-size tensor lies in a snapshot of one format.
#pragma once

#include "kvcache/snapshot.h"
#include "kvcache/state_plan.h"

namespace kvcache {

// REQUIRES: `fixed` of a plan, whose sizes are checked, and its `decls`.
SnapshotLayout lay_out_snapshot(const std::vector<FixedComponent>& fixed,
                                const std::vector<StateDecl>& decls, SnapshotFormat format);

}  // namespace kvcache
