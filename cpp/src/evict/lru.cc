// Least recently used, over run tails and snapshots together. Of equal age the run tail goes first:
// without its last blocks a path still serves its shallower snapshots.
#include <memory>
#include <set>
#include <utility>

#include "base/prefetch.h"
#include "evict/policies.h"
#include "evict/unit_table.h"

namespace kvcache::evict {
namespace {

class Lru final : public FactPolicy {
 public:
  using FactPolicy::FactPolicy;

  std::string_view name() const override { return "lru"; }
  bool learns() const override { return false; }
  std::optional<Unit> victim(const MayGo& may_go) override {
    for (const auto& [last_access, unit] : order_) {
      if (may_go(unit)) return unit;
    }
    return std::nullopt;
  }
  std::size_t foresee(std::span<Unit> units) override {
    std::size_t count = 0;
    auto next = order_.begin();
    while (count < units.size() && next != order_.end() && ++next != order_.end()) {
      units[count++] = next->second;
    }
    if (count > 0) base::prefetch(&facts_[units[count - 1]]);
    return count;
  }

 private:
  void place(Unit unit, UnitFacts& facts) override { order_.insert({facts.last_access, unit}); }
  void unplace(Unit unit, UnitFacts& facts) override { order_.erase({facts.last_access, unit}); }

  std::set<std::pair<std::uint64_t, Unit>> order_;
};

}  // namespace

std::unique_ptr<Policy> make_lru(const Costs& costs) { return std::make_unique<Lru>(costs); }

}  // namespace kvcache::evict
