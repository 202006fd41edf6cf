// The fixed-size state of a slot to and from a snapshot of any format.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <vector>

#include "kvcache/snapshot.h"
#include "kvcache/state_plan.h"
#include "kvcache/status.h"

namespace kvcache::sequence {

// `slot`: slot_bytes() of a plan; `snapshot`: snapshot_layout(format).bytes. With `errors`, an
// entry is added for each tensor that is not kept exactly.
// kNonFinite: an element of such a tensor is not finite once it is rounded to f16; the snapshot's
// bytes are then unspecified.
Status encode_snapshot(const StatePlan& plan, SnapshotFormat format, const std::byte* slot,
                       std::byte* snapshot, std::vector<SnapshotError>* errors);

void decode_snapshot(const StatePlan& plan, SnapshotFormat format, const std::byte* snapshot,
                     std::byte* slot);

}  // namespace kvcache::sequence
