// What most policies remember of each unit: where it lies, when and how often it was used.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "evict/policy.h"

namespace kvcache::evict {

struct UnitFacts {
  std::uint64_t begin = 0;  // a run's first position; a snapshot's run begins nowhere
  std::uint64_t end = 0;    // a run's last position + 1; a snapshot's position
  std::uint64_t last_access = 0;
  std::uint32_t uses = 0;
  bool candidate = false;
};

// Facts by unit. A unit that is gone keeps its place until its number is used again.
class UnitTable {
 public:
  UnitFacts& operator[](Unit unit) {
    auto& facts = kinds_[static_cast<std::size_t>(unit.kind)];
    if (unit.id >= facts.size()) facts.resize(unit.id + std::size_t{1});
    return facts[unit.id];
  }
  void clear() {
    for (auto& facts : kinds_) facts.clear();
  }

 private:
  std::vector<UnitFacts> kinds_[2];
};

// A policy that keeps such facts. Subclasses order the candidates: `place` and `unplace` are called
// around every change of what a candidate's order may depend on.
class FactPolicy : public Policy {
 public:
  void add_run(RunId run, RunId, std::span<const std::int32_t> path, std::uint64_t start,
               std::uint64_t clock) override {
    facts_[run_unit(run)] = {start, path.size(), clock, 0, false};
  }
  void grow_run(RunId run, std::span<const std::int32_t> path) override {
    change(run_unit(run), [&](UnitFacts& facts) { facts.end = path.size(); });
  }
  void split_run(RunId upper, RunId run, std::uint64_t position) override {
    UnitFacts above = facts_[run_unit(run)];
    above.end = position;
    above.candidate = false;
    facts_[run_unit(upper)] = above;
    change(run_unit(run), [&](UnitFacts& facts) { facts.begin = position; });
  }
  void shrink_run(RunId run, std::uint64_t end) override {
    change(run_unit(run), [&](UnitFacts& facts) { facts.end = end; });
  }
  void add_snapshot(SnapshotId snapshot, RunId, std::uint64_t position,
                    std::uint64_t clock) override {
    facts_[snapshot_unit(snapshot)] = {0, position, clock, 0, false};
  }
  void remove_snapshot(SnapshotId) override {}
  void clear() override {
    facts_.clear();
    forget();
  }

  void use(Unit unit, std::uint64_t clock) override {
    change(unit, [&](UnitFacts& facts) {
      facts.last_access = clock;
      ++facts.uses;
    });
  }
  void insert(Unit unit) override {
    UnitFacts& facts = facts_[unit];
    facts.candidate = true;
    place(unit, facts);
  }
  void erase(Unit unit) override {
    UnitFacts& facts = facts_[unit];
    unplace(unit, facts);
    facts.candidate = false;
  }

 protected:
  virtual void place(Unit unit, UnitFacts& facts) = 0;
  virtual void unplace(Unit unit, UnitFacts& facts) = 0;
  virtual void forget() = 0;  // all candidates

 private:
  template <typename Change>
  void change(Unit unit, Change&& apply) {
    UnitFacts& facts = facts_[unit];
    if (facts.candidate) unplace(unit, facts);
    std::forward<Change>(apply)(facts);
    if (facts.candidate) place(unit, facts);
  }

  UnitTable facts_;
};

}  // namespace kvcache::evict
