#include <array>
#include <string>

#include "evict/policies.h"
#include "evict/policy.h"

namespace kvcache::evict {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(const Costs&);
};

// One line for each policy, the default first.
constexpr std::array kPolicies = {
    Entry{"price_list", &make_price_list}, Entry{"lru", &make_lru},
    Entry{"flop_aware", &make_flop_aware}, Entry{"gdsf", &make_gdsf},
    Entry{"s3fifo", &make_s3fifo},
};

}  // namespace

Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const Costs& costs) {
  std::string known;
  for (const Entry& entry : kPolicies) {
    if (entry.name == name) return entry.make(costs);
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  return Status::invalid_argument("policy '", name, "' is not known; known policies: ", known);
}

PolicyMaker policy_maker(std::string_view name, const Costs& costs) {
  return [name = std::string(name), costs] { return std::move(make_policy(name, costs)).value(); };
}

std::vector<std::string_view> policy_names() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kPolicies) names.push_back(entry.name);
  return names;
}

}  // namespace kvcache::evict
