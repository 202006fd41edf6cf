// Caches that share a server: what one published another finds, the same to the byte, for models
// with and without windows and fixed-size state; a server that is down, slow, full, emptied or
// lying is a miss.
#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "fake_valkey.h"
#include "remote/remote_store.h"
#include "remote_records.h"
#include "served.h"
#include "tier_files.h"

namespace kvcache {
namespace {

using namespace served;
using fake::Mood;
using fake::Valkey;
using persist::Digest;
using persist::Located;
using persist::RecordHeader;
using persist::RecordKind;
using persist::RecordRead;
using remote::read_back;
using remote::Record;
using remote::RemoteStore;

constexpr Mood kLies[] = {Mood::kSilent,    Mood::kGarbage,   Mood::kHuge,
                          Mood::kManyItems, Mood::kWrongType, Mood::kDribbles,
                          Mood::kHangsUp,   Mood::kRefuses,   Mood::kEndlessLine};

RemoteTierOptions at(const Valkey& server, std::uint64_t deadline_ms = 60'000) {
  RemoteTierOptions options;
  options.addresses = {{"127.0.0.1", server.port()}};
  options.deadline_ms = deadline_ms;
  return options;
}

std::unique_ptr<Cache> make_cache(const Model& model, const RemoteTierOptions& remote,
                                  const DiskTierOptions& disk = {},
                                  const std::string& weights = "") {
  auto plan = StatePlan::create(model.decls(), {.memory_bytes = 1 << 20, .block_tokens = kBlock});
  CacheOptions options;
  options.remote = remote;
  options.disk = disk;
  options.weights = weights;
  auto cache = Cache::create(std::move(plan).value(), options);
  EXPECT_TRUE(cache.is_ok()) << cache.status().message();
  return cache ? std::move(cache).value() : nullptr;
}

TEST(RemoteTier, AnotherCacheFindsWhatWasPublished) {
  for (const Model& model : kModels) {
    for (const std::uint64_t length : {2, 9, 16, 41, 150}) {
      Valkey server;
      const Tokens tokens = prompt(length);
      EXPECT_EQ(serve(model, *make_cache(model, at(server)), tokens), 0U);
      for (int other = 0; other < 2; ++other) {
        const auto cache = make_cache(model, at(server));
        const std::uint64_t cached = serve(model, *cache, tokens);
        EXPECT_GE(cached + kBlock, least_hit(length) + kBlock) << length;
        EXPECT_TRUE(!model.state || cached == length - 1) << cached << " of " << length;
        EXPECT_EQ(cache->remote_stats()->fetches, cached > 0 ? 1U : 0U);
        EXPECT_EQ(cache->remote_stats()->damaged_records, 0U);
        ASSERT_TRUE(cache->flush_remote().is_ok());
        EXPECT_EQ(cache->remote_stats()->failures, 0U) << cache->remote_stats()->last_error;
      }
    }
  }
}

TEST(RemoteTier, WhatIsThereIsNotWrittenAgain) {
  Valkey server;
  const auto first = make_cache(kHybrid, at(server));
  serve(kHybrid, *first, prompt(60));
  ASSERT_TRUE(first->flush_remote().is_ok());
  const auto stored = server.values();
  RemoteTierOptions blind = at(server);
  blind.at_open = false;
  const auto second = make_cache(kHybrid, blind);
  EXPECT_EQ(serve(kHybrid, *second, prompt(60)), 0U);
  ASSERT_TRUE(second->flush_remote().is_ok());
  EXPECT_EQ(second->remote_stats()->written_records, 0U);
  EXPECT_EQ(second->remote_stats()->present_records, first->remote_stats()->written_records);
  EXPECT_TRUE(server.values() == stored);
}

TEST(RemoteTier, SpacesAndWeightsDoNotMeet) {
  Valkey server;
  serve(kHybrid, *make_cache(kHybrid, at(server), {}, "w1"), prompt(40), {"n", "a", "s"});
  const auto cache = make_cache(kHybrid, at(server), {}, "w1");
  EXPECT_EQ(*cache->prefetch(prompt(40), {}), 0U);
  EXPECT_EQ(*cache->prefetch(prompt(40), {"n", "a", ""}), 0U);
  cache->bump_epoch("w2");
  EXPECT_EQ(*cache->prefetch(prompt(40), {"n", "a", "s"}), 0U);
  cache->bump_epoch("w1");
  EXPECT_EQ(*cache->prefetch(prompt(40), {"n", "a", "s"}), 39U);
  EXPECT_EQ(*make_cache(kFull, at(server), {}, "w1")->prefetch(prompt(40), {"n", "a", "s"}), 0U);
}

// Behind the last run that is there nothing is asked for, however long the prompt is.
TEST(RemoteTier, ALookupStopsWhereNothingIs) {
  Valkey server;
  const auto cache = make_cache(kFull, at(server));
  EXPECT_EQ(*cache->prefetch(prompt(4000), {}), 0U);
  EXPECT_EQ(server.commands(), 64);
  serve(kFull, *make_cache(kFull, at(server)), prompt(200));
  const int before = server.commands();
  EXPECT_GE(*cache->prefetch(prompt(4000), {}), 196U);
  EXPECT_LT(server.commands() - before, 64 + 936 + 20);
  EXPECT_EQ(cache->remote_stats()->round_trips, 3U);
}

TEST(RemoteTier, DamageIsAMissAndIsRemoved) {
  Valkey server;
  const Tokens tokens = prompt(60);
  serve(kHybrid, *make_cache(kHybrid, at(server)), tokens);
  const auto whole = server.values();
  std::uint64_t damaged = 0;
  std::uint64_t misses = 0;
  for (const auto& [name, value] : whole) {
    for (std::size_t byte = 0; byte < value.size(); byte += 97) {
      server.clear();
      for (const auto& [each, right] : whole) server.put(each, right);
      std::string wrong = value;
      wrong[byte] = static_cast<char>(wrong[byte] ^ 4);
      server.put(name, wrong);
      const auto cache = make_cache(kHybrid, at(server));
      auto sequence = cache->open(tokens, {});
      ASSERT_TRUE(sequence.is_ok());
      expect_right(kHybrid, *sequence, name + " byte " + std::to_string(byte));
      misses += sequence->cached_tokens() < 59;
      const auto stats = cache->remote_stats();
      damaged += stats->damaged_records;
      EXPECT_EQ(server.values().contains(name), stats->damaged_records == 0);
      if (stats->damaged_records > 0) {
        EXPECT_NE(stats->last_error, "");
      }
    }
  }
  EXPECT_GT(misses, 20U);
  EXPECT_GE(damaged, misses);
}

TEST(RemoteTier, ShortenedSwappedAndForeignValuesAreMisses) {
  Valkey server;
  const Tokens tokens = prompt(60);
  serve(kHybrid, *make_cache(kHybrid, at(server)), tokens);
  const auto whole = server.values();
  const std::string other = whole.rbegin()->second;
  for (const auto& [name, value] : whole) {
    for (const std::string& wrong : {std::string("x"), value.substr(0, value.size() - 1),
                                     value.substr(0, 192), value + "x", other}) {
      if (wrong == value) continue;
      server.put(name, wrong);
      const auto cache = make_cache(kHybrid, at(server));
      auto sequence = cache->open(tokens, {});
      ASSERT_TRUE(sequence.is_ok());
      expect_right(kHybrid, *sequence, name);
      server.put(name, value);
    }
  }
}

TEST(RemoteTier, ALyingServerIsAMissWithinTheDeadline) {
  for (const Mood mood : kLies) {
    Valkey server;
    const Tokens tokens = prompt(60);
    serve(kHybrid, *make_cache(kHybrid, at(server)), tokens);
    server.set(mood);
    const auto cache = make_cache(kHybrid, at(server, 50));
    EXPECT_EQ(serve(kHybrid, *cache, tokens), 0U) << static_cast<int>(mood);
    EXPECT_FALSE(cache->flush_remote().is_ok()) << static_cast<int>(mood);
    const auto stats = cache->remote_stats();
    EXPECT_GT(stats->failures, 0U) << static_cast<int>(mood);
    EXPECT_NE(stats->last_error, "");
    EXPECT_EQ(serve(kHybrid, *cache, tokens), 59U) << "from memory";
    // It comes back, and so does what it holds.
    server.set(Mood::kHonest);
    const auto after = make_cache(kHybrid, at(server));
    EXPECT_EQ(serve(kHybrid, *after, tokens), 59U) << static_cast<int>(mood);
  }
}

// Replies that are one too many are not taken for those to other commands, by which whole records
// would pass for damaged ones.
TEST(RemoteTier, ATalkativeServerLosesNothing) {
  Valkey server;
  serve(kHybrid, *make_cache(kHybrid, at(server)), prompt(60));
  const auto stored = server.values();
  server.set(Mood::kTalkative);
  const auto cache = make_cache(kHybrid, at(server));
  serve(kHybrid, *cache, prompt(60));
  serve(kHybrid, *cache, prompt(60, 1));
  static_cast<void>(cache->flush_remote());
  EXPECT_EQ(cache->remote_stats()->damaged_records, 0U) << cache->remote_stats()->last_error;
  for (const auto& [name, value] : stored) EXPECT_EQ(server.values()[name], value) << name;
}

// The server changes its mind at some command, between a lookup and the end of its read.
TEST(RemoteTier, AServerThatFailsHalfwayIsAMiss) {
  Valkey server;
  const Tokens tokens = prompt(60);
  serve(kHybrid, *make_cache(kHybrid, at(server)), tokens);
  for (const Mood mood : kLies) {
    for (int wait_us : {0, 100, 300, 1000}) {
      server.set(Mood::kHonest);
      const auto cache = make_cache(kHybrid, at(server, 50));
      std::thread spoiler([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
        server.set(mood);
      });
      auto sequence = cache->open(tokens, {});
      spoiler.join();
      ASSERT_TRUE(sequence.is_ok());
      expect_right(kHybrid, *sequence, "mood " + std::to_string(static_cast<int>(mood)));
    }
  }
}

TEST(RemoteTier, AFullServerTakesNothingMoreAndStillServes) {
  Valkey server;
  const auto cache = make_cache(kHybrid, at(server));
  serve(kHybrid, *cache, prompt(60));
  ASSERT_TRUE(cache->flush_remote().is_ok());
  server.set(Mood::kFull);
  serve(kHybrid, *cache, prompt(60, 1));
  EXPECT_EQ(cache->flush_remote().code(), StatusCode::kIoError);
  const auto stats = cache->remote_stats();
  EXPECT_GT(stats->write_errors, 0U);
  EXPECT_NE(stats->last_error.find("OOM"), std::string::npos) << stats->last_error;
  EXPECT_FALSE(stats->is_suspended);
  EXPECT_EQ(*make_cache(kHybrid, at(server))->prefetch(prompt(60), {}), 59U);
}

TEST(RemoteTier, AnEmptiedServerIsFilledAgain) {
  for (const bool restarts : {false, true}) {
    Valkey server;
    const auto cache = make_cache(kHybrid, at(server));
    serve(kHybrid, *cache, prompt(60));
    ASSERT_TRUE(cache->flush_remote().is_ok());
    const auto stored = server.values();
    server.clear();
    if (restarts) server.hang_up();
    cache->clear();
    EXPECT_EQ(serve(kHybrid, *cache, prompt(60)), 0U);
    ASSERT_TRUE(cache->flush_remote().is_ok());
    EXPECT_TRUE(server.values() == stored);
  }
}

TEST(RemoteTier, WhatTheServerDroppedInBetweenIsAMiss) {
  Valkey server;
  serve(kHybrid, *make_cache(kHybrid, at(server)), prompt(60));
  const auto whole = server.values();
  for (const auto& [name, value] : whole) {
    server.remove(name);
    const auto cache = make_cache(kHybrid, at(server));
    auto sequence = cache->open(prompt(60), {});
    ASSERT_TRUE(sequence.is_ok());
    expect_right(kHybrid, *sequence, name);
    EXPECT_EQ(cache->remote_stats()->damaged_records, 0U);
    server.put(name, value);
  }
}

TEST(RemoteTier, MemoryComesFirstThenDiskThenTheServer) {
  const persist::files::Directory directory;
  Valkey server;
  {
    const auto cache = make_cache(kHybrid, at(server), tier(directory.tier()));
    serve(kHybrid, *cache, prompt(60));
    ASSERT_TRUE(cache->flush_remote().is_ok());
    ASSERT_TRUE(cache->flush_disk().is_ok());
    serve(kHybrid, *cache, prompt(60));
    EXPECT_EQ(cache->disk_stats()->fetches + cache->remote_stats()->fetches, 0U);
  }
  {
    const auto cache = make_cache(kHybrid, at(server), tier(directory.tier()));
    EXPECT_EQ(serve(kHybrid, *cache, prompt(60)), 59U);
    EXPECT_EQ(cache->disk_stats()->fetches, 1U);
    EXPECT_EQ(cache->remote_stats()->fetches, 0U);
  }
  // Another machine has another disk, which gets what the server had.
  const auto cache = make_cache(kHybrid, at(server), tier(directory.tier("other")));
  EXPECT_EQ(serve(kHybrid, *cache, prompt(60)), 59U);
  EXPECT_EQ(cache->disk_stats()->fetches, 0U);
  EXPECT_EQ(cache->remote_stats()->fetches, 1U);
  ASSERT_TRUE(cache->flush_disk().is_ok());
  EXPECT_GT(cache->disk_stats()->written_records, 0U);
}

TEST(RemoteTier, WhatIsErasedIsGoneForAll) {
  Valkey server;
  const auto cache = make_cache(kHybrid, at(server));
  serve(kHybrid, *cache, prompt(60), {.name = "a", .adapter = "", .salt = ""});
  serve(kHybrid, *cache, prompt(60), {.name = "b", .adapter = "", .salt = ""});
  ASSERT_TRUE(cache->flush_remote().is_ok());
  EraseFilter filter;
  filter.name = "a";
  ASSERT_TRUE(cache->erase(filter).is_ok());
  EXPECT_GT(cache->remote_stats()->erased_records, 0U);
  const auto other = make_cache(kHybrid, at(server));
  EXPECT_EQ(*other->prefetch(prompt(60), {.name = "a", .adapter = "", .salt = ""}), 0U);
  EXPECT_EQ(*other->prefetch(prompt(60), {.name = "b", .adapter = "", .salt = ""}), 59U);
  server.set(Mood::kRefuses);
  EXPECT_EQ(cache->erase({}).status().code(), StatusCode::kIoError);
}

TEST(RemoteTier, WrongOptionsAndCallsAreRefused) {
  auto plan = StatePlan::create(kFull.decls(), {.memory_bytes = 1 << 20, .block_tokens = kBlock});
  const auto refused = [&](auto&& change) {
    CacheOptions options;
    options.remote.addresses = {{"127.0.0.1", 6379}};
    change(options);
    return Cache::create(*plan, options).status().code();
  };
  const auto refused_address = [&](const RemoteAddress& address) {
    return refused([&](CacheOptions& o) { o.remote.addresses = {address}; });
  };
  for (const RemoteAddress& wrong :
       {RemoteAddress{"127.0.0.1", 0}, RemoteAddress{"127.0.0.1", 1, "/x"}, RemoteAddress{"", 1},
        RemoteAddress{std::string("127.0.0.1\0x", 11), 1},
        RemoteAddress{"", 1, std::string("/x\0", 3)}}) {
    EXPECT_EQ(refused_address(wrong), StatusCode::kInvalidArgument) << wrong.host << wrong.socket;
  }
  for (const auto topology : {RemoteTopology::kCluster, RemoteTopology::kSentinels}) {
    EXPECT_EQ(refused([&](CacheOptions& o) {
                o.remote.topology = topology;
                o.remote.service = topology == RemoteTopology::kCluster ? "" : "svc";
                o.remote.addresses = {{"", 1, "/x"}};
              }),
              StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(refused([](CacheOptions& o) { o.remote.addresses.resize(2, {"x", 1}); }),
            StatusCode::kInvalidArgument)
      << "one server has one address";
  EXPECT_EQ(refused([](CacheOptions& o) {
              o.remote.topology = RemoteTopology::kCluster;
              o.remote.addresses.resize(101, {"x", 1});
            }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](CacheOptions& o) { o.remote.topology = RemoteTopology::kSentinels; }),
            StatusCode::kInvalidArgument)
      << "of which service?";
  EXPECT_EQ(refused([](CacheOptions& o) { o.remote.sentinel_password = "x"; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](CacheOptions& o) { o.remote.deadline_ms = 0; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](CacheOptions& o) { o.remote.read_threads = 0; }),
            StatusCode::kInvalidArgument);
  for (const char* wrong : {"a{b", "a b", "*", "\n"}) {
    EXPECT_EQ(refused([&](CacheOptions& o) { o.remote.key_prefix = wrong; }),
              StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(refused([](CacheOptions& o) { o.remote.ttl_ms = UINT64_MAX; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](CacheOptions& o) { o.backing = false; }), StatusCode::kUnsupported);
  const auto cache = served::make_cache(kFull, {});
  EXPECT_EQ(cache->flush_remote().code(), StatusCode::kUnsupported);
  EXPECT_EQ(cache->remote_stats().status().code(), StatusCode::kUnsupported);
}

// A boundary that says to continue an earlier block than its own: what lies between is nowhere.
TEST(RemoteTier, ABoundaryContinuesItsOwnBlockAlone) {
  Valkey server;
  const Tokens tokens = prompt(60);
  serve(kHybrid, *make_cache(kHybrid, at(server)), tokens);
  const auto hex = [](const Digest& digest) {
    return persist::tier_id_text(*reinterpret_cast<const persist::TierId*>(&digest[0])) +
           persist::tier_id_text(*reinterpret_cast<const persist::TierId*>(&digest[16]));
  };
  const auto header_of = [](const std::string& value) {
    persist::RecordHeaderBytes bytes;
    std::memcpy(bytes.data(), value.data(), bytes.size());
    return *persist::decode_record(bytes, 0, 0);
  };
  Digest middle{};
  std::string name;
  std::string record;
  for (const auto& [each, value] : server.values()) {
    const RecordHeader header = header_of(value);
    if (header.kind == RecordKind::kRun && header.first == 28) middle = header.parent;
    if (header.kind == RecordKind::kBoundary && header.end() == 59) name = each, record = value;
  }
  ASSERT_FALSE(name.empty());
  RecordHeader header = header_of(record);
  const std::string rest = record.substr(persist::kRecordHeaderBytes + 4 * header.tokens);
  header.parent = middle;
  header.first = 28;
  header.tokens = 31;
  header.tokens_crc = crc32c(0, &tokens[28], 31 * sizeof(tokens[0]));
  const persist::RecordHeaderBytes bytes = encode(header);
  record = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) +
           std::string(reinterpret_cast<const char*>(&tokens[28]), 31 * sizeof(tokens[0])) + rest;
  server.put(name, record);
  server.put("kvcache:1:{" + hex(middle) + "}b" + hex(header.key) + ".0", record);
  const auto cache = make_cache(kHybrid, at(server));
  auto sequence = cache->open(tokens, {});
  ASSERT_TRUE(sequence.is_ok());
  EXPECT_NE(sequence->cached_tokens(), 59U);
  expect_right(kHybrid, *sequence, "a boundary of another block");
  EXPECT_EQ(cache->remote_stats()->damaged_records, 1U);
  EXPECT_FALSE(server.values().contains(name)) << "so that it can be written again";
}

// ---- Records in parts -------------------------------------------------------------------------

TEST(RemoteStore, LongRecordsAreSplitAndPutTogether) {
  Valkey server;
  for (const std::uint64_t part : {193, 300, 1000, 100'000}) {
    server.clear();
    RemoteStore store(at(server), part);
    std::vector<Record> records;
    for (std::uint8_t i = 0; i < 8; ++i) records.emplace_back(i, 1 + 200 * i);
    for (const Record& each : records) ASSERT_TRUE(each.append_to(store).is_ok());
    for (const StatusCode code : read_back(store, records)) EXPECT_EQ(code, StatusCode::kOk);
    for (const auto& [name, value] : server.values()) EXPECT_LE(value.size(), part) << name;
    EXPECT_EQ(store.stats().written_records, 8U);
  }
}

TEST(RemoteStore, AMissingOrWrongPartIsToldAndTheOthersAreRead) {
  Valkey server;
  RemoteStore store(at(server), 300);
  const std::vector<Record> records = {Record(1), Record(2), Record(3), Record(4)};
  for (const Record& each : records) ASSERT_TRUE(each.append_to(store).is_ok());
  const auto name = [&](std::size_t i, const char* part) {
    constexpr char kHex[] = "0123456789abcdef";
    std::string hex(64, '0');
    hex[1] = kHex[records[i].header.key[0]];
    return "kvcache:1:{" + hex + "}r." + part;
  };
  ASSERT_TRUE(server.values().contains(name(0, "2")));
  server.remove(name(0, "2"));
  server.put(name(1, "1"), "short");
  server.put(name(3, "3"), std::string(300, 'x'));
  const std::vector<StatusCode> codes = read_back(store, records);
  EXPECT_EQ(codes[0], StatusCode::kNotFound);
  EXPECT_EQ(codes[1], StatusCode::kCorruption);
  EXPECT_EQ(codes[2], StatusCode::kOk);
  EXPECT_EQ(codes[3], StatusCode::kCorruption);
  // Nothing of it is left, so that it can be written again.
  const auto located = store.find_runs({&records[0].header.key, 1});
  store.forget(*located[0], Status::not_found("for the test"));
  EXPECT_FALSE(server.values().contains(name(0, "0")));
  EXPECT_FALSE(server.values().contains(name(0, "3")));
  EXPECT_EQ(store.stats().missing_records, 1U);
  ASSERT_TRUE(records[0].append_to(store, "somebody else").is_ok());
  EXPECT_EQ(read_back(store, {&records[0], 1})[0], StatusCode::kOk);
}

TEST(RemoteStore, TheFirstToWriteStays) {
  Valkey server;
  RemoteStore first(at(server), 300);
  RemoteStore second(at(server), 300);
  ASSERT_TRUE(Record(1).append_to(first, "first").is_ok());
  const auto stored = server.values();
  ASSERT_TRUE(Record(1).append_to(second, "second").is_ok());
  EXPECT_TRUE(server.values() == stored);
  EXPECT_EQ(second.stats().present_records, 1U);
  EXPECT_EQ(second.stats().written_records, 0U);
}

}  // namespace
}  // namespace kvcache
