// What most policies remember of each unit: where it lies, when and how often it was used.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/chunked_vector.h"
#include "evict/policy.h"

namespace kvcache::evict {

// A use of a snapshot saves computing [begin, end): begin is the nearest shallower snapshot when it
// was taken. A run covers [begin, end).
struct UnitFacts {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t last_access = 0;
  std::uint32_t uses = 0;  // requests that ended on a path with it; a snapshot's restores
  std::uint32_t run = 0;   // of a snapshot; of a run, its parent
  double value = 0;        // a policy's own, of the last use
  bool candidate = false;
};

// Facts by unit. A unit that is gone keeps its place until its number is used again.
template <typename Facts>
class UnitTable {
 public:
  Facts& operator[](Unit unit) {
    auto& facts = kinds_[static_cast<std::size_t>(unit.kind)];
    if (unit.id >= facts.size()) facts.grow_to(unit.id + std::size_t{1});
    return facts[unit.id];
  }

 private:
  base::ChunkedVector<Facts> kinds_[2];
};

// A policy that keeps such facts. Subclasses order the candidates: `place` and `unplace` are called
// around every change of what a candidate's order may depend on.
class FactPolicy : public Policy {
 public:
  explicit FactPolicy(const Costs& costs) : costs_(costs) {}

  void add_root(RunId root, std::string_view) override {
    facts_[run_unit(root)] = {.run = root};
    marks(root).clear();
  }
  void add_run(RunId run, RunId parent, std::span<const std::int32_t> path, std::uint64_t start,
               std::uint64_t clock) override {
    marks(run).clear();
    add(run_unit(run), {.begin = start, .end = path.size(), .last_access = clock, .run = parent});
  }
  void grow_run(RunId run, std::span<const std::int32_t> path) override {
    change(run_unit(run), [&](UnitFacts& facts) { facts.end = path.size(); });
  }
  void split_run(RunId upper, RunId run, std::uint64_t position) override {
    UnitFacts above = facts_[run_unit(run)];
    above.end = position;
    above.candidate = false;
    facts_[run_unit(upper)] = above;
    change(run_unit(run), [&](UnitFacts& facts) {
      facts.begin = position;
      facts.run = upper;
    });
    marks(upper).clear();
    for (const SnapshotId snapshot : std::exchange(marks(run), {})) {
      UnitFacts& facts = facts_[snapshot_unit(snapshot)];
      if (facts.end <= position) facts.run = upper;
      marks(facts.run).push_back(snapshot);
    }
  }
  void shrink_run(RunId run, std::uint64_t end) override {
    change(run_unit(run), [&](UnitFacts& facts) { facts.end = end; });
  }
  void add_snapshot(SnapshotId snapshot, RunId run, std::uint64_t position,
                    std::uint64_t clock) override {
    const std::uint64_t begin = nearest_snapshot(run, position);
    marks(run).push_back(snapshot);
    add(snapshot_unit(snapshot),
        {.begin = begin, .end = position, .last_access = clock, .run = run});
  }
  void remove_snapshot(SnapshotId snapshot) override {
    std::erase(marks(facts_[snapshot_unit(snapshot)].run), snapshot);
  }

  void use(Unit unit, std::uint64_t clock) override {
    change(unit, [&](UnitFacts& facts) {
      if (unit.kind == UnitKind::kSnapshot) ++facts.uses;
      facts.last_access = clock;
      used(unit, facts);
    });
  }
  bool learns() const override { return true; }
  // A request publishes more than once, but ends once.
  void complete(const Completion& completion) override {
    for (RunId run = completion.deepest; facts_[run_unit(run)].run != run;
         run = facts_[run_unit(run)].run) {
      change(run_unit(run), [&](UnitFacts& facts) {
        ++facts.uses;
        counted(run_unit(run), facts);
      });
    }
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
  virtual void used(Unit, UnitFacts&) {}     // now, or stored now
  virtual void counted(Unit, UnitFacts&) {}  // uses has grown

  // FLOPs that a byte saves when the unit is used: of a run's last block, or of a snapshot.
  double flops_per_byte(Unit unit, const UnitFacts& facts) const {
    if (unit.kind == UnitKind::kSnapshot) {
      return costs_.flops(facts.begin, facts.end) /
             static_cast<double>(std::max<std::uint64_t>(costs_.snapshot_bytes, 1));
    }
    if (facts.end <= facts.begin) return 0;
    const std::uint64_t block = (facts.end - 1) / costs_.block_tokens * costs_.block_tokens;
    return costs_.flops(std::max(block, facts.begin), facts.end) /
           static_cast<double>(costs_.block_bytes);
  }

  UnitTable<UnitFacts> facts_;

 private:
  void add(Unit unit, const UnitFacts& facts) {
    facts_[unit] = facts;
    used(unit, facts_[unit]);
  }
  std::vector<SnapshotId>& marks(RunId run) {
    if (run >= marks_.size()) marks_.resize(run + std::size_t{1});
    return marks_[run];
  }
  std::uint64_t nearest_snapshot(RunId run, std::uint64_t position) {
    constexpr int kFar = 64;  // runs; beyond, it saves at least that much
    std::uint64_t begin = 0;
    for (int step = 0; step < kFar; ++step) {
      for (const SnapshotId snapshot : marks(run)) {
        const std::uint64_t end = facts_[snapshot_unit(snapshot)].end;
        if (end < position) begin = std::max(begin, end);
      }
      const RunId above = facts_[run_unit(run)].run;
      if (begin > 0 || above == run) return begin;
      run = above;
    }
    return facts_[run_unit(run)].end;
  }
  template <typename Change>
  void change(Unit unit, Change&& apply) {
    UnitFacts& facts = facts_[unit];
    if (facts.candidate) unplace(unit, facts);
    std::forward<Change>(apply)(facts);
    if (facts.candidate) place(unit, facts);
  }

  const Costs costs_;
  std::vector<std::vector<SnapshotId>> marks_;  // snapshots by run
};

}  // namespace kvcache::evict
