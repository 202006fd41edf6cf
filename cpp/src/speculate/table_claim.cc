#include "speculate/table_claim.h"

#include <algorithm>

namespace kvcache {
namespace {

bool same_place(const FixedComponent& a, const FixedComponent& b) {
  return a.layer == b.layer && a.offset == b.offset && a.bytes == b.bytes && a.name == b.name;
}

}  // namespace

Status TableClaim::check_plan(const std::vector<FixedComponent>& ours, const StatePlan& plan,
                              bool agrees) const {
  const auto& theirs = plan.fixed();
  if (agrees && std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(), same_place)) {
    return Status::ok();
  }
  return Status::invalid_argument("begin_verify: the ", name_, " is of another plan");
}

Status TableClaim::check_room(std::uint64_t sequences, std::uint64_t batch_rows) const {
  if (sequences <= batch_rows) return Status::ok();
  return Status::invalid_argument("begin_verify: a batch of ", sequences, " sequences, but the ",
                                  name_, " has room for ", batch_rows, "; raise its batch_rows");
}

Status TableClaim::take() {
  if (Status status = check_process(); !status) return status;
  if (!taken_.exchange(true)) return Status::ok();
  return Status::invalid_argument("begin_verify: the ", name_,
                                  " is staged by a session that is open; end it, or make another "
                                  "table");
}

}  // namespace kvcache
