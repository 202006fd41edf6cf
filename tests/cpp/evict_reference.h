// The policies once more, as plainly as they can be said: every victim is searched among all
// candidates. Too slow for anything but to compare with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "evict/policy.h"

namespace kvcache::evict {

struct PlainUnit {
  std::uint64_t begin = 0;  // of a snapshot: the next shallower one of its path
  std::uint64_t end = 0;
  std::uint64_t last_access = 0;
  std::uint32_t uses = 0;
  RunId run = 0;  // of a snapshot; of a run, its parent, itself for a root
  // gdsf
  double inflation = 0;  // at the last use
  // s3fifo
  std::vector<std::int32_t> name = {};
  std::uint64_t turn = 0;
  int credit = 0;
  bool main = false;
};

class PlainPolicy : public Policy {
 public:
  explicit PlainPolicy(const Costs& costs) : costs_(costs) {}

  bool learns() const override { return true; }
  void add_root(RunId root, std::string_view) override { units_[run_unit(root)].run = root; }
  void add_run(RunId run, RunId parent, std::span<const std::int32_t> path, std::uint64_t start,
               std::uint64_t clock) override {
    PlainUnit unit{.begin = start, .end = path.size(), .last_access = clock, .run = parent};
    const auto named = std::min<std::size_t>(64, path.size() - start);
    unit.name.assign(path.begin() + static_cast<std::ptrdiff_t>(start),
                     path.begin() + static_cast<std::ptrdiff_t>(start + named));
    add(run_unit(run), unit);
  }
  void grow_run(RunId run, std::span<const std::int32_t> path) override {
    units_[run_unit(run)].end = path.size();
  }
  void split_run(RunId upper, RunId run, std::uint64_t position) override {
    PlainUnit& lower = units_[run_unit(run)];
    PlainUnit above = lower;
    above.end = position;
    lower.begin = position;
    lower.run = upper;
    units_[run_unit(upper)] = above;
    for (auto& [unit, facts] : units_) {
      if (unit.kind == UnitKind::kSnapshot && facts.run == run && facts.end <= position) {
        facts.run = upper;
      }
    }
  }
  void shrink_run(RunId run, std::uint64_t end) override {
    PlainUnit& unit = units_[run_unit(run)];
    unit.end = end;
    if (end == unit.begin) gone(unit);
  }
  void add_snapshot(SnapshotId snapshot, RunId run, std::uint64_t position,
                    std::uint64_t clock) override {
    PlainUnit unit{.end = position, .last_access = clock, .run = run};
    for (RunId at = run;; at = units_[run_unit(at)].run) {
      for (const auto& [other, facts] : units_) {
        if (other.kind == UnitKind::kSnapshot && facts.run == at && facts.end < position) {
          unit.begin = std::max(unit.begin, facts.end);
        }
      }
      if (units_[run_unit(at)].run == at) break;
    }
    add(snapshot_unit(snapshot), unit);
  }
  void remove_snapshot(SnapshotId snapshot) override { units_.erase(snapshot_unit(snapshot)); }
  void use(Unit unit, std::uint64_t clock) override {
    PlainUnit& facts = units_[unit];
    if (unit.kind == UnitKind::kSnapshot) ++facts.uses;
    facts.last_access = clock;
    facts.inflation = inflation_;
  }
  void complete(const Completion& completion) override {
    for (RunId run = completion.deepest; units_[run_unit(run)].run != run;
         run = units_[run_unit(run)].run) {
      PlainUnit& unit = units_[run_unit(run)];
      if (++unit.uses >= 2) unit.credit = std::min(unit.credit + 1, 3);
    }
  }
  void insert(Unit unit) override { candidates_.insert(unit); }
  void erase(Unit unit) override { candidates_.erase(unit); }

 protected:
  virtual void gone(const PlainUnit&) {}
  virtual void added(PlainUnit&) {}

  double flops_per_byte(Unit unit) {
    const PlainUnit& facts = units_[unit];
    if (unit.kind == UnitKind::kSnapshot) {
      return costs_.flops(facts.begin, facts.end) / static_cast<double>(costs_.snapshot_bytes);
    }
    const std::uint64_t block = (facts.end - 1) / costs_.block_tokens * costs_.block_tokens;
    return costs_.flops(std::max(block, facts.begin), facts.end) /
           static_cast<double>(costs_.block_bytes);
  }
  // The candidate with the least key.
  template <typename Key>
  std::optional<Unit> least(const MayGo& may_go, Key&& key) {
    std::optional<Unit> best;
    for (const Unit unit : candidates_) {
      if (may_go(unit) && (!best || key(unit) < key(*best))) best = unit;
    }
    return best;
  }

  const Costs costs_;
  std::map<Unit, PlainUnit> units_;
  std::set<Unit> candidates_;
  double inflation_ = 0;

