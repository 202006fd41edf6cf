// A tier behind several servers: who has a key is found, also when it moves; a server that is lost,
// silent or lying costs what it had and nothing else; and what servers say of each other leads
// nobody in circles.
#include "remote/servers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "fake_cluster.h"
#include "remote_records.h"
#include "served.h"

namespace kvcache {
namespace {

using namespace served;
using fake::Cluster;
using fake::Mood;
using fake::Valkey;
using remote::find;
using remote::read_back;
using remote::Record;
using remote::RemoteStore;
using remote::slot_of;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint64_t kPart = 300;  // so that records have several parts

std::vector<Record> some_records(std::size_t count = 24) {
  std::vector<Record> records;
  for (std::size_t i = 0; i < count; ++i) records.emplace_back(static_cast<std::uint8_t>(i + 1));
  return records;
}

// Which of the three nodes a record is on as long as nothing has moved.
std::size_t home(const Record& record) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string hex(64, '0');
  hex[0] = kHex[record.header.key[0] >> 4];
  hex[1] = kHex[record.header.key[0] & 15];
  return slot_of(hex) / 5462U;
}

void append_all(RemoteStore& store, const std::vector<Record>& records) {
  for (const Record& each : records) {
    const Status status = each.append_to(store);
    ASSERT_TRUE(status.is_ok()) << status.message();
  }
}

void expect_all(RemoteStore& store, const std::vector<Record>& records) {
  for (const StatusCode code : read_back(store, records)) EXPECT_EQ(code, StatusCode::kOk);
}

std::unique_ptr<Cache> make_cache(const RemoteTierOptions& remote) {
  auto plan = StatePlan::create(kHybrid.decls(), {.memory_bytes = 1 << 20, .block_tokens = kBlock});
  CacheOptions options;
  options.remote = remote;
  auto cache = Cache::create(std::move(plan).value(), options);
  EXPECT_TRUE(cache.is_ok()) << cache.status().message();
  return cache ? std::move(cache).value() : nullptr;
}

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

// ---- A cluster --------------------------------------------------------------------------------

TEST(Cluster, RecordsAreSharedOutAndFoundWithoutRedirections) {
  Cluster cluster;
  const std::vector<Record> records = some_records();
  RemoteStore writer(cluster.options(), kPart);
  append_all(writer, records);
  RemoteStore reader(cluster.options(), kPart);
  expect_all(reader, records);
  for (std::size_t i = 0; i < Cluster::kNodes; ++i) EXPECT_GT(cluster.node(i).values().size(), 8U);
  EXPECT_EQ(cluster.lessons(), 2);
  EXPECT_EQ(reader.stats().round_trips, 1U);
  EXPECT_EQ(reader.server_stats().servers, 3U);
  EXPECT_EQ(reader.server_stats().connects, 3U);
  EXPECT_EQ(reader.server_stats().redirections + writer.server_stats().redirections, 0U);
}

TEST(Cluster, CachesShareWhatTheyPublish) {
  Cluster cluster;
  const Tokens tokens = prompt(150);
  EXPECT_EQ(serve(kHybrid, *make_cache(cluster.options()), tokens), 0U);
  const auto cache = make_cache(cluster.options());
  EXPECT_EQ(serve(kHybrid, *cache, tokens), 149U);
  EXPECT_EQ(cache->remote_stats()->servers, 3U);
  EXPECT_EQ(cache->remote_stats()->failures, 0U) << cache->remote_stats()->last_error;
  ASSERT_TRUE(cache->erase({}).is_ok());
  for (std::size_t i = 0; i < Cluster::kNodes; ++i) {
    EXPECT_TRUE(cluster.node(i).values().empty()) << i;
  }
}

// All slots change hands while both have the old map.
TEST(Cluster, WhatHasMovedIsFollowedAndLearned) {
  Cluster cluster;
  const std::vector<Record> records = some_records();
  RemoteStore store(cluster.options(), kPart);
  append_all(store, records);
  std::vector<std::map<std::string, std::string>> values;
  for (std::size_t i = 0; i < Cluster::kNodes; ++i) values.push_back(cluster.node(i).values());
  cluster.rotate(true);
  for (std::size_t i = 0; i < Cluster::kNodes; ++i) {
    cluster.node(i).clear();
    for (const auto& [name, value] : values[(i + 2) % 3]) cluster.node(i).put(name, value);
  }
  std::this_thread::sleep_for(milliseconds(600));  // the map is not asked for all the time
  expect_all(store, records);
  const std::uint64_t redirections = store.server_stats().redirections;
  EXPECT_GT(redirections, 0U);
  expect_all(store, records);
  EXPECT_EQ(store.server_stats().redirections, redirections) << "it has learned";
  ASSERT_TRUE(Record(100).append_to(store).is_ok());
  EXPECT_EQ(store.server_stats().redirections, redirections);
  EXPECT_EQ(cluster.lessons(), 2);
  EXPECT_EQ(store.server_stats().failures, 0U);
}

// Nobody tells of the move but who is asked for a key.
TEST(Cluster, WhatHasMovedIsFollowedWithAnOldMap) {
  Cluster cluster;
  cluster.rotate(false);
  const std::vector<Record> records = some_records();
  RemoteStore store(cluster.options(), kPart);
  append_all(store, records);
  expect_all(store, records);
  EXPECT_EQ(store.server_stats().failures, 0U);
  EXPECT_LE(cluster.lessons(), 3);
}

// Of each record some parts have gone to another node, which has them for those who ask so.
TEST(Cluster, ASlotThatMovesIsReadFromBothSides) {
  Cluster cluster;
  const std::vector<Record> records = some_records();
  RemoteStore store(cluster.options(), kPart);
  append_all(store, records);
  for (std::size_t i = 0; i < Cluster::kNodes; ++i) {
    int count = 0;
    for (const auto& [name, value] : cluster.node(i).values()) {
      if (++count % 2 == 0 || cluster.owner(slot_of(name)) != i) continue;
      cluster.node((i + 1) % 3).put(name, value);
      cluster.node(i).remove(name);
    }
  }
  cluster.set_moving(true);
  expect_all(store, records);
  EXPECT_GT(store.server_stats().redirections, 0U);
  EXPECT_EQ(store.stats().damaged_records + store.stats().missing_records, 0U);
  // What is new is written where the slot goes.
  const std::vector<Record> fresh = {Record(200), Record(201), Record(202), Record(203)};
  append_all(store, fresh);
  EXPECT_EQ(store.stats().written_records, records.size() + fresh.size());
  append_all(store, fresh);
  EXPECT_EQ(store.stats().present_records, fresh.size());
  cluster.set_moving(false);
  cluster.rotate(false);
  RemoteStore later(cluster.options(), kPart);
  expect_all(later, fresh);
}

TEST(Cluster, NobodyIsSentInCircles) {
  for (const char* how : {"-MOVED ", "-ASK "}) {
    Cluster cluster;
    cluster.set([&](std::size_t node, std::uint16_t slot) {
      return how + std::to_string(slot) + " " + cluster.place((node + 1) % 3) + "\r\n";
    });
    RemoteStore store(cluster.options(), kPart);
    EXPECT_EQ(find(store, some_records()), std::vector<bool>(24, false));
    EXPECT_EQ(store.stats().server_errors, 1U);
    const Status status = Record(1).append_to(store);
    EXPECT_EQ(status.code(), StatusCode::kIoError);
    EXPECT_NE(status.message().find("from server to server"), std::string::npos);
    EXPECT_FALSE(store.server_stats().is_suspended);
    EXPECT_EQ(store.server_stats().failures, 0U);
    EXPECT_LE(store.server_stats().redirections, 25U * 5);
    EXPECT_LE(cluster.lessons(), 2);
  }
}

// Words that lead to nobody, or to ever new servers.
TEST(Cluster, WordsThatLeadNowhereAreMisses) {
  for (const char* where : {"", "x", ":0", "127.0.0.1:1", "127.0.0.1:99999", " ", "\x01:1"}) {
    Cluster cluster;
    cluster.set([&](std::size_t, std::uint16_t slot) {
      return "-MOVED " + std::to_string(slot) + " " + where + "\r\n";
    });
    RemoteStore store(cluster.options(2000), kPart);
    EXPECT_EQ(find(store, some_records()), std::vector<bool>(24, false)) << where;
    EXPECT_FALSE(Record(1).append_to(store).is_ok()) << where;
  }
  for (const char* refusal : {"TRYAGAIN Multiple keys", "CLUSTERDOWN The cluster is down",
                              "LOADING soon", "READONLY no", "MASTERDOWN no"}) {
    Cluster cluster;
    cluster.set([&](std::size_t, std::uint16_t) { return std::string("-") + refusal + "\r\n"; });
    RemoteStore store(cluster.options(), kPart);
    EXPECT_EQ(find(store, some_records()), std::vector<bool>(24, false));
    const Status status = Record(1).append_to(store);
    EXPECT_NE(status.message().find(refusal), std::string::npos) << status.message();
    EXPECT_EQ(store.server_stats().failures, 0U);
  }
}

TEST(Cluster, ALostNodeCostsWhatItHadAndNothingElse) {
  for (const bool silent : {false, true}) {
    Cluster cluster;
    const std::vector<Record> records = some_records();
    RemoteStore store(cluster.options(500), kPart);
    append_all(store, records);
    expect_all(store, records);
    silent ? cluster.node(1).set(Mood::kSilent) : cluster.kill(1);
    for (int round = 0; round < 3; ++round) {
      const auto start = steady_clock::now();
      const std::vector<bool> found = find(store, records);
      EXPECT_LT(seconds_since(start), 5.0);
      for (std::size_t i = 0; i < records.size(); ++i) {
        EXPECT_EQ(found[i], home(records[i]) != 1) << round << " " << i;
      }
    }
    const auto codes = read_back(store, records);
    for (std::size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(codes[i], home(records[i]) == 1 ? StatusCode::kNotFound : StatusCode::kOk) << i;
    }
    EXPECT_TRUE(store.server_stats().is_suspended);
    EXPECT_GE(store.server_stats().failures, 1U);
    EXPECT_LE(store.server_stats().failures, 4U) << "only its own";
    // Writing goes on, but to the one that is lost.
    for (std::uint8_t number = 100; number < 124; ++number) {
      const Record fresh(number);
      EXPECT_EQ(fresh.append_to(store).is_ok(), home(fresh) != 1);
      EXPECT_TRUE(home(fresh) != 1 || store.has_others());
    }
    EXPECT_GT(store.stats().dropped_records, 0U);
    if (!silent) continue;
    cluster.node(1).set(Mood::kHonest);
    std::this_thread::sleep_for(milliseconds(2100));
    expect_all(store, records);
    EXPECT_FALSE(store.server_stats().is_suspended);
  }
}

// A reply that is cut in the middle, or no reply of a server at all.
TEST(Cluster, ALyingNodeCostsWhatItHadAndNothingElse) {
  for (const Mood mood : {Mood::kGarbage, Mood::kHuge, Mood::kManyItems, Mood::kWrongType,
                          Mood::kHangsUp, Mood::kRefuses, Mood::kEndlessLine}) {
    Cluster cluster;
    const std::vector<Record> records = some_records();
    RemoteStore store(cluster.options(1000), kPart);
    append_all(store, records);
    cluster.node(2).set(mood);
    const auto codes = read_back(store, records);
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (home(records[i]) == 2) {
        EXPECT_NE(codes[i], StatusCode::kOk) << static_cast<int>(mood);
      } else {
        EXPECT_EQ(codes[i], StatusCode::kOk) << static_cast<int>(mood);
      }
    }
  }
}

