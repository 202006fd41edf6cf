// Eight threads do everything at once to one cache that is too small for them, and to sequences
// that they share: no race (under ThreadSanitizer), no wrong byte, nothing left at the end.
// KVCACHE_STRESS_ROUNDS: operations of each thread.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "content.h"
#include "kvcache/pages.h"
#include "kvcache/verify_table.h"

namespace kvcache {
namespace {

using content::Tokens;

constexpr int kThreads = 8;

int rounds() {
  const char* text = std::getenv("KVCACHE_STRESS_ROUNDS");
  return text == nullptr ? 400 : std::atoi(text);
}

// A pinned page and what it shows.
struct Seen {
  PageView view;
  std::vector<float> want;
};

class Worker {
 public:
  // `limits`: whether it may set quotas, for which prefixes give way.
  Worker(Cache& cache, std::array<Sequence, 3>& shared, std::uint32_t seed, bool limits)
      : cache_(cache), shared_(shared), limits_(limits), seed_(seed), rng_(seed) {}

  void run() {
    for (int i = 0; i < rounds() && error_.empty(); ++i) step();
    check_seen();
    seen_.clear();
    mine_.clear();
    pins_.clear();
  }
  const std::string& error() const { return error_; }

 private:
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(rng_() % limit); }

  // Notes what no caller of a sequence of its own may ever see.
  bool expect(bool holds, const std::string& what) {
    if (!holds && error_.empty()) error_ = "seed " + std::to_string(seed_) + ": " + what;
    return holds;
  }
  // Running out of room is no error here.
  bool went_well(const Status& status, std::string_view call) {
    if (status.is_ok()) return true;
    expect(status.code() == StatusCode::kOutOfCapacity,
           std::string(call) + ": " + status.message());
    return false;
  }

  Tokens prompt() {
    Tokens tokens(3 + below(14), 5);
    for (std::size_t i = 4; i < tokens.size(); ++i) tokens[i] = static_cast<int>(below(2));
    return tokens;
  }
  std::string tenant() { return below(2) == 0 ? "a" : "b"; }
  PrefixSpace space() { return {below(8) == 0 ? "other" : "", "", ""}; }

  void step() {
    if (mine_.empty() || (mine_.size() < 3 && below(4) == 0)) return open();
    const std::size_t at = below(static_cast<std::uint32_t>(mine_.size()));
    Sequence& sequence = mine_[at];
    switch (below(17)) {
      case 0:
        return disturb();
      case 1:
        return fork(sequence);
      case 2:
        went_well(sequence.snapshot().status(), "snapshot");
        break;
      case 3:
        went_well(sequence.publish(), "publish");
        break;
      case 4:
        rewind(sequence);
        break;
      case 5:
        went_well(sequence.record().status(), "record");
        break;
      case 6:
        if (below(2) == 0) return verify_batch();
        verify(sequence);
        break;
      case 7:
        look(sequence);
        break;
      case 8:
        check_seen();
        if (!seen_.empty())
          seen_.erase(seen_.begin() + below(static_cast<std::uint32_t>(seen_.size())));
        break;
      case 9:
        mine_.erase(mine_.begin() + static_cast<std::ptrdiff_t>(at));
        return;
      case 10:
        return inspect();
      case 11:
        if (below(8) == 0) save_and_load();
        if (has_disk_) use_disk();
        break;
      case 12:
        return pin();
      default:
        grow(sequence);
    }
    const std::string wrong = content::wrong_bytes(sequence);
    expect(wrong.empty(), wrong);
  }

  void open() {
    OpenOptions options;
    if (below(8) == 0) options.ttl_ms = 1 + below(10);
    if (below(2) == 0) options.hints.tenant = tenant();
    auto sequence = cache_.open(prompt(), space(), options);
    if (!went_well(sequence.status(), "open")) return;
    const std::string wrong = content::wrong_bytes(*sequence);
    expect(wrong.empty(), "after a hit: " + wrong);
    mine_.push_back(std::move(sequence).value());
  }

