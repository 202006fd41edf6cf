// The process runs out of memory while it talks to a server: the caller is told, no place among the
// connections is lost, and no thread ends the process.
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <optional>

#include "failing_new.h"
#include "fake_cluster.h"
#include "fake_valkey.h"
#include "remote/connections.h"
#include "remote_records.h"
#include "served.h"
#include "tls_front.h"

namespace kvcache {
namespace {

using namespace served;
using fake::Valkey;
using remote::Connections;
using remote::Deadline;
using remote::RespClient;

// Lets the first, second, ... allocation of a call fail until none is left that would.
int fail_each_allocation(const std::function<void()>& call) {
  for (int at = 0;; ++at) {
    remaining = at;
    bool failed = false;
    try {
      call();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    const bool reached = remaining < 0;
    remaining = -1;
    if (!reached && !failed) return at;
  }
}

// At every allocation of a command over a connection that may have to be made.
void expect_no_connection_lost(std::uint16_t port, const remote::Login& login) {
  Connections connections({"127.0.0.1", port, ""}, login, 1);
  const Deadline deadline = Deadline::after_ms(20'000);
  const auto ask = [&] {
    return connections.run(deadline, [&](RespClient& client) {
      remote::Commands commands;
      commands.add({"STRLEN", "x"});
      if (Status sent = client.send(commands, deadline); !sent) return sent;
      remote::Reply reply;
      return client.receive({}, reply, deadline);
    });
  };
  EXPECT_GT(fail_each_allocation([&] { static_cast<void>(ask()); }), 3);
  EXPECT_TRUE(ask().is_ok());
  EXPECT_EQ(connections.stats().timeouts, 0U);
}

TEST(RemoteMemory, NoConnectionIsLost) {
  Valkey server;
  expect_no_connection_lost(server.port(), {});
}

TEST(RemoteMemory, NoConnectionInTlsIsLost) {
  if (!fake::Certificates::can_be_made()) GTEST_SKIP() << "no program openssl";
  const fake::Certificates certificates;
  certificates.make("here", "IP:127.0.0.1");
  fake::FrontOptions options;
  options.certificate = certificates.certificate("here");
  options.key = certificates.key("here");
  Valkey server;
  fake::TlsFront front(server.port(), options);
  RemoteTlsOptions trusting;
  trusting.enabled = true;
  trusting.ca_file = options.certificate;
  remote::Login login;
  login.tls = remote::TlsContext::create(trusting).value();
  expect_no_connection_lost(front.port(), login);
}

// Whoever learns who has which keys leaves that to others.
TEST(RemoteMemory, NoClusterIsForgotten) {
  fake::Cluster cluster;
  remote::Record record(1);
  std::optional<remote::RemoteStore> store;
  const auto find = [&] {
    if (!store) store.emplace(cluster.options(20'000), 300);
    static_cast<void>(store->find_runs({&record.header.key, 1}));
  };
  for (int at = 0; at < 400; ++at) {
    store.reset();
    remaining = at;
    try {
      find();
    } catch (const std::bad_alloc&) {
    }
    const bool reached = remaining < 0;
    remaining = -1;
    find();
    find();
    EXPECT_EQ(store->server_stats().servers, 3U) << at;
    EXPECT_EQ(store->server_stats().timeouts, 0U) << at;
    if (!reached) return;
  }
  ADD_FAILURE() << "never ended";
}

void read_without_memory(RemoteTierOptions remote) {
  remote.read_threads = 2;
  const auto make = [&] {
    auto plan =
        StatePlan::create(kHybrid.decls(), {.memory_bytes = 1 << 20, .block_tokens = kBlock});
    CacheOptions options;
    options.remote = remote;
    return Cache::create(std::move(plan).value(), options).value();
  };
  const Tokens tokens = prompt(150);
  serve(kHybrid, *make(), tokens);
  for (long at = 0; at < 2000; at += at < 40 ? 1 : 7) {
    const auto cache = make();
    remaining = at;
    std::optional<Result<Sequence>> sequence;
    try {
      sequence.emplace(cache->open(tokens, {}));
    } catch (const std::bad_alloc&) {
    }
    const bool reached = remaining < 0;
    remaining = -1;
    if (!reached) return;
  }
  ADD_FAILURE() << "never ended";
}

TEST(RemoteMemory, AThreadThatReadsDoesNotEndTheProcess) {
  Valkey server;
  RemoteTierOptions remote;
  remote.addresses = {{"127.0.0.1", server.port()}};
  read_without_memory(remote);
  fake::Cluster cluster;
  read_without_memory(cluster.options());
}

}  // namespace
}  // namespace kvcache