TEST(Cluster, AWriterGoesOnWithTheOtherNodes) {
  Cluster cluster;
  const auto cache = make_cache(cluster.options(500));
  serve(kHybrid, *cache, prompt(20));
  ASSERT_TRUE(cache->flush_remote().is_ok());
  cluster.kill(0);
  for (std::int32_t seed = 1; seed < 9; ++seed) serve(kHybrid, *cache, prompt(20, seed));
  EXPECT_EQ(cache->flush_remote().code(), StatusCode::kIoError);
  const auto stats = cache->remote_stats();
  EXPECT_GT(stats->dropped_records, 0U);
  EXPECT_LT(stats->dropped_records, stats->written_records) << "no pause for the others";
  const auto other = make_cache(cluster.options(500));
  int whole = 0;
  for (std::int32_t seed = 1; seed < 9; ++seed) {
    whole += serve(kHybrid, *other, prompt(20, seed)) == 19;
  }
  EXPECT_GT(whole, 0);
}

TEST(Cluster, SeedsAreTriedInTurn) {
  Cluster cluster;
  Valkey silent;
  silent.set(Mood::kSilent);
  Valkey alone;  // no node of a cluster
  RemoteTierOptions options = cluster.options(3000);
  options.addresses = {{"127.0.0.1", 1},
                       {"127.0.0.1", silent.port()},
                       {"no.such.host.invalid", 1},
                       {"127.0.0.1", alone.port()},
                       {"localhost", cluster.node(1).port()}};
  RemoteStore store(options, kPart);
  append_all(store, some_records(3));
  expect_all(store, some_records(3));
  EXPECT_EQ(store.server_stats().servers, 3U);
  EXPECT_FALSE(store.server_stats().is_suspended) << "no node is";
}

