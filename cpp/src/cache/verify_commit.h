// How a verify of one sequence ends, alone or in a batch: everything is checked first, then nothing
// fails. "Own" and "locked" as in cache_core.h; REQUIRES everywhere: core.verify is there.
#pragma once

#include "cache/cache_core.h"
#include "speculate/verify.h"

namespace kvcache {

// Own. Why the rows cannot be kept. `in_place`: they were not stored by write(), which would know.
Status check_commit(const SequenceCore& core, const speculate::KeptRows& kept, bool in_place);
// Own. Room for what keep_rows() adds, so that it cannot fail.
void reserve_rows(SequenceCore& core, const speculate::KeptRows& kept);
// Own. The rows' tokens and positions are the sequence's, and so is the state after the last one.
// REQUIRES: check_commit() is ok, reserve_rows() was called.
void keep_rows(SequenceCore& core, const speculate::KeptRows& kept);
// Locked. Gives back what the verify holds and ends it.
void end_verify(SequenceCore& core);

}  // namespace kvcache
