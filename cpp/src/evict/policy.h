// Which candidate goes first. A policy orders the things that may be evicted now: the last block
// of a leaf run, or a snapshot. The index tells it what enters, leaves and is used.
// Thread safety: thread-compatible; the cache's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::evict {

enum class CandidateKind : std::uint8_t { kRunTail = 0, kSnapshot = 1 };

struct Candidate {
  CandidateKind kind = CandidateKind::kRunTail;
  std::uint32_t id = 0;           // unique within its kind
  std::uint64_t last_access = 0;  // the index's clock, one tick for each request

  auto operator<=>(const Candidate&) const = default;
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  // A candidate enters, or leaves with the same fields it entered with.
  virtual void insert(const Candidate& candidate) = 0;
  virtual void erase(const Candidate& candidate) = 0;
  // The one to evict next; it stays a candidate until erased. Nothing when there is none.
  virtual std::optional<Candidate> victim() const = 0;
};

// kInvalidArgument: no policy of that name; the message lists those there are.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name);
std::vector<std::string_view> policy_names();

}  // namespace kvcache::evict