TEST(Cluster, WithoutAnybodyToAskItIsLeftAlone) {
  RemoteTierOptions options;
  options.addresses = {{"127.0.0.1", 1}, {"127.0.0.1", 2}};
  options.topology = RemoteTopology::kCluster;
  RemoteStore store(options, kPart);
  EXPECT_FALSE(Record(1).append_to(store).is_ok());
  const Status again = Record(1).append_to(store);
  EXPECT_NE(again.message().find("left alone"), std::string::npos) << again.message();
  EXPECT_EQ(find(store, some_records()), std::vector<bool>(24, false));
  EXPECT_TRUE(store.server_stats().is_suspended);
  EXPECT_EQ(store.server_stats().failures, 1U);
  EXPECT_GT(store.server_stats().refused_operations, 0U);
  EXPECT_FALSE(store.has_others());
}

TEST(Cluster, AMapThatContradictsItselfIsNone) {
  const std::string node = "*2\r\n$9\r\n127.0.0.1\r\n:1\r\n";
  for (const std::string& map :
       {std::string("*0\r\n"), "*1\r\n*3\r\n:0\r\n:16384\r\n" + node,
        "*2\r\n*3\r\n:0\r\n:9\r\n" + node + "*3\r\n:9\r\n:12\r\n" + node,
        std::string("*1\r\n*3\r\n:0\r\n:9\r\n*1\r\n$1\r\nh\r\n"), std::string("+OK\r\n"),
        std::string("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"), std::string("*70000\r\n")}) {
    Valkey server;
    server.set([&](const Valkey::Words& words, bool) { return words[0] == "CLUSTER" ? map : ""; });
    RemoteTierOptions options;
    options.addresses = {{"127.0.0.1", server.port()}};
    options.topology = RemoteTopology::kCluster;
    RemoteStore store(options, kPart);
    EXPECT_FALSE(Record(1).append_to(store).is_ok()) << map;
    EXPECT_TRUE(store.server_stats().is_suspended) << map;
    EXPECT_TRUE(server.values().empty());
  }
}

