#include "evict/hazard_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvcache::evict {
namespace {

constexpr double kEvidence = 5;  // weight that a prior has against what was counted
constexpr double kPrior = 0.05;  // hazard of a bucket nobody knows: constant for each age ratio

using Row = std::array<double, kAgeBuckets>;

struct Counts {
  Row reused{};
  Row entered{};

  void add(const Row& more_reused, const Row& more_entered) {
    for (std::size_t b = 0; b < kAgeBuckets; ++b) {
      reused[b] += more_reused[b];
      entered[b] += more_entered[b];
    }
  }
  Row hazard(const Row& prior) const {
    Row hazard;
    for (std::size_t b = 0; b < kAgeBuckets; ++b) {
      hazard[b] = (reused[b] + kEvidence * prior[b]) / (entered[b] + kEvidence);
    }
    return hazard;
  }
};

Counts& grown(std::vector<Counts>& counts, std::size_t index) {
  if (index >= counts.size()) counts.resize(index + 1);
  return counts[index];
}

}  // namespace

const std::array<double, kAgeBuckets>& age_edges() {
  static const std::array<double, kAgeBuckets> edges = [] {
    std::array<double, kAgeBuckets> made{};
    for (int b = 1; b < kAgeBuckets; ++b) {
      made[static_cast<std::size_t>(b)] = 250.0 * std::pow(2.0, (b - 1) / 2.0);
    }
    return made;
  }();
  return edges;
}

HazardTable::HazardTable(std::span<const Parents> parents) { add_classes(parents); }

void HazardTable::add_classes(std::span<const Parents> parents) {
  parents_.insert(parents_.end(), parents.begin(), parents.end());
  for (std::vector<Row>* rows : {&reused_, &entered_, &prices_}) rows->resize(parents_.size());
  reprice(1e9);
}

// Best stopping: for each start, the stop with the most uses for the time that is paid. What is
// used again in a bucket is used in its middle. All starts go side by side, for none waits for
// another.
void HazardTable::price_row(const Row& hazard, Row& prices) {
  const auto& edges = age_edges();
  Row survival, uses{}, seconds{}, best_uses{}, best_seconds;
  survival.fill(1);
  best_seconds.fill(1);
  for (std::size_t b = 0; b < kLastBucket; ++b) {
    const double width = (edges[b + 1] - edges[b]) / 1000;
    for (std::size_t start = 0; start <= b; ++start) {
      uses[start] += survival[start] * hazard[b];
      seconds[start] += survival[start] * width * (1 - hazard[b] / 2);
      survival[start] *= 1 - hazard[b];
      const bool better = uses[start] * best_seconds[start] > best_uses[start] * seconds[start];
      best_uses[start] = better ? uses[start] : best_uses[start];
      best_seconds[start] = better ? seconds[start] : best_seconds[start];
    }
  }
  for (std::size_t start = 0; start < kLastBucket; ++start) {
    prices[start] = best_uses[start] / best_seconds[start];
  }
  prices[kLastBucket] = 0;
}

void HazardTable::reprice(double half_life) {
  Counts all;
  std::vector<Counts> levels, bases;
  for (std::size_t c = 0; c < parents_.size(); ++c) {
    all.add(reused_[c], entered_[c]);
    grown(levels, parents_[c].level).add(reused_[c], entered_[c]);
    if (parents_[c].base == kNoBase) continue;
    grown(bases, parents_[c].base).add(reused_[c], entered_[c]);
  }
  Row prior;
  prior.fill(kPrior);
  const Row pooled = all.hazard(prior);
  const double fade = std::exp2(-1 / half_life);
  for (std::size_t c = 0; c < parents_.size(); ++c) {
    Row hazard = levels[parents_[c].level].hazard(pooled);
    if (parents_[c].base != kNoBase) hazard = bases[parents_[c].base].hazard(hazard);
    price_row(Counts{reused_[c], entered_[c]}.hazard(hazard), prices_[c]);
    for (std::size_t b = 0; b < kAgeBuckets; ++b) {
      reused_[c][b] *= fade;
      entered_[c][b] *= fade;
    }
  }
}

}  // namespace kvcache::evict
