// Which of the stored things goes first when memory runs out. The index tells a policy what it
// stores (runs of tokens in a tree, snapshots at positions of runs), what requests use, and what
// may be evicted now: the last block of a leaf run, or a snapshot. The policy names the victim.
// Thread safety: thread-compatible; the cache's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::evict {

enum class UnitKind : std::uint8_t { kRun = 0, kSnapshot = 1 };

using RunId = std::uint32_t;
using SnapshotId = std::uint32_t;

// A run or a snapshot, by the index's number for it. Numbers of what is gone are used again.
struct Unit {
  UnitKind kind = UnitKind::kRun;
  std::uint32_t id = 0;

  auto operator<=>(const Unit&) const = default;
};

inline Unit run_unit(RunId id) { return {UnitKind::kRun, id}; }
inline Unit snapshot_unit(SnapshotId id) { return {UnitKind::kSnapshot, id}; }

// What a policy may weigh. Without FLOPs, tokens count.
struct Costs {
  std::uint64_t block_tokens = 1;
  std::uint64_t block_bytes = 1;            // of one block, in all groups together
  std::uint64_t snapshot_bytes = 0;         // 0: the model has no fixed-size state
  std::uint64_t metadata_bytes = 16 << 20;  // for what is no longer stored
  double flops_per_token = 1.0;
  double flops_per_token_per_position = 0.0;

  // Of computing positions [begin, end).
  double flops(std::uint64_t begin, std::uint64_t end) const {
    const auto length = static_cast<double>(end - begin);
    const double middle = static_cast<double>(begin) + length / 2;
    return length * (flops_per_token + flops_per_token_per_position * middle);
  }
};

// A request whose prompt was looked up, at its arrival.
struct Arrival {
  std::uint64_t now_ms = 0;
  RunId deepest = 0;           // last run of the resident part of its path
  std::uint64_t resident = 0;  // positions of that part
};

// A request that has ended.
struct Completion {
  std::uint64_t now_ms = 0;
  RunId deepest = 0;      // last run of its path
  std::uint64_t end = 0;  // positions of the path
  std::uint64_t prompt_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::uint32_t hint = 0;       // what the caller knows of the request, hashed; 0: nothing
  bool session_closed = false;  // nobody will continue it
};

// How a policy does beside LRU with as many blocks.
struct Meter {
  std::uint64_t hit_blocks = 0;
  std::uint64_t lru_hit_blocks = 0;
};

class Policy {
 public:
  // Whether the unit may be evicted now. What is pinned, or held by an open sequence, may not.
  using MayGo = std::function<bool(Unit)>;

  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;

  // ---- What is stored. `clock` is the index's, one tick for each request ----
  // A root of the tree, which holds no tokens.
  virtual void add_root(RunId, std::string_view /*space*/) {}
  // A new leaf under `parent`: the tokens of `path` from `start` on.
  virtual void add_run(RunId run, RunId parent, std::span<const std::int32_t> path,
                       std::uint64_t start, std::uint64_t clock) = 0;
  // The request that made the leaf goes on: it ends where `path` ends now.
  virtual void grow_run(RunId run, std::span<const std::int32_t> path) = 0;
  // `run` now begins at `position`; what was above it is `upper`, a new run with the same past,
  // and the snapshots up to `position` are that one's.
  virtual void split_run(RunId upper, RunId run, std::uint64_t position) = 0;
  // A leaf now ends at `end`; where that is its start, it is gone.
  virtual void shrink_run(RunId run, std::uint64_t end) = 0;
  virtual void add_snapshot(SnapshotId snapshot, RunId run, std::uint64_t position,
                            std::uint64_t clock) = 0;
  virtual void remove_snapshot(SnapshotId snapshot) = 0;

  // ---- What requests do ----
  // Whether arrivals and completions matter to it; if not, they need not be told.
  virtual bool learns() const { return false; }
  virtual void use(Unit unit, std::uint64_t clock) = 0;
  virtual void arrive(const Arrival&) {}
  virtual void complete(const Completion&) {}
  virtual Meter meter() const { return {}; }

  // ---- What may go: leaf runs, and every snapshot ----
  virtual void insert(Unit unit) = 0;
  virtual void erase(Unit unit) = 0;
  // The first, in the policy's order, of those that may go; it stays until it is erased.
  virtual std::optional<Unit> victim(const MayGo& may_go) = 0;
  // A guess, after victim(), of whose turn it is next, so that their memory can be fetched in time.
  // Returns how many of `units` were filled.
  virtual std::size_t foresee(std::span<Unit> /*units*/) { return 0; }
};

// kInvalidArgument: no policy of that name; the message lists those there are.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const Costs& costs);
// What makes instances of it, as many as there have to be. REQUIRES: there is one of that name.
using PolicyMaker = std::function<std::unique_ptr<Policy>()>;
PolicyMaker policy_maker(std::string_view name, const Costs& costs);
std::vector<std::string_view> policy_names();

}  // namespace kvcache::evict