TEST(Cluster, ManyThreadsShareItWhileNodesComeAndGo) {
  Cluster cluster;
  RemoteStore store(cluster.options(2000), kPart);
  const std::vector<Record> records = some_records();
  append_all(store, records);
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 30; ++round) {
        for (const StatusCode code : read_back(store, records)) {
          EXPECT_NE(code, StatusCode::kCorruption);
        }
      }
    });
  }
  for (int round = 0; round < 6; ++round) {
    std::this_thread::sleep_for(milliseconds(20));
    cluster.node(static_cast<std::size_t>(round) % 3).hang_up();
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(store.stats().damaged_records, 0U);
  EXPECT_EQ(store.server_stats().timeouts, 0U);
}

TEST(Cluster, ANodeThatIsTakenForTheWholeSaysSo) {
  Cluster cluster;
  cluster.rotate(false);
  RemoteTierOptions options;
  options.addresses = {{"127.0.0.1", cluster.node(0).port()}};
  RemoteStore store(options, kPart);
  const Status status = Record(1).append_to(store);
  const bool told =
      status.is_ok() || status.message().find("valkey+cluster://") != std::string::npos;
  EXPECT_TRUE(told) << status.message();
  find(store, some_records());
  EXPECT_NE(store.stats().last_error.find("valkey+cluster://"), std::string::npos);
}

// ---- Sentinels --------------------------------------------------------------------------------

// Servers of which sentinels name one.
struct Guarded {
  Valkey sentinels[3];
  Valkey servers[2];
  std::atomic<int> primary = 0;

