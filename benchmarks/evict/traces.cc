#include "traces.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <utility>

namespace kvcache::bench {
namespace {

constexpr std::uint64_t kBlockTokens = 512;

using Path = std::vector<std::int32_t>;
using Rng = std::mt19937_64;

double uniform(Rng& rng) { return std::uniform_real_distribution<double>()(rng); }
std::uint64_t below(Rng& rng, std::uint64_t end) { return rng() % end; }
// A gap of this mean, in ms, as if requests came independently.
double poisson_gap(Rng& rng, double mean) {
  return std::exponential_distribution<double>(1 / mean)(rng);
}
double log_normal(Rng& rng, double median, double sigma) {
  return std::lognormal_distribution<double>(std::log(median), sigma)(rng);
}
std::uint64_t geometric(Rng& rng, double p) {
  return 1 + std::geometric_distribution<std::uint64_t>(p)(rng);
}

class Trace {
 public:
  Trace(Rng& rng, std::size_t requests) : rng_(rng), most_(requests) {}

  bool full() const { return requests_.size() >= most_; }
  std::size_t size() const { return requests_.size(); }
  // A last block that is not full is never gone on with.
  void add(double now_ms, Path path, std::uint64_t output, bool partial = false) {
    const std::uint64_t cut = partial ? below(rng_, kBlockTokens) : 0;
    requests_.push_back({static_cast<std::uint64_t>(now_ms), path.size() * kBlockTokens - cut,
                         output, std::move(path)});
  }
  void add(double now_ms, Path path) { add(now_ms, std::move(path), below(rng_, 200)); }
  std::vector<BlockRequest> take() { return std::move(requests_); }

