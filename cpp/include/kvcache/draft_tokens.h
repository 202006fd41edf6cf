// The pending drafts of sequences, between the propose that made them and the verify that takes
// them: ids, and how sure the drafter was of each.
//
//   drafts->put(sequence, ids, confidences);       // after a propose
//   auto taken = drafts->take(sequence);           // and begin_verify(taken->tokens)
//   drafts->put_back(sequence);                    // the forward pass failed, nothing advanced
//   drafts->clear(sequence);                       // when the sequence is preempted
//
// Drafts are for the position at which they were put: a sequence that has moved since, by a verify
// or otherwise, has none, and taking them is an error that says so. Places of closed sequences and
// of those that have moved are free again.
// Thread safety: thread-safe. In a child of fork() every call is kInvalidArgument, every count 0.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/sequence.h"
#include "kvcache/status.h"

namespace kvcache {

class DraftTokens {
 public:
  struct Drafts {
    std::vector<std::int32_t> tokens;
    std::vector<float> confidences;  // as many as tokens, or none
  };

  // Of up to `slots` sequences, up to `positions` drafts each. kInvalidArgument: none, or more than
  // 2^24 in all.
  static Result<std::unique_ptr<DraftTokens>> create(std::uint64_t slots, std::uint64_t positions);
  ~DraftTokens();

  // In place of what the sequence had. kInvalidArgument: it is closed, a verify of it is open, no
  // drafts or too many, or another number of confidences, which are 0..1. kOutOfCapacity: every
  // slot has drafts. Nothing is changed then.
  Status put(const Sequence& sequence, std::span<const std::int32_t> tokens,
             std::span<const float> confidences = {});
  // Empties the sequence's slot. No tokens when it has none. kInvalidArgument: the sequence is
  // closed, or has moved since; then they are dropped.
  Result<Drafts> take(const Sequence& sequence);
  // Undoes the latest take() of the sequence. kInvalidArgument: nothing was taken, other drafts
  // were put since, a verify is open still, or the sequence has moved.
  Status put_back(const Sequence& sequence);
  // Forgets what is pending and what was taken. True when drafts were pending.
  Result<bool> clear(const Sequence& sequence);

  // Of one sequence; 0 for drafts that have ended.
  Result<std::uint64_t> pending(const Sequence& sequence) const;
  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  std::uint64_t slots() const;
  std::uint64_t positions() const;
  std::uint64_t bytes() const;  // of the ids: what the state kind draft_tokens says

 private:
  struct State;
  explicit DraftTokens(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace kvcache