  Guarded() {
    for (Valkey& sentinel : sentinels) {
      sentinel.set([this](const Valkey::Words& words, bool) {
        if (words[0] != "SENTINEL") return std::string("-ERR no data here\r\n");
        if (words.size() != 3 || words[2] != "svc") return std::string("*-1\r\n");
        return "*2\r\n" + Valkey::bulk("127.0.0.1") +
               Valkey::bulk(std::to_string(servers[primary].port()));
      });
    }
    for (int i = 0; i < 2; ++i) {
      servers[i].set([this, i](const Valkey::Words& words, bool) {
        if (words[0] != "ROLE") return std::string();
        return i == primary ? "*3\r\n$6\r\nmaster\r\n:1\r\n*1\r\n*3\r\n$1\r\nh\r\n$1\r\n1\r\n:1\r\n"
                            : std::string("*3\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n");
      });
    }
  }
  RemoteTierOptions options(std::uint64_t deadline_ms = 60'000) const {
    RemoteTierOptions options;
    for (const Valkey& each : sentinels) options.addresses.push_back({"127.0.0.1", each.port()});
    options.topology = RemoteTopology::kSentinels;
    options.service = "svc";
    options.deadline_ms = deadline_ms;
    return options;
  }
};

TEST(Sentinels, AFailoverCostsMissesForAMoment) {
  Guarded guarded;
  RemoteStore store(guarded.options(), kPart);
  const std::vector<Record> records = some_records(4);
  append_all(store, records);
  expect_all(store, records);
  for (const auto& [name, value] : guarded.servers[0].values()) guarded.servers[1].put(name, value);
  guarded.servers[0].set(Mood::kHangsUp);
  guarded.servers[0].hang_up();
  guarded.primary = 1;
  const auto end = steady_clock::now() + std::chrono::seconds(10);
  while (find(store, records) != std::vector<bool>(4, true) && steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  expect_all(store, records);
  ASSERT_TRUE(Record(9).append_to(store).is_ok());
  EXPECT_GT(guarded.servers[1].values().size(), guarded.servers[0].values().size());
  EXPECT_FALSE(store.server_stats().is_suspended);
  EXPECT_EQ(store.server_stats().servers, 1U);
}

// The sentinels still name a server that has become a replica.
TEST(Sentinels, WhatIsNoPrimaryIsNotUsed) {
  Guarded guarded;
  guarded.servers[0].set([](const Valkey::Words& words, bool) {
    return words[0] == "ROLE" ? "*3\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n" : "";
  });
  RemoteStore store(guarded.options(), kPart);
  const Status status = Record(1).append_to(store);
  EXPECT_NE(status.message().find("no primary, but a slave"), std::string::npos)
      << status.message();
  EXPECT_TRUE(guarded.servers[0].values().empty());
  guarded.primary = 1;
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_TRUE(Record(1).append_to(store).is_ok() || Record(1).append_to(store).is_ok());
  EXPECT_FALSE(guarded.servers[1].values().empty());
}

TEST(Sentinels, TheyAreAskedInTurnAndHaveALoginOfTheirOwn) {
  Guarded guarded;
  guarded.sentinels[0].set(Mood::kSilent);
  guarded.sentinels[1].set(Mood::kGarbage);
  guarded.sentinels[2].require_password("guide");
  guarded.servers[0].require_password("secret");
  RemoteTierOptions options = guarded.options(2000);
  options.password = "secret";
  options.sentinel_password = "guide";
  RemoteStore store(options, kPart);
  append_all(store, some_records(3));
  expect_all(store, some_records(3));
  EXPECT_FALSE(store.server_stats().is_suspended) << "the primary is well";
  options.sentinel_password = "guess";
  RemoteStore refused(options, kPart);
  const Status status = Record(1).append_to(refused);
  EXPECT_NE(status.message().find("WRONGPASS"), std::string::npos) << status.message();
  options = guarded.options(2000);
  options.service = "other";
  options.addresses = {{"127.0.0.1", guarded.sentinels[2].port()}};
  options.sentinel_password = "guide";
  RemoteStore unknown(options, kPart);
  EXPECT_NE(Record(1).append_to(unknown).message().find("does not know this service"),
            std::string::npos);
}

}  // namespace
}  // namespace kvcache