  void grow(Sequence& sequence) {
    if (below(2) == 0) {
      went_well(sequence.extend(Tokens(1 + below(3), static_cast<int>(below(2)))), "extend");
    }
    const std::uint64_t waiting = sequence.tokens().size() - sequence.length();
    if (sequence.tokens().size() > 60) return rewind(sequence);
    const std::uint64_t count = waiting == 0 ? 0 : 1 + below(static_cast<std::uint32_t>(waiting));
    if (!went_well(content::complete(sequence, sequence.length() + count), "complete")) return;
    if (below(3) == 0 && went_well(sequence.snapshot().status(), "snapshot")) {
      went_well(sequence.publish(), "publish");
    }
  }

  void fork(Sequence& sequence) {
    auto child = sequence.fork();
    if (!went_well(child.status(), "fork")) return;
    const std::string wrong = content::wrong_bytes(*child);
    expect(wrong.empty(), "after a fork: " + wrong);
    if (mine_.size() < 3) mine_.push_back(std::move(child).value());
  }

  // Back to where the ring, a snapshot or the beginning allows.
  void rewind(Sequence& sequence) {
    const std::vector<std::uint64_t> recorded = sequence.recorded();
    Status status;
    if (!recorded.empty() && below(4) > 0) {
      status = sequence.rollback(recorded[below(static_cast<std::uint32_t>(recorded.size()))]);
    } else {
      const std::uint64_t back = below(6);
      status = sequence.truncate(sequence.length() - std::min(sequence.length(), back));
    }
    if (status.code() == StatusCode::kUnsupported) status = sequence.truncate(0);
    went_well(status, "rewind");
    if (sequence.tokens().empty()) went_well(sequence.extend(prompt()), "extend");
  }

  void verify(Sequence& sequence) {
    if (!went_well(content::complete(sequence, sequence.tokens().size()), "complete")) return;
    if (!went_well(sequence.extend({{static_cast<int>(below(2))}}), "extend")) return;
    const TokenTree tree = random_tree();
    const Tokens drafts(tree.nodes() - 1, static_cast<int>(below(2)));
    const Tokens known = sequence.tokens();
    const auto strategy = static_cast<VerifyStrategy>(below(3));
    auto begun = sequence.begin_verify(drafts, &tree, strategy);
    if (!went_well(begun.status(), "begin_verify")) return;
    VerifySession session = std::move(begun).value();
    const auto paths = content::tokens_by_row(known, drafts, tree);
    const bool stash = strategy != VerifyStrategy::kSteps && below(8) != 0;
    if (stash) went_well(content::stash_state(session, paths), "stash");
    const Status ran = content::run_rows(session, paths, [&](std::size_t row) {
      if (stash) return Result<StateView>(StateView{});
      return session.state(row, content::kStateLayer, content::kStateName);
    });
    if (!went_well(ran, "verify rows") || below(4) == 0) return;  // the destructor rolls back
    went_well(session.commit(*tree.path(below(static_cast<std::uint32_t>(tree.nodes())))).status(),
              "commit");
  }

  TokenTree random_tree() {
    std::vector<std::int32_t> parents = {-1};
    for (std::uint32_t node = 1; node <= below(5); ++node) {
      parents.push_back(static_cast<std::int32_t>(below(node)));
    }
    return TokenTree::create(parents).value();
  }