 private:
  Rng& rng_;
  const std::size_t most_;
  std::vector<BlockRequest> requests_;
};

Path document(std::uint64_t number, std::uint64_t blocks) {
  Path path;
  for (std::uint64_t b = 0; b < blocks; ++b) {
    path.push_back(static_cast<std::int32_t>(number * 8 + b));
  }
  return path;
}

// The same documents over and over; LRU with less than all of them finds nothing.
std::vector<BlockRequest> loop(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  for (std::size_t i = 0; !trace.full(); ++i) trace.add(500.0 * i, document(i % 60, 4));
  return trace.take();
}

// A loop with strangers in it.
std::vector<BlockRequest> loop_and_scan(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  std::uint64_t stranger = 1000;
  std::uint64_t next = 0;
  for (std::size_t i = 0; !trace.full(); ++i) {
    trace.add(500.0 * i, uniform(rng) < 0.4 ? document(stranger++, 4) : document(next++ % 80, 4));
  }
  return trace.take();
}

// Loops of another length every 400 requests.
std::vector<BlockRequest> loop_flips(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  for (std::size_t i = 0; !trace.full(); ++i) {
    const std::uint64_t phase = i / 400;
    trace.add(500.0 * i, document(1000 * phase + i % (phase % 2 ? 20 : 120), 4));
  }
  return trace.take();
}

// Every 300 requests the working set is another, and what used to return no longer does.
std::vector<BlockRequest> phases(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  double now = 0;
  for (std::size_t i = 0; !trace.full(); ++i) {
    const std::uint64_t phase = i / 300;
    trace.add(now += poisson_gap(rng, 1000),
              document(1000 * phase + below(rng, phase % 2 ? 30 : 300), 4));
  }
  return trace.take();
}

// Documents return soon in one phase and late in the next.
std::vector<BlockRequest> think_time_flips(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  std::deque<std::uint64_t> waiting;
  std::uint64_t fresh = 0;
  double now = 0;
  for (std::size_t i = 0; !trace.full(); ++i) {
    const std::size_t delay = i / 350 % 2 ? 150 : 12;
    now += poisson_gap(rng, 700);
    if (waiting.size() > delay && uniform(rng) < 0.5) {
      trace.add(now, document(waiting.front(), 4));
      waiting.pop_front();
      while (waiting.size() > delay) waiting.pop_front();
    } else {
      trace.add(now, document(fresh, 4));
      waiting.push_back(fresh++);
    }
  }
  return trace.take();
}

// What answers briefly returns in one phase, what answers at length in the next.
std::vector<BlockRequest> reuse_flips(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  std::deque<std::pair<std::uint64_t, std::uint64_t>> waiting;  // documents and outputs
  std::uint64_t fresh = 0;
  double now = 0;
  for (std::size_t i = 0; !trace.full(); ++i) {
    const bool brief_returns = i / 300 % 2 == 0;
    now += poisson_gap(rng, 800);
    if (waiting.size() > 30 && uniform(rng) < 0.45) {
      const auto [number, output] = waiting.front();
      waiting.pop_front();
      trace.add(now, document(number, 4), output);
      continue;
    }
    const bool brief = uniform(rng) < 0.5;
    const std::uint64_t output = brief ? below(rng, 30) : 150 + below(rng, 400);
    trace.add(now, document(fresh, 4), output);
    if (brief == brief_returns) waiting.push_back({fresh, output});
    ++fresh;
  }
  return trace.take();
}

// The k-th latest again, small k most often: LRU is the best there is.
std::vector<BlockRequest> lru_stack(Rng& rng, std::size_t count, double p) {
  Trace trace(rng, count);
  std::vector<std::uint64_t> stack;
  std::uint64_t fresh = 0;
  double now = 0;
  while (!trace.full()) {
    const std::uint64_t depth = geometric(rng, p);
    std::uint64_t number = fresh;
    if (depth <= stack.size()) {
      const auto at = stack.end() - static_cast<std::ptrdiff_t>(depth);
      number = *at;
      stack.erase(at);
    } else {
      ++fresh;
    }
    stack.push_back(number);
    trace.add(now += poisson_gap(rng, 1000), document(number, 4));
  }
  return trace.take();
}
std::vector<BlockRequest> lru_stack_near(Rng& rng, std::size_t count) {
  return lru_stack(rng, count, 0.03);
}
std::vector<BlockRequest> lru_stack_far(Rng& rng, std::size_t count) {
  return lru_stack(rng, count, 0.006);
}

// Branches of a few live trees, each continued from a recent node.
std::vector<BlockRequest> tree_search(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  std::int32_t fresh = 0;
  std::vector<std::vector<Path>> trees(8);
  for (auto& tree : trees) tree = {{fresh++}};
  double now = 0;
  while (!trace.full()) {
    auto& tree = trees[below(rng, trees.size())];
    const std::uint64_t back = std::min<std::uint64_t>(tree.size() - 1, geometric(rng, 0.2) - 1);
    Path path = tree[tree.size() - 1 - back];
    path.push_back(fresh++);
    tree.push_back(path);
    if (tree.size() > 40) tree = {{fresh++}};
    trace.add(now += poisson_gap(rng, 300), std::move(path));
  }
  return trace.take();
}

// Many samples of each prompt one after the other, each continued a few times, then never again.
std::vector<BlockRequest> best_of_n(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  std::int32_t fresh = 0;
  double now = 0;
  while (!trace.full()) {
    Path prompt;
    for (int b = 0; b < 6; ++b) prompt.push_back(fresh++);
    for (int step = 0; step < 4; ++step) {
      Path chosen;
      for (int sample = 0; sample < 8 && !trace.full(); ++sample) {
        Path path = prompt;
        path.push_back(fresh++);
        trace.add(now += poisson_gap(rng, 250), path);
        if (sample == 0 || uniform(rng) < 0.2) chosen = std::move(path);
      }
      if (!chosen.empty()) prompt = std::move(chosen);
    }
  }
  return trace.take();
}

struct Turns {
  std::size_t sessions;
  double goes_on;              // probability
  double median, sigma;        // ms between turns
  std::uint64_t prompt, turn;  // blocks at most
  double edits;                // probability that a turn goes back
};

// Sessions side by side; each turn goes on from the path before.
std::vector<BlockRequest> sessions(Rng& rng, std::size_t count, const Turns& turns) {
  struct Session {
    double due;
    Path path;
  };
  Trace trace(rng, count);
  std::int32_t fresh = 1;
  std::vector<Session> live;
  for (std::size_t s = 0; s < turns.sessions; ++s) {
    live.push_back({uniform(rng) * turns.median, {}});
  }
  while (!trace.full()) {
    Session& next = *std::min_element(live.begin(), live.end(),
                                      [](const auto& a, const auto& b) { return a.due < b.due; });
    if (!next.path.empty() && uniform(rng) < turns.edits) {
      next.path.resize(1 + below(rng, next.path.size()));
    }
    const std::uint64_t more = 1 + below(rng, next.path.empty() ? turns.prompt : turns.turn);
    for (std::uint64_t b = 0; b < more; ++b) next.path.push_back(fresh++);
    trace.add(next.due, next.path, below(rng, 400), true);
    next.path.pop_back();
    if (uniform(rng) >= turns.goes_on || next.path.size() > 40) next.path.clear();
    next.due += log_normal(rng, turns.median, turns.sigma);
  }
  return trace.take();
}
std::vector<BlockRequest> agents(Rng& rng, std::size_t count) {
  return sessions(rng, count, {24, 0.9, 4000, 0.5, 6, 2, 0.05});
}
std::vector<BlockRequest> chats(Rng& rng, std::size_t count) {
  return sessions(rng, count, {120, 0.6, 60000, 1.2, 5, 3, 0.15});
}

// Popular documents under a common head, and questions about them.
std::vector<BlockRequest> zipf(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  std::vector<double> weights;
  for (int d = 0; d < 800; ++d) weights.push_back(std::pow(d + 1, -0.9));
  std::discrete_distribution<std::uint64_t> popular(weights.begin(), weights.end());
  std::int32_t fresh = 1 << 20;
  double now = 0;
  while (!trace.full()) {
    Path path{7};
    for (const std::int32_t block : document(1 + popular(rng), 5)) path.push_back(block);
    path.push_back(fresh++);
    trace.add(now += poisson_gap(rng, 400), std::move(path), below(rng, 300), true);
  }
  return trace.take();
}

// A working set that is used at random, and a scan over strangers now and then.
std::vector<BlockRequest> scans(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  std::uint64_t stranger = 1000;
  double now = 0;
  for (std::size_t i = 0; !trace.full(); ++i) {
    trace.add(now += poisson_gap(rng, 500),
              i % 500 < 120 ? document(stranger++, 4) : document(below(rng, 100), 4));
  }
  return trace.take();
}

// Each document a few times in a short while, then never again.
std::vector<BlockRequest> bursts(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> live;  // documents and uses left
  std::uint64_t fresh = 0;
  double now = 0;
  while (!trace.full()) {
    if (live.size() < 20 || uniform(rng) < 0.2) live.push_back({fresh++, 1 + below(rng, 6)});
    const std::size_t at = live.size() - 1 - std::min<std::size_t>(live.size() - 1, below(rng, 20));
    trace.add(now += poisson_gap(rng, 600), document(live[at].first, 4));
    if (--live[at].second == 0) live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return trace.take();
}

// Prompts that leave an earlier one at a block and end in a new one.
std::vector<BlockRequest> branching(Rng& rng, std::size_t count) {
  Trace trace(rng, count);
  std::vector<Path> paths{{0}};
  std::int32_t fresh = 1;
  double now = 0;
  while (!trace.full()) {
    Path path = paths[paths.size() - 1 - below(rng, std::min<std::size_t>(paths.size(), 60))];
    path.resize(1 + below(rng, std::max<std::size_t>(1, path.size() - 1)));
    const std::uint64_t more = 1 + below(rng, 5);
    for (std::uint64_t b = 0; b < more; ++b) path.push_back(fresh++);
    paths.push_back(path);
    trace.add(now += poisson_gap(rng, 3000), std::move(path), below(rng, 200), true);
  }
  return trace.take();
}

// Half of the time one of these, half of the time another, and once more.
std::vector<BlockRequest> regimes(Rng& rng, std::size_t count) {
  constexpr std::array kParts = {&zipf, &lru_stack_near, &chats, &loop, &phases};
  std::vector<BlockRequest> all;
  std::uint64_t now = 0;
  for (std::uint64_t part = 0; all.size() < count; ++part) {
    const std::size_t length = std::min<std::size_t>(count - all.size(), 1 + count / 4);
    for (BlockRequest& request : kParts[below(rng, kParts.size())](rng, length)) {
      request.now_ms += now;
      // Other content than in the parts before.
      for (std::int32_t& block : request.blocks) block += static_cast<std::int32_t>(part << 22);
      all.push_back(std::move(request));
    }
    now = all.back().now_ms + 1000;
  }
  return all;
}

constexpr std::array kKinds = {
    TraceKind{"loop", &loop},
    TraceKind{"loop_and_scan", &loop_and_scan},
    TraceKind{"loop_flips", &loop_flips},
    TraceKind{"phases", &phases},
    TraceKind{"think_time_flips", &think_time_flips},
    TraceKind{"reuse_flips", &reuse_flips},
    TraceKind{"regimes", &regimes},
    TraceKind{"lru_stack_near", &lru_stack_near},
    TraceKind{"lru_stack_far", &lru_stack_far},
    TraceKind{"tree_search", &tree_search},
    TraceKind{"best_of_n", &best_of_n},
    TraceKind{"agents", &agents},
    TraceKind{"chats", &chats},
    TraceKind{"zipf", &zipf},
    TraceKind{"scans", &scans},
    TraceKind{"bursts", &bursts},
    TraceKind{"branching", &branching},
};

}  // namespace

std::span<const TraceKind> trace_kinds() { return kKinds; }

}  // namespace kvcache::bench
