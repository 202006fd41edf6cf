// FLOP-aware (Marconi, MLSys 2025): what scores least goes first, by
//   recency + alpha * FLOPs saved per byte, each scaled to 0..1 over the candidates.
// Efficiencies are filed in classes a quarter of an octave wide, so that the score of a class's
// oldest is all that has to be compared: O(log n), whatever the scales do.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "evict/policies.h"
#include "evict/unit_table.h"

namespace kvcache::evict {
namespace {

constexpr double kAlpha = 0.5;
constexpr int kClasses = 256;  // 2^-32 to 2^32 FLOPs a byte
constexpr int kPerOctave = 4;

int efficiency_class(double efficiency) {
  if (!(efficiency > 0)) return 0;
  const double step = std::log2(efficiency) * kPerOctave + kClasses / 2.0;
  return static_cast<int>(std::clamp(std::floor(step), 0.0, kClasses - 1.0));
}

double efficiency_of(int cls) { return std::exp2((cls - kClasses / 2.0) / kPerOctave); }

class FlopAware final : public FactPolicy {
 public:
  using FactPolicy::FactPolicy;

  std::string_view name() const override { return "flop_aware"; }
  std::optional<Unit> victim(const MayGo& may_go) override {
    const Scale scale = scales();
    std::optional<Unit> best;
    double least = std::numeric_limits<double>::infinity();
    for (int cls = 0; cls < kClasses; ++cls) {
      const auto& candidates = classes_[static_cast<std::size_t>(cls)];
      for (const auto& [last_access, unit] : candidates) {
        const double score = scale.score(last_access, efficiency_of(cls));
        if (score >= least) break;  // the rest of the class is younger
        if (!may_go(unit)) continue;
        least = score;
        best = unit;
        break;
      }
    }
    return best;
  }

 private:
  struct Scale {
    double oldest = 0, ages = 1;  // least, and width
    double poorest = 0, efficiencies = 1;
    double score(std::uint64_t last_access, double efficiency) const {
      return (static_cast<double>(last_access) - oldest) / ages +
             kAlpha * (efficiency - poorest) / efficiencies;
    }
  };

  Scale scales() const {
    std::uint64_t oldest = UINT64_MAX;
    std::uint64_t youngest = 0;
    int poorest = kClasses;
    int richest = -1;
    for (int cls = 0; cls < kClasses; ++cls) {
      const auto& candidates = classes_[static_cast<std::size_t>(cls)];
      if (candidates.empty()) continue;
      poorest = std::min(poorest, cls);
      richest = cls;
      oldest = std::min(oldest, candidates.begin()->first);
      youngest = std::max(youngest, candidates.rbegin()->first);
    }
    Scale scale;
    if (richest < 0) return scale;
    scale.oldest = static_cast<double>(oldest);
    if (youngest > oldest) scale.ages = static_cast<double>(youngest - oldest);
    scale.poorest = efficiency_of(poorest);
    if (richest > poorest) scale.efficiencies = efficiency_of(richest) - scale.poorest;
    return scale;
  }
  std::set<std::pair<std::uint64_t, Unit>>& class_of(Unit unit, const UnitFacts& facts) {
    return classes_[static_cast<std::size_t>(efficiency_class(flops_per_byte(unit, facts)))];
  }
  void place(Unit unit, UnitFacts& facts) override {
    class_of(unit, facts).insert({facts.last_access, unit});
  }
  void unplace(Unit unit, UnitFacts& facts) override {
    class_of(unit, facts).erase({facts.last_access, unit});
  }

  std::array<std::set<std::pair<std::uint64_t, Unit>>, kClasses> classes_;
};

}  // namespace

std::unique_ptr<Policy> make_flop_aware(const Costs& costs) {
  return std::make_unique<FlopAware>(costs);
}

}  // namespace kvcache::evict