  // All sequences of its own in one session, whose kernels would find the state by a table.
  void verify_batch() {
    std::vector<Sequence*> handles;
    std::vector<std::uint64_t> counts;
    std::vector<Tokens> paths;
    std::vector<std::pair<std::size_t, std::uint64_t>> places;
    Tokens drafts;
    for (Sequence& sequence : mine_) {
      if (!went_well(content::complete(sequence, sequence.tokens().size()), "complete")) return;
      if (!went_well(sequence.extend({{static_cast<int>(below(2))}}), "extend")) return;
      const Tokens own(below(4), static_cast<int>(below(2)));
      const auto found =
          content::tokens_by_row(sequence.tokens(), own, TokenTree::linear(own.size() + 1).value());
      for (std::uint64_t row = 0; row < found.size(); ++row)
        places.emplace_back(counts.size(), row);
      paths.insert(paths.end(), found.begin(), found.end());
      drafts.insert(drafts.end(), own.begin(), own.end());
      counts.push_back(own.size());
      handles.push_back(&sequence);
    }
    Batch batch = Batch::create(handles).value();
    const auto strategy = static_cast<VerifyStrategy>(below(3));
    const bool stash = strategy != VerifyStrategy::kSteps && below(4) != 0;
    auto begun = batch.begin_verify(drafts, counts,
                                    {.table = stash ? nullptr : &table_, .strategy = strategy});
    if (!went_well(begun.status(), "batch begin_verify")) return;
    BatchVerifySession session = std::move(begun).value();
    if (stash) went_well(content::stash_state(session, paths), "batch stash");
    const Status ran = content::run_rows(session, paths, [&](std::size_t row) {
      if (stash) return Result<StateView>(StateView{});
      return session.state(places[row].first, places[row].second, content::kStateLayer,
                           content::kStateName);
    });
    if (!went_well(ran, "batch rows") || below(4) == 0) return;
    for (std::uint64_t& count : counts) count = below(static_cast<std::uint32_t>(count) + 2);
    went_well(session.commit(counts).status(), "batch commit");
  }

  // Pins pages, which outlive the sequence.
  void look(const Sequence& sequence) {
    const std::uint64_t length = sequence.length();
    if (length == 0 || seen_.size() > 20) return;
    const std::uint64_t start = below(static_cast<std::uint32_t>(length));
    auto views = sequence.views(0, start, length);
    if (!went_well(views.status(), "views")) return;
    const Tokens tokens = sequence.tokens();
    for (PageView& view : (*views)[0]) {
      auto want = content::rows_of(tokens, view.start, view.start + view.positions, 0);
      seen_.push_back({std::move(view), std::move(want)});
    }
  }

  void check_seen() {
    for (const Seen& seen : seen_) {
      std::vector<float> got(seen.want.size());
      // Integers of f16 up to 127: sign, exponent and mantissa say which.
      const auto* halves = reinterpret_cast<const std::uint16_t*>(seen.view.rows);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const int exponent = (halves[i] >> 10 & 31) - 15;
        const float size =
            halves[i] << 1 == 0
                ? 0.0F
                : std::ldexp(1.0F + static_cast<float>(halves[i] & 1023) / 1024.0F, exponent);
        got[i] = (halves[i] & 0x8000) != 0 ? -size : size;
      }
      expect(got == seen.want, "a pinned page has changed");
    }
  }

  void inspect() {
    const CacheStats stats = cache_.stats();
    expect(stats.used_bytes <= stats.committed_bytes && stats.committed_bytes <= stats.peak_bytes &&
               stats.committed_bytes <= stats.budget_bytes,
           "the ledger");
    if (below(4) == 0) went_well(cache_.resize((32 + 8 * below(5)) << 20), "resize");
    const Tokens tokens = prompt();
    const auto said = cache_.explain(tokens, space());
    expect(said && said->cached_tokens <= said->matched_tokens &&
               said->matched_tokens <= tokens.size(),
           "explain");
    if (below(2) == 0) {
      went_well(cache_.take_events().status(), "take_events");
    } else {
      went_well(cache_.events_snapshot().status(), "events_snapshot");
    }
    if (below(8) == 0) went_well(cache_.lose_events(), "lose_events");
    for (std::size_t group = 0; group < cache_.plan().groups().size(); ++group) {
      const auto live = cache_.page_refs(group);
      for (const PageRefs& page : *live) expect(page.refs >= page.indexed, "page_refs");
    }
    if (below(16) == 0) cache_.clear();
    if (below(8) == 0) cache_.drop_expired();
    if (below(4) == 0) went_well(cache_.reserve(1 + below(4096)).status(), "reserve");
    if (below(2) == 0) limit();
  }

