// A remote tier through C, on a server in this process: what one cache publishes another finds.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "c_toy.h"
#include "fake_cluster.h"
#include "fake_valkey.h"
#include "tls_front.h"

namespace {

using kvcache::fake::Mood;
using kvcache::fake::Valkey;

constexpr std::array<int32_t, 11> kPrompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
constexpr uint64_t kPositions = kPrompt.size() - 1;

// Options of a tier, and the one place that they name.
struct Remote : kvcache_remote_options {
  explicit Remote(uint32_t port) : kvcache_remote_options(), address{"127.0.0.1", nullptr, port} {
    struct_size = sizeof(kvcache_remote_options);
    addresses = &address;
    address_count = 1;
    deadline_ms = 60'000;
  }
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;

  kvcache_remote_address address;
};

kvcache_cache* cache_with(const kvcache_remote_options* remote) {
  kvcache_options options = toy_options();
  options.remote = remote;
  kvcache_cache* cache = nullptr;
  EXPECT_EQ(toy_cache(&options, &cache), KVCACHE_OK) << kvcache_last_error();
  return cache;
}

kvcache_remote_stats stats_of(const kvcache_cache* cache) {
  kvcache_remote_stats stats = {};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(kvcache_cache_remote_stats(cache, &stats), KVCACHE_OK) << kvcache_last_error();
  return stats;
}

void serve_and_flush(const kvcache_remote_options& remote) {
  kvcache_cache* const cache = cache_with(&remote);
  EXPECT_EQ(toy_serve(cache, kPrompt.data(), kPrompt.size(), nullptr, nullptr), 0);
  const uint64_t wait_ms = 60'000;
  EXPECT_EQ(kvcache_cache_flush_remote(cache, &wait_ms), KVCACHE_OK) << kvcache_last_error();
  const kvcache_remote_stats stats = stats_of(cache);
  EXPECT_GT(stats.written_records, 0U);
  EXPECT_GT(stats.written_bytes, 0U);
  EXPECT_EQ(stats.queued_bytes, 0U);
  EXPECT_GT(stats.connects, 0U);
  EXPECT_STREQ(stats.last_error, "");
  kvcache_cache_destroy(cache);
}

// What open() restores of the prompt, which has to be right.
uint64_t restored(kvcache_cache* cache) {
  kvcache_sequence* sequence = nullptr;
  EXPECT_EQ(
      kvcache_sequence_open(cache, kPrompt.data(), kPrompt.size(), nullptr, nullptr, &sequence),
      KVCACHE_OK)
      << kvcache_last_error();
  const uint64_t cached = kvcache_sequence_cached_tokens(sequence);
  if (cached > 0) {
    EXPECT_EQ(toy_check(sequence, kPrompt.data(), cached), 0);
  }
  kvcache_sequence_destroy(sequence);
  return cached;
}

TEST(CRemote, AnotherCacheFindsWhatWasPublished) {
  Valkey server;
  server.require_password("secret");
  Remote remote(server.port());
  const uint64_t never = 0;
  remote.password = "secret";
  remote.key_prefix = "toy:";
  remote.ttl_ms = &never;
  serve_and_flush(remote);
  for (const auto& [name, value] : server.values()) EXPECT_TRUE(name.starts_with("toy:")) << name;

  kvcache_cache* cache = cache_with(&remote);
  EXPECT_EQ(restored(cache), kPositions);
  EXPECT_EQ(stats_of(cache).fetched_tokens, kPositions);
  kvcache_cache_destroy(cache);

  remote.only_prefetch = 1;
  cache = cache_with(&remote);
  EXPECT_EQ(restored(cache), 0U);
  uint64_t positions = 0;
  ASSERT_EQ(
      kvcache_cache_prefetch(cache, kPrompt.data(), kPrompt.size(), nullptr, nullptr, &positions),
      KVCACHE_OK);
  EXPECT_EQ(positions, kPositions);
  EXPECT_EQ(restored(cache), kPositions);

  kvcache_erase_filter all = {};
  all.struct_size = sizeof all;
  ASSERT_EQ(kvcache_cache_erase(cache, &all, &positions), KVCACHE_OK) << kvcache_last_error();
  EXPECT_GT(stats_of(cache).erased_records, 0U);
  EXPECT_TRUE(server.values().empty());
  kvcache_cache_destroy(cache);
}

TEST(CRemote, AServerThatFailsIsAMissAndIsCounted) {
  Valkey server;
  Remote remote(server.port());
  serve_and_flush(remote);
  server.set(Mood::kSilent);
  remote.deadline_ms = 100;
  kvcache_cache* const cache = cache_with(&remote);
  EXPECT_EQ(restored(cache), 0U);
  const kvcache_remote_stats stats = stats_of(cache);
  EXPECT_GT(stats.failures, 0U);
  EXPECT_GT(stats.timeouts, 0U);
  EXPECT_NE(std::string(stats.last_error).find("within 100 ms"), std::string::npos)
      << stats.last_error;
  kvcache_cache_destroy(cache);
}

TEST(CRemote, WrongOptionsAreRefusedAndNamed) {
  Valkey server;
  const auto refused = [&](const char* said, const std::function<void(Remote&)>& by) {
    Remote remote(server.port());
    by(remote);
    kvcache_options options = toy_options();
    options.remote = &remote;
    kvcache_cache* cache = nullptr;
    EXPECT_EQ(toy_cache(&options, &cache), KVCACHE_INVALID_ARGUMENT) << said;
    EXPECT_NE(std::string(kvcache_last_error()).find(said), std::string::npos)
        << said << ", got: " << kvcache_last_error();
    EXPECT_EQ(cache, nullptr);
  };
  const uint64_t ever = UINT64_MAX;
  refused("remote.address_count is 0", [](auto& remote) { remote.address_count = 0; });
  refused("remote.addresses is NULL", [](auto& remote) { remote.addresses = nullptr; });
  refused("host: is empty", [](auto& remote) { remote.address.host = nullptr; });
  refused("host: is empty", [](auto& remote) { remote.address.host = ""; });
  refused("a host is given as well", [](auto& remote) { remote.address.socket = "/tmp/x"; });
  refused("addresses[0].port is 65536", [](auto& remote) { remote.address.port = 65'536; });
  refused("remote.topology is 3",
          [](auto& remote) { remote.topology = static_cast<kvcache_remote_topology>(3); });
  refused("service", [](auto& remote) { remote.service = "x"; });
  refused("service", [](auto& remote) { remote.topology = KVCACHE_REMOTE_SENTINELS; });
  refused("read_threads", [](auto& remote) { remote.read_threads = 65; });
  refused("deadline_ms", [](auto& remote) { remote.deadline_ms = UINT64_MAX; });
  refused("ttl_ms", [&](auto& remote) { remote.ttl_ms = &ever; });
  refused("key_prefix", [](auto& remote) { remote.key_prefix = "{a}"; });
  kvcache_remote_tls tls = {};
  tls.struct_size = sizeof tls;
  const auto with_tls = [&](Remote& remote) { remote.tls = &tls; };
  tls.key = "/dev/null";
  refused("there is no certificate", with_tls);
  tls.key = nullptr;
  refused("a Unix socket has none", [&](auto& remote) {
    with_tls(remote);
    remote.address.host = nullptr;
    remote.address.socket = "/tmp/x";
  });
  tls.struct_size += 1;
  refused("remote.tls.struct_size", with_tls);
  refused("remote.struct_size", [](auto& remote) { remote.struct_size = 8; });
  EXPECT_EQ(server.commands(), 0);
}

TEST(CRemote, WhatIsSharedInTlsIsFoundInTls) {
  if (!kvcache::fake::Certificates::can_be_made()) {
    ASSERT_EQ(std::getenv("CI"), nullptr) << "no program openssl";
    GTEST_SKIP() << "no program openssl: Debian's package openssl";
  }
  Valkey server;
  kvcache::fake::Certificates certificates;
  certificates.make("here", "IP:127.0.0.1");
  const std::string authority = certificates.certificate("here");
  kvcache::fake::FrontOptions front;
  front.certificate = authority;
  front.key = certificates.key("here");
  const kvcache::fake::TlsFront in_tls(server.port(), front);
  kvcache_remote_tls tls = {};
  tls.struct_size = sizeof tls;
  tls.ca_file = authority.c_str();
  Remote remote(in_tls.port());
  remote.tls = &tls;
  serve_and_flush(remote);
  for (const uint32_t no_verify : {0, 1}) {
    tls.no_verify = no_verify;
    tls.ca_file = no_verify == 0 ? authority.c_str() : nullptr;
    kvcache_cache* const cache = cache_with(&remote);
    EXPECT_EQ(restored(cache), kPositions) << no_verify;
    kvcache_cache_destroy(cache);
  }
  tls.no_verify = 0;  // by the system's authorities, none of which has signed it
  kvcache_cache* const cache = cache_with(&remote);
  EXPECT_EQ(restored(cache), 0U);
  EXPECT_NE(std::string(stats_of(cache).last_error).find("certificate"), std::string::npos);
  kvcache_cache_destroy(cache);
}

TEST(CRemote, AClusterKeepsWhatWasPublished) {
  const kvcache::fake::Cluster cluster;
  std::vector<kvcache_remote_address> addresses;
  const kvcache::RemoteTierOptions nodes = cluster.options();
  for (const auto& each : nodes.addresses) {
    addresses.push_back({each.host.c_str(), nullptr, each.port});
  }
  Remote remote(0);
  remote.addresses = addresses.data();
  remote.address_count = addresses.size();
  remote.topology = KVCACHE_REMOTE_CLUSTER;
  serve_and_flush(remote);
  kvcache_cache* const cache = cache_with(&remote);
  EXPECT_EQ(restored(cache), kPositions);
  EXPECT_EQ(stats_of(cache).servers, addresses.size());
  EXPECT_EQ(stats_of(cache).failures, 0U);
  kvcache_cache_destroy(cache);
}

TEST(CRemote, WithoutATierCallsSaySo) {
  kvcache_cache* const cache = cache_with(nullptr);
  kvcache_remote_stats stats = {};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(kvcache_cache_remote_stats(cache, &stats), KVCACHE_UNSUPPORTED);
  EXPECT_EQ(kvcache_cache_flush_remote(cache, nullptr), KVCACHE_UNSUPPORTED);
  kvcache_cache_destroy(cache);
}

}  // namespace
