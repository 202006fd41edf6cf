// How the verify of a sequence begins and ends, alone or in a batch. "Own" and "locked" as in
// cache_core.h; REQUIRES everywhere: core.verify is there.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cache/cache_core.h"
#include "kvcache/verify.h"
#include "speculate/verify.h"

namespace kvcache {

// Of a session that never began, was given away, or has ended.
inline Status verify_ended(std::string_view call) {
  return Status::invalid_argument(call, ": the verify session has ended");
}

// Locked. Slots, pages and stashes for the rows of all these sequences, whose slots are reserved; a
// forward pass that has begun does not run out of them. kOutOfCapacity: end_verify() each of them.
Status take_memory(CacheCore& cache, std::span<const std::shared_ptr<SequenceCore>> sequences,
                   std::vector<sequence::PageCopy>& copies);

// Own. After take_memory(): folds what waits in the stash, unless the verify carries it and its
// rows have room beside it.
void place_inputs(SequenceCore& core);

// Own. VerifySession::state(), the session being open; takes the cache's lock.
Result<StateView> verify_tensor(SequenceCore& core, std::uint64_t row, std::int32_t layer,
                                std::string_view name);
// Own. VerifySession::live(), pending() and stash(), the session being open.
Result<StateView> live_tensor(SequenceCore& core, std::int32_t layer, std::string_view name);
Result<PendingRows> pending_rows(SequenceCore& core, std::int32_t layer, std::string_view name);
Status stash_inputs(SequenceCore& core, std::int32_t layer, std::string_view name,
                    const StashInputs& inputs);
// Own. Why no inputs of this tensor can be taken, whatever they are.
Status check_stash(const SequenceCore& core, std::int32_t layer, std::string_view name);
// Own. Why the rows cannot be kept. `in_place`: they were not stored by write(), which would know.
Status check_commit(const SequenceCore& core, const speculate::KeptRows& kept, bool in_place);
// Own. Room for what keep_rows() adds, so that it cannot fail.
void reserve_rows(SequenceCore& core, const speculate::KeptRows& kept);
// Own. The rows' tokens and positions are the sequence's, and so is the state after the last one.
// REQUIRES: check_commit() is ok, reserve_rows() was called.
void keep_rows(SequenceCore& core, const speculate::KeptRows& kept);
// Locked. Gives back what the verify holds and ends it; as if it had never been, unless it has
// begun.
void end_verify(SequenceCore& core);

}  // namespace kvcache