  // A tenant has less, or more; what it has is never beyond all that is stored.
  void limit() {
    std::optional<MemoryShare> quota;
    if (below(3) > 0) quota = MemoryShare{.bytes = below(40) * 4096};
    if (below(4) == 0) quota = MemoryShare{.fraction = 0.01};
    if (limits_) went_well(cache_.set_quota(tenant(), quota), "set_quota");
    for (const TenantUsage& usage : cache_.tenants()) {
      expect(usage.name == "a" || usage.name == "b", "a tenant nobody named");
      expect(usage.bytes <= std::uint64_t{40} << 20, "bytes of a tenant");
    }
    if (below(8) != 0) return;
    EraseFilter filter;
    filter.tenant = tenant();
    went_well(cache_.erase(filter).status(), "erase");
  }

  // Keeps a prefix for a while, or for ever; what is kept can be resumed from.
  void pin() {
    if (pins_.size() > 4) pins_.erase(pins_.begin() + below(5));
    const Tokens tokens = prompt();
    PinOptions options;
    if (below(2) == 0) options.lease_ms = below(20);
    auto pin = cache_.pin(tokens, {}, options);
    if (pin.status().code() == StatusCode::kNotFound) return;
    if (!went_well(pin.status(), "pin")) return;
    expect(pin->tokens() > 0 && pin->tokens() <= tokens.size(), "tokens of a pin");
    if (below(4) == 0) (void)pin->renew({.lease_ms = below(20)});
    if (below(4) == 0) pin->release();
    pins_.push_back(std::move(pin).value());
  }

  void use_disk() {
    went_well(cache_.prefetch(prompt(), space()).status(), "prefetch");
    if (below(8) == 0) went_well(cache_.flush_disk(below(50)), "flush");
    const auto stats = cache_.disk_stats();
    expect(stats.is_ok() && stats->damaged_records + stats->write_errors == 0, "disk tier");
  }

  void save_and_load() {
    const std::string path = testing::TempDir() + "kvcache_stress_" + std::to_string(getpid()) +
                             "_" + std::to_string(seed_);
    const auto saved = cache_.save(path, prompt(), {}, {.replace = true});
    if (saved.is_ok()) {
      went_well(cache_.load(path, {}, {.tenant = tenant()}).status(), "load");
    } else {
      expect(saved.status().code() == StatusCode::kNotFound, saved.status().message());
    }
    std::filesystem::remove_all(path);
  }

  // Calls of several threads on one sequence: any may be refused, none may do harm.
  void disturb() {
    Sequence& sequence = shared_[below(static_cast<std::uint32_t>(shared_.size()))];
    const Tokens tokens = sequence.tokens();
    Status status;
    switch (below(10)) {
      case 0:
        status = sequence.extend(Tokens(1 + below(3), 1));
        break;
      case 1:
        status = sequence.snapshot().status();
        break;
      case 2:
        status = sequence.publish();
        break;
      case 3:
        status = sequence.fork().status();
        break;
      case 4:
        status = sequence.truncate(below(20));
        break;
      case 5:
        status = sequence.record().status();
        break;
      case 6:
        status = sequence.rollback(below(20));
        break;
      case 7: {
        auto session =
            sequence.begin_verify({{1, 0}}, nullptr, static_cast<VerifyStrategy>(below(3)));
        if (!session) break;
        status = content::stash_state(*session, std::vector<Tokens>(3, tokens));
        if (session->live(content::kStateLayer, content::kStateName) &&
            session->pending(content::kStateLayer, content::kStateName)) {
          status = session->commit(1 + below(3)).status();
        }
        break;
      }
      case 8:
        status = sequence.views(0, 0, below(20)).status();
        break;
      default:
        status = grow_shared(sequence, tokens);
    }
    expect(status.code() != StatusCode::kInternal, status.message());
  }

