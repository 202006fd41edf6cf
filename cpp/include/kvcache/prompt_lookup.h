// Drafts without a draft model: what followed when the end of the history occurred before (prompt
// lookup, n-gram speculation). One index for each sequence:
//
//   auto index = PromptLookupIndex::create({.history_tokens = 32768});
//   std::vector<std::int32_t> drafts(16);
//   auto count = (*index)->propose(history, drafts);   // indexes what is new, then looks up
//   ... verify the first *count drafts ...
//   (*index)->settle(accepted);                        // or abandon(), when nothing was verified
//
// The history stays the caller's and is borrowed for a call: all tokens of the sequence, the last
// one included. It may grow between calls, or shrink; every proposal is checked against the history
// of its own call, token by token. Who changes tokens in between calls truncate() first, or gets
// fewer proposals. Cost: O(new tokens + max_match), however long the history is.
//
// Thread safety: thread-safe. In a child of fork() every call is kInvalidArgument, every count 0.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/prompt_lookup_cache.h"
#include "kvcache/status.h"

namespace kvcache {

// Which of several earlier occurrences is continued.
enum class Occurrence : std::uint8_t {
  kLatest = 0,    // what was said last; near the end of a loop it gives few tokens
  kEarliest = 1,  // the most tokens; the rule of vLLM and transformers
  // The latest, as if what follows it repeated itself: where the history ends, the draft goes on
  // from its own beginning. As many tokens as asked for, in a loop of any length.
  kRepeating = 2,
};

struct PromptLookupOptions {
  std::uint64_t min_match = 2;    // tokens that must be equal before a draft
  std::uint64_t max_match = 4;    // tokens that are compared: the longest match wins; up to 64
  std::uint64_t max_drafts = 16;  // of one proposal, and of the adaptive window
  std::uint64_t max_pause = 32;   // rounds without a proposal after misses; 0: never pause
  // Tokens whose n-grams are kept at once. Of a longer history the stalest ones are given up.
  std::uint64_t history_tokens = std::uint64_t{1} << 17;
  bool reserve = false;  // take the memory for all of them now, instead of as the history grows
  Occurrence occurrence = Occurrence::kLatest;
};

class PromptLookupIndex {
 public:
  // kInvalidArgument: not 1 <= min_match <= max_match <= 64, more than 16 lengths, no drafts or
  // more than 65536, no history_tokens, or a count beyond 2^32 - 1. kOutOfCapacity: no memory to
  // reserve.
  static Result<std::unique_ptr<PromptLookupIndex>> create(const PromptLookupOptions& options);
  ~PromptLookupIndex();

  const PromptLookupOptions& options() const;

  // Indexes what is new in `history`. A history that is shorter than observed() moves that back.
  // kInvalidArgument: more than 2^32 - 1 tokens. kOutOfCapacity: no memory; nothing was changed.
  Status observe(std::span<const std::int32_t> history);
  // Forgets that tokens from `length` on were observed: others will take their place.
  Status truncate(std::uint64_t length);

  // Copies what followed the longest match to `drafts`, as much as there is room and history, and
  // returns how much; 0 without a match. Indexes nothing, keeps nothing of the call.
  Result<std::uint64_t> find(std::span<const std::int32_t> history,
                             std::span<std::int32_t> drafts) const;

  // observe(), then find() of at most window() tokens, which are in flight until settle() or
  // abandon(). Looks in `shared` when the history has no match; null to do without. Returns 0,
  // with nothing in flight, when there is no match and in a pause.
  // kInvalidArgument: drafts are in flight already. Errors as of observe(); then nothing was
  // changed.
  Result<std::uint64_t> propose(std::span<const std::int32_t> history,
                                std::span<std::int32_t> drafts,
                                const PromptLookupScope* shared = nullptr);
  // Says how many of the drafts in flight were accepted. All: the window doubles, up to max_drafts;
  // else it halves. None, m times in a row: the next 2^(m-1) rounds pass without a proposal.
  // kInvalidArgument: nothing is in flight, or less than `accepted`.
  Status settle(std::uint64_t accepted);
  // Drafts that were never verified: nothing is learned. Nothing needs to be in flight.
  Status abandon();

  // propose() of many indexes, without a shared scope: up to most[i] tokens of each, one after the
  // other in `drafts`, and counts[i] of them. For all or for none: after an error, or without
  // memory, nothing is in flight that was not before. kInvalidArgument, naming the index: one is
  // there twice, or has drafts in flight; or not as many histories, numbers and counts.
  static Status propose_batch(std::span<PromptLookupIndex* const> indexes,
                              std::span<const std::span<const std::int32_t>> histories,
                              std::span<const std::uint64_t> most,
                              std::vector<std::int32_t>& drafts, std::span<std::uint64_t> counts);
  // settle() of those that have drafts in flight, for all or for none; of the others accepted[i] is
  // 0. Errors likewise.
  static Status settle_batch(std::span<PromptLookupIndex* const> indexes,
                             std::span<const std::uint64_t> accepted);

  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  std::uint64_t observed() const;   // tokens of the history that are indexed
  std::uint64_t window() const;     // most tokens of the next proposal
  std::uint64_t pause() const;      // rounds that will pass without one
  std::uint64_t in_flight() const;  // drafts that are not settled
  std::uint64_t entries() const;    // n-grams that are kept
  // Memory of the index: hash_table_bytes(n * (max_match - min_match + 1), 16) for the n tokens of
  // the longest history so far, history_tokens at most or if reserved. While a table is replaced
  // by one of twice its size both are held.
  std::uint64_t bytes() const;

 private:
  struct State;
  explicit PromptLookupIndex(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace kvcache
