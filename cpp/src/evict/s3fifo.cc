// S3-FIFO (SOSP 2023): new units wait in a small queue, a tenth of what is stored. What was used
// again there moves to the main queue when its turn comes, the rest goes; the main queue gives what
// was used another round. What went and soon comes back enters the main queue at once.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <unordered_set>
#include <utility>

#include "evict/block_keys.h"
#include "evict/policies.h"
#include "evict/unit_table.h"

namespace kvcache::evict {
namespace {

constexpr std::uint32_t kMostUses = 3;  // further ones do not count

class S3Fifo final : public FactPolicy {
 public:
  using FactPolicy::FactPolicy;

  std::string_view name() const override { return "s3fifo"; }

  void add_run(RunId run, RunId parent, std::span<const std::int32_t> path, std::uint64_t start,
               std::uint64_t clock) override {
    FactPolicy::add_run(run, parent, path, start, clock);
    // The run's first tokens and where they stand name it, whatever tree it returns to.
    const auto first = path.subspan(start, std::min<std::size_t>(kNameTokens, path.size() - start));
    State& state = states_[run_unit(run)];
    state = {.name = block_key(start, first)};
    if (ghosts_.contains(state.name)) state.main = true;
    state.turn = ++turns_;
  }
  void split_run(RunId upper, RunId run, std::uint64_t position) override {
    const State above = states_[run_unit(run)];
    states_[run_unit(upper)] = above;
    FactPolicy::split_run(upper, run, position);
  }
  void add_snapshot(SnapshotId snapshot, RunId run, std::uint64_t position,
                    std::uint64_t clock) override {
    FactPolicy::add_snapshot(snapshot, run, position, clock);
    State& state = states_[snapshot_unit(snapshot)];
    state = {};
    state.turn = ++turns_;
  }
  void shrink_run(RunId run, std::uint64_t end) override {
    const UnitFacts& facts = facts_[run_unit(run)];
    if (end == facts.begin) remember(states_[run_unit(run)].name);
    FactPolicy::shrink_run(run, end);
  }

  std::optional<Unit> victim(const MayGo& may_go) override {
    const bool small_first = small_.size() * 10 >= small_.size() + main_.size();
    std::optional<Unit> found;
    if (small_first) found = from_small(may_go);
    if (!found) found = from_main(0, may_go);
    if (found || small_first) return found;
    const std::uint64_t seen = turns_;
    found = from_small(may_go);
    return found ? found : from_main(seen, may_go);
  }

 private:
  static constexpr std::size_t kNameTokens = 64;
  using Queue = std::set<std::pair<std::uint64_t, Unit>>;  // by turn

  struct State {
    std::uint64_t name = 0;
    std::uint64_t turn = 0;
    std::uint32_t uses = 0;
    bool main = false;
  };

  Queue& queue(const State& state) { return state.main ? main_ : small_; }

  void place(Unit unit, UnitFacts&) override {
    const State& state = states_[unit];
    queue(state).insert({state.turn, unit});
  }
  void unplace(Unit unit, UnitFacts&) override {
    const State& state = states_[unit];
    queue(state).erase({state.turn, unit});
  }
  void counted(Unit unit, UnitFacts& facts) override {
    if (facts.uses < 2) return;  // the request that made it
    State& state = states_[unit];
    state.uses = std::min(state.uses + 1, kMostUses);
  }

  std::optional<Unit> from_small(const MayGo& may_go) {
    for (auto at = small_.begin(); at != small_.end();) {
      const Unit unit = at->second;
      State& state = states_[unit];
      if (state.uses > 1) {
        at = small_.erase(at);
        state.main = true;
        state.uses = 0;
        state.turn = ++turns_;
        main_.insert({state.turn, unit});
      } else if (may_go(unit)) {
        return unit;
      } else {
        ++at;
      }
    }
    return std::nullopt;
  }
  // From the turn after `seen` on.
  std::optional<Unit> from_main(std::uint64_t seen, const MayGo& may_go) {
    for (auto at = main_.upper_bound({seen, Unit{UnitKind::kSnapshot, UINT32_MAX}});
         at != main_.end();) {
      const Unit unit = at->second;
      State& state = states_[unit];
      if (state.uses > 0) {
        at = main_.erase(at);
        --state.uses;
        state.turn = ++turns_;
        const auto again = main_.insert({state.turn, unit}).first;
        if (at == main_.end()) at = again;
      } else if (may_go(unit)) {
        return unit;
      } else {
        ++at;
      }
    }
    return std::nullopt;
  }
  // As many as there are candidates.
  void remember(std::uint64_t name) {
    if (ghosts_.insert(name).second) ghost_turns_.push_back(name);
    while (ghost_turns_.size() > small_.size() + main_.size() + 16) {
      ghosts_.erase(ghost_turns_.front());
      ghost_turns_.pop_front();
    }
  }

  UnitTable<State> states_;
  Queue small_, main_;
  std::unordered_set<std::uint64_t> ghosts_;
  std::deque<std::uint64_t> ghost_turns_;
  std::uint64_t turns_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_s3fifo(const Costs& costs) { return std::make_unique<S3Fifo>(costs); }

}  // namespace kvcache::evict
