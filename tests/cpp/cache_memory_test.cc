// The process runs out of memory in the middle of calls that change what is stored: no call ends
// it, nothing stays held, what is found afterwards is right, and the cache goes on.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <list>
#include <optional>
#include <random>
#include <string>

#include "content.h"
#include "failing_new.h"
#include "kvcache/lifetime.h"

namespace kvcache {
namespace {

using content::Tokens;

// Runs `call` with the allocation of number `at` failing. Returns whether one did.
bool fail_at(long at, const std::function<void()>& call) {
  remaining = at;
  try {
    call();
  } catch (const std::bad_alloc&) {
  }
  const bool reached = remaining < 0;
  remaining = -1;
  return reached;
}

Tokens prompt(std::size_t length, std::int32_t last = 5) {
  Tokens tokens(length, 5);
  tokens.back() = last;
  return tokens;
}

class CacheMemory : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Cache> make(std::uint64_t capacity_blocks = 40) {
    auto plan = StatePlan::create(content::decls(), {64 << 20, 4, 64, 3});
    return Cache::create(
               std::move(plan).value(),
               {.policy = GetParam(), .capacity_blocks = capacity_blocks, .event_capacity = 500})
        .value();
  }
  // Computes what is not known yet, with snapshots.
  static Status compute(Sequence& sequence) {
    for (const std::uint64_t stop : sequence.prefill_stops()) {
      if (Status status = content::complete(sequence, stop); !status) return status;
      if (auto taken = sequence.snapshot(); !taken) return taken.status();
    }
    return content::complete(sequence, sequence.tokens().size());
  }
  static void store(Cache& cache, const Tokens& tokens, const OpenOptions& options = {}) {
    Sequence sequence = cache.open(tokens, {}, options).value();
    ASSERT_EQ(content::wrong_bytes(sequence), "");
    ASSERT_TRUE(compute(sequence).is_ok());
    ASSERT_TRUE(sequence.publish().is_ok());
  }
  // Whatever is stored is right, what was stored can be stored again, and nothing stays held.
  static void expect_sound(Cache& cache) {
    for (const std::size_t length : {9U, 14U, 22U}) {
      store(cache, prompt(length));
      const Sequence again = cache.open(prompt(length), {}).value();
      ASSERT_GT(again.cached_tokens(), 0U);
      ASSERT_EQ(content::wrong_bytes(again), "");
    }
    cache.clear();
    const CacheStats stats = cache.stats();
    ASSERT_EQ(stats.used_bytes + stats.pages + stats.slots + stats.snapshots, 0U);
    ASSERT_EQ(stats.indexed_blocks + stats.indexed_tokens + stats.pins + stats.pinned_bytes, 0U);
    ASSERT_EQ(stats.open_sequences, 0U);
    for (const TenantUsage& usage : cache.tenants()) {
      ASSERT_EQ(usage.bytes + usage.blocks + usage.snapshots, 0U) << usage.name;
    }
  }
};

struct Change {
  const char* name;
  std::function<void(Cache&, Sequence&)> call;
};

std::vector<Change> changes() {
  return {
      {"publish", [](Cache&, Sequence& open) { static_cast<void>(open.publish()); }},
      {"fork", [](Cache&, Sequence& open) { static_cast<void>(open.fork().is_ok()); }},
      {"snapshot", [](Cache&, Sequence& open) { static_cast<void>(open.snapshot().is_ok()); }},
      {"lossy snapshot",
       [](Cache&, Sequence& open) {
         static_cast<void>(open.snapshot(SnapshotFormat::kInt8).is_ok());
       }},
      {"truncate", [](Cache&, Sequence& open) { static_cast<void>(open.truncate(0).is_ok()); }},
      {"shift", [](Cache&, Sequence& open) { static_cast<void>(open.shift(3, 6).is_ok()); }},
      {"write",
       [](Cache&, Sequence& open) {
         if (open.extend(Tokens(40, 3))) {
           static_cast<void>(content::complete(open, open.tokens().size()).is_ok());
         }
       }},
      {"close", [](Cache&, Sequence& open) { open.close(); }},
      {"open and close",
       [](Cache& cache, Sequence&) { static_cast<void>(cache.open(prompt(22), {}).is_ok()); }},
      {"pin half a run",
       [](Cache& cache, Sequence&) { static_cast<void>(cache.pin(prompt(8), {}, {}).is_ok()); }},
      {"evict", [](Cache& cache, Sequence&) { static_cast<void>(cache.resize(1 << 20).is_ok()); }},
      {"set_quota",
       [](Cache& cache, Sequence&) {
         static_cast<void>(cache.set_quota("tenant", MemoryShare{.fraction = 0.01}).is_ok());
       }},
      {"erase a prefix",
       [](Cache& cache, Sequence&) {
         EraseFilter filter;
         filter.name = filter.adapter = filter.salt = "";
         filter.tokens = prompt(9);
         static_cast<void>(cache.erase(filter).is_ok());
       }},
      {"erase a tenant",
       [](Cache& cache, Sequence&) {
         EraseFilter filter;
         filter.tenant = "tenant";
         static_cast<void>(cache.erase(filter).is_ok());
       }},
      {"expire", [](Cache& cache, Sequence&) { static_cast<void>(cache.drop_expired()); }},
      {"clear", [](Cache& cache, Sequence&) { cache.clear(); }},
      {"bump_epoch", [](Cache& cache, Sequence&) { cache.bump_epoch({}); }},
      {"events", [](Cache& cache, Sequence&) { static_cast<void>(cache.take_events()); }},
  };
}

// Each kind of change with its first, second, ... allocation failing, until none is left that
// would.
TEST_P(CacheMemory, EveryAllocationOfEveryChange) {
  for (const Change& change : changes()) {
    long at = 0;
    for (bool reached = true; reached; ++at) {
      SCOPED_TRACE(std::string(change.name) + ", allocation " + std::to_string(at));
      ASSERT_LT(at, 2000);
      const auto cache = make();
      OpenOptions of_tenant;
      of_tenant.hints.tenant = "tenant";
      ASSERT_TRUE(cache->set_quota("other", MemoryShare{.bytes = 1 << 20}).is_ok());
      store(*cache, prompt(13, 7), of_tenant);
      OpenOptions short_lived;
      short_lived.ttl_ms = 1;
      store(*cache, prompt(12, 8), short_lived);
      store(*cache, prompt(9));
      const auto pin = cache->pin(prompt(9), {}, {.lease_ms = 60'000});
      {
        Sequence open = cache->open(prompt(22), {}).value();
        ASSERT_TRUE(compute(open).is_ok());
        reached = fail_at(at, [&] { change.call(*cache, open); });
      }
      ASSERT_NO_FATAL_FAILURE(expect_sound(*cache));
    }
  }
}

// Any call, at any allocation, over and over in one cache.
TEST_P(CacheMemory, AnyCallAtAnyTime) {
  std::mt19937 rng(7);
  const auto cache = make();
  std::list<Sequence> open;
  std::list<Pin> pins;
  int failures = 0;
  const std::array<std::string, 3> tenants = {"", "a", "b"};
  for (int round = 0; round < 20'000; ++round) {
    const unsigned kind = rng() % 16;
    const auto length = static_cast<std::size_t>(6 + rng() % 18);
    const Tokens tokens = prompt(length, static_cast<std::int32_t>(rng() % 3));
    const std::string& tenant = tenants[rng() % tenants.size()];
    std::optional<Sequence> opened;
    std::optional<Pin> pinned;
    open.emplace_back(Sequence());
    pins.emplace_back(Pin());
    failures += fail_at(static_cast<long>(rng() % 60), [&] {
      if (kind < 6) {
        OpenOptions options;
        options.hints.tenant = tenant;
        if (rng() % 4 == 0) options.ttl_ms = 1 + rng() % 3;
        auto made = cache->open(tokens, {}, options);
        if (made) opened = std::move(made).value();
      } else if (kind < 10 && open.size() > 1) {
        Sequence& sequence = open.front();
        if (compute(sequence).is_ok()) static_cast<void>(sequence.publish().is_ok());
      } else if (kind == 10) {
        auto made = cache->pin(tokens, {}, {.lease_ms = rng() % 3});
        if (made) pinned = std::move(made).value();
      } else if (kind == 11) {
        pins.front().release();
      } else if (kind == 12) {
        static_cast<void>(cache->set_quota("a", MemoryShare{.fraction = 0.3}).is_ok());
      } else if (kind == 13) {
        EraseFilter filter;
        filter.tenant = "a";
        static_cast<void>(cache->erase(filter).is_ok());
      } else if (kind == 14) {
        static_cast<void>(cache->take_events());
        static_cast<void>(cache->explain(tokens, {}));
      } else if (rng() % 8 == 0) {
        cache->clear();
      }
    });
    open.pop_back();
    pins.pop_back();
    if (opened) {
      ASSERT_EQ(content::wrong_bytes(*opened), "") << round;
      open.push_back(std::move(*opened));
    }
    if (pinned) pins.push_back(std::move(*pinned));
    const bool close = open.size() > 2 || rng() % 4 == 0;
    if (close && !open.empty()) {
      fail_at(static_cast<long>(rng() % 8), [&] { open.front().close(); });
      open.pop_front();
    }
    if (pins.size() > 3) pins.pop_front();
  }
  EXPECT_GT(failures, 2000);
  open.clear();
  pins.clear();
  ASSERT_TRUE(cache->set_quota("a", std::nullopt).is_ok());
  ASSERT_NO_FATAL_FAILURE(expect_sound(*cache));
}

INSTANTIATE_TEST_SUITE_P(Policies, CacheMemory, testing::ValuesIn(policy_names()),
                         [](const auto& policy) { return policy.param; });

}  // namespace
}  // namespace kvcache
