// What verify and carry tables have in common: they are of one plan, have room for so many
// sequences, and belong to one session at a time.
// Thread safety: take() and give_back() are thread-safe, the rest is const.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/process.h"
#include "kvcache/state_plan.h"
#include "kvcache/status.h"

namespace kvcache {

inline constexpr std::uint64_t kMostTableBytes = std::uint64_t{1} << 30;

class TableClaim {
 public:
  // `name` says in errors what kind of table it is.
  explicit TableClaim(std::string_view name) : name_(name) {}

  // kInvalidArgument: the tensors of another plan, or what else the caller compares differs.
  Status check_plan(const std::vector<FixedComponent>& ours, const StatePlan& plan,
                    bool agrees = true) const;
  // kInvalidArgument: the batch is too wide.
  Status check_room(std::uint64_t sequences, std::uint64_t batch_rows) const;
  // kInvalidArgument: in a child of the process that made it.
  Status check_process() const { return process_.check_process(); }
  // kInvalidArgument: the same, or another session has it. Else the caller's until give_back().
  Status take();
  void give_back() { taken_.store(false); }
  bool is_taken() const { return taken_.load(); }

 private:
  const std::string_view name_;
  const OwnProcess process_;
  std::atomic<bool> taken_ = false;
};

}  // namespace kvcache