  static Status grow_shared(Sequence& sequence, const Tokens& tokens) {
    const std::uint64_t start = sequence.length();
    if (tokens.size() <= start) return Status::ok();
    for (std::int32_t layer = 0; layer < content::kPagedLayers; ++layer) {
      std::vector<float> rows = content::rows_of(tokens, start, start + 1, layer);
      const auto view = content::view_of<codec::RowsView>(rows.data(), 1);
      if (Status status = sequence.write(layer, start, {&view, 1}); !status) return status;
    }
    return sequence.advance(1);
  }

  Cache& cache_;
  std::array<Sequence, 3>& shared_;
  const bool limits_;
  const std::uint32_t seed_;
  std::mt19937 rng_;
  std::vector<Sequence> mine_;
  std::vector<Seen> seen_;
  std::vector<Pin> pins_;
  VerifyTable table_ = VerifyTable::create(cache_.plan(), 8).value();
  const bool has_disk_ = cache_.disk_stats().is_ok();
  std::string error_;
};

// Shared sequences live in a space of their own: what racing threads write there is nobody's hit.
CacheStats stress(std::uint64_t capacity_blocks, const std::string& disk = "") {
  auto plan = StatePlan::create(content::decls(), {64 << 20, 4, 64, 3, true, 7});
  EXPECT_TRUE(plan.is_ok()) << plan.status().message();
  const auto cache = Cache::create(std::move(plan).value(),
                                   {.policy = "lru",
                                    .capacity_blocks = capacity_blocks,
                                    .event_capacity = 100,
                                    .disk = {.path = disk, .max_bytes = 8 << 20, .group_ms = 5}})
                         .value();
  std::array<Sequence, 3> shared;
  for (Sequence& sequence : shared) {
    sequence = cache->open(Tokens(30, 1), {"shared", "", ""}).value();
  }
  std::vector<Worker> workers;
  for (std::uint32_t seed = 1; seed <= kThreads; ++seed) {
    workers.emplace_back(*cache, shared, seed, capacity_blocks > 0);
  }
  std::vector<std::thread> threads;
  for (Worker& worker : workers) threads.emplace_back([&worker] { worker.run(); });
  for (std::thread& thread : threads) thread.join();
  for (const Worker& worker : workers) EXPECT_EQ(worker.error(), "");
  for (Sequence& sequence : shared) sequence.close();
  EXPECT_TRUE(disk.empty() || cache->flush_disk().is_ok());
  cache->clear();
  for (const char* name : {"a", "b"}) EXPECT_TRUE(cache->set_quota(name, std::nullopt).is_ok());
  EXPECT_TRUE(cache->tenants().empty());
  const CacheStats stats = cache->stats();
  EXPECT_EQ(stats.used_bytes, 0U);
  EXPECT_EQ(stats.pages + stats.slots + stats.snapshots + stats.ring_snapshots, 0U);
  EXPECT_EQ(stats.pins + stats.pinned_pages + stats.pinned_bytes, 0U);
  EXPECT_EQ(stats.open_sequences + stats.indexed_blocks + stats.indexed_snapshots, 0U);
  EXPECT_GT(stats.hits, 0U);
  EXPECT_EQ(cache->take_events()->back().kind, EventKind::kCleared);
  EXPECT_EQ(cache->events_snapshot()->size(), 1U);
  return stats;
}

TEST(Stress, EightThreadsWithRoomForAll) { EXPECT_EQ(stress(0).evicted_blocks, 0U); }

TEST(Stress, EightThreadsThatEvictEachOther) {
  const CacheStats stats = stress(64);
  // Slow builds find enough that has ended by itself.
  EXPECT_GT(stats.evicted_blocks + stats.expired_blocks, 0U);
}

TEST(Stress, EightThreadsAndADiskTier) {
  const std::string path = testing::TempDir() + "kvcache_stress_tier_" + std::to_string(getpid());
  for (int restart = 0; restart < 2; ++restart) stress(64, path);
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace kvcache
