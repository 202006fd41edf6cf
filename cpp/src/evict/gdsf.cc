// Greedy-Dual-Size-Frequency (Cherkasova, HP Labs 1998): what is worth least goes first, by
//   inflation + times used * FLOPs saved / bytes,
// where the inflation is the worth of the last victim when the unit was last used, so that what is
// no longer used grows old beside what is.
#include <algorithm>
#include <memory>
#include <set>
#include <tuple>

#include "evict/policies.h"
#include "evict/unit_table.h"

namespace kvcache::evict {
namespace {

class Gdsf final : public FactPolicy {
 public:
  using FactPolicy::FactPolicy;

  std::string_view name() const override { return "gdsf"; }
  std::optional<Unit> victim(const MayGo& may_go) override {
    for (const auto& [worth, last_access, unit] : order_) {
      if (!may_go(unit)) continue;
      inflation_ = std::max(inflation_, worth);
      return unit;
    }
    return std::nullopt;
  }

 private:
  using Key = std::tuple<double, std::uint64_t, Unit>;

  Key key(Unit unit, const UnitFacts& facts) const {
    const double times = std::max(facts.uses, 1U);
    return {facts.value + times * flops_per_byte(unit, facts), facts.last_access, unit};
  }
  void place(Unit unit, UnitFacts& facts) override { order_.insert(key(unit, facts)); }
  void unplace(Unit unit, UnitFacts& facts) override { order_.erase(key(unit, facts)); }
  void used(Unit, UnitFacts& facts) override { facts.value = inflation_; }

  std::set<Key> order_;
  double inflation_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_gdsf(const Costs& costs) { return std::make_unique<Gdsf>(costs); }

}  // namespace kvcache::evict