 private:
  void add(Unit unit, PlainUnit facts) {
    facts.inflation = inflation_;
    added(facts);
    units_[unit] = facts;
  }
};

class PlainLru final : public PlainPolicy {
 public:
  using PlainPolicy::PlainPolicy;
  std::string_view name() const override { return "lru"; }
  std::optional<Unit> victim(const MayGo& may_go) override {
    return least(may_go, [&](Unit unit) { return std::tuple(units_[unit].last_access, unit); });
  }
};

class PlainGdsf final : public PlainPolicy {
 public:
  using PlainPolicy::PlainPolicy;
  std::string_view name() const override { return "gdsf"; }
  std::optional<Unit> victim(const MayGo& may_go) override {
    const auto worth = [&](Unit unit) {
      const PlainUnit& facts = units_[unit];
      return facts.inflation + std::max(facts.uses, 1U) * flops_per_byte(unit);
    };
    const auto found = least(
        may_go, [&](Unit unit) { return std::tuple(worth(unit), units_[unit].last_access, unit); });
    if (found) inflation_ = std::max(inflation_, worth(*found));
    return found;
  }
};

class PlainFlopAware final : public PlainPolicy {
 public:
  using PlainPolicy::PlainPolicy;
  std::string_view name() const override { return "flop_aware"; }
  std::optional<Unit> victim(const MayGo& may_go) override {
    if (candidates_.empty()) return std::nullopt;
    double oldest = INFINITY, youngest = -INFINITY, poorest = INFINITY, richest = -INFINITY;
    for (const Unit unit : candidates_) {
      const auto age = static_cast<double>(units_[unit].last_access);
      oldest = std::min(oldest, age);
      youngest = std::max(youngest, age);
      poorest = std::min(poorest, efficiency(unit));
      richest = std::max(richest, efficiency(unit));
    }
    const double ages = youngest > oldest ? youngest - oldest : 1;
    const double efficiencies = richest > poorest ? richest - poorest : 1;
    return least(may_go, [&](Unit unit) {
      const auto age = static_cast<double>(units_[unit].last_access);
      const double score =
          (age - oldest) / ages + 0.5 * (efficiency(unit) - poorest) / efficiencies;
      return std::tuple(score, efficiency(unit), units_[unit].last_access, unit);
    });
  }

 private:
  // Rounded down to a quarter of an octave.
  double efficiency(Unit unit) {
    const double quarters = std::floor(std::log2(flops_per_byte(unit)) * 4);
    return std::exp2(std::clamp(quarters, -128.0, 127.0) / 4);
  }
};

class PlainS3Fifo final : public PlainPolicy {
 public:
  using PlainPolicy::PlainPolicy;
  std::string_view name() const override { return "s3fifo"; }
  std::optional<Unit> victim(const MayGo& may_go) override {
    const auto small = std::count_if(candidates_.begin(), candidates_.end(),
                                     [&](Unit unit) { return !units_[unit].main; });
    const bool small_first = static_cast<std::size_t>(small) * 10 >= candidates_.size();
    std::optional<Unit> found;
    if (small_first) found = from_small(may_go);
    if (!found) found = from_main(may_go);
    if (!found && !small_first) found = from_small(may_go);
    return found ? found : from_main(may_go);
  }

 private:
  void added(PlainUnit& facts) override {
    facts.turn = ++turns_;
    const bool ghost = std::find(ghosts_.begin(), ghosts_.end(), facts.name) != ghosts_.end();
    facts.main = !facts.name.empty() && ghost;
  }
  void gone(const PlainUnit& unit) override {
    if (std::find(ghosts_.begin(), ghosts_.end(), unit.name) == ghosts_.end()) {
      ghosts_.push_back(unit.name);
    }
    while (ghosts_.size() > candidates_.size() + 16) ghosts_.pop_front();
  }
  std::optional<Unit> next(bool main, std::uint64_t after) {
    return least([&](Unit unit) { return units_[unit].main == main && units_[unit].turn > after; },
                 [&](Unit unit) { return std::pair(units_[unit].turn, unit); });
  }
  std::optional<Unit> from_small(const MayGo& may_go) {
    for (std::uint64_t after = 0;;) {
      const auto unit = next(false, after);
      if (!unit) return std::nullopt;
      PlainUnit& facts = units_[*unit];
      if (facts.credit > 1) {
        facts.main = true;
        facts.credit = 0;
        facts.turn = ++turns_;
      } else if (may_go(*unit)) {
        return unit;
      } else {
        after = facts.turn;
      }
    }
  }
  std::optional<Unit> from_main(const MayGo& may_go) {
    for (std::uint64_t after = 0;;) {
      const auto unit = next(true, after);
      if (!unit) return std::nullopt;
      PlainUnit& facts = units_[*unit];
      if (facts.credit > 0) {
        --facts.credit;
        facts.turn = ++turns_;
      } else if (may_go(*unit)) {
        return unit;
      } else {
        after = facts.turn;
      }
    }
  }

  std::uint64_t turns_ = 0;
  std::deque<std::vector<std::int32_t>> ghosts_;
};

}  // namespace kvcache::evict
