// Caches that share a server in TLS: what one published another finds, and a server that lies or
// goes away behind its certificate is a miss, as it is in the clear.
#include <gtest/gtest.h>

#include "fake_valkey.h"
#include "served.h"
#include "tls_front.h"

namespace kvcache {
namespace {

using namespace served;
using fake::Certificates;
using fake::Mood;
using fake::TlsFront;
using fake::Valkey;

class RemoteTls : public testing::Test {
 protected:
  void SetUp() override {
    if (!Certificates::can_be_made()) {
      ASSERT_EQ(std::getenv("CI"), nullptr) << "no program openssl";
      GTEST_SKIP() << "no program openssl: Debian's package openssl";
    }
    certificates_.make("here", "IP:127.0.0.1");
    fake::FrontOptions front;
    front.certificate = certificates_.certificate("here");
    front.key = certificates_.key("here");
    front_ = std::make_unique<TlsFront>(server_.port(), front);
  }

  RemoteTierOptions options(std::uint64_t deadline_ms = 60'000) const {
    RemoteTierOptions options;
    options.addresses = {{"127.0.0.1", front_->port()}};
    options.deadline_ms = deadline_ms;
    options.tls.enabled = true;
    options.tls.ca_file = certificates_.certificate("here");
    return options;
  }
  static Result<std::unique_ptr<Cache>> create(const RemoteTierOptions& remote) {
    auto plan =
        StatePlan::create(kHybrid.decls(), {.memory_bytes = 1 << 20, .block_tokens = kBlock});
    CacheOptions options;
    options.remote = remote;
    return Cache::create(std::move(plan).value(), options);
  }

  Certificates certificates_;
  Valkey server_;
  std::unique_ptr<TlsFront> front_;
};

TEST_F(RemoteTls, AnotherCacheFindsWhatWasPublished) {
  for (const std::uint64_t length : {2, 41, 150}) {
    serve(kHybrid, **create(options()), prompt(length));
    const auto cache = create(options()).value();
    EXPECT_EQ(serve(kHybrid, *cache, prompt(length)), length - 1);
    const auto stats = cache->remote_stats();
    EXPECT_EQ(stats->failures + stats->damaged_records, 0U) << stats->last_error;
  }
}

TEST_F(RemoteTls, ALyingServerIsAMissWithinTheDeadline) {
  const Tokens tokens = prompt(60);
  serve(kHybrid, **create(options()), tokens);
  for (const Mood mood : {Mood::kSilent, Mood::kGarbage, Mood::kHuge, Mood::kDribbles,
                          Mood::kHangsUp, Mood::kRefuses, Mood::kEndlessLine}) {
    server_.set(mood);
    const auto cache = create(options(200)).value();
    EXPECT_EQ(serve(kHybrid, *cache, tokens), 0U) << static_cast<int>(mood);
    EXPECT_FALSE(cache->flush_remote().is_ok()) << static_cast<int>(mood);
    EXPECT_GT(cache->remote_stats()->failures, 0U) << static_cast<int>(mood);
    EXPECT_NE(cache->remote_stats()->last_error, "");
    EXPECT_EQ(serve(kHybrid, *cache, tokens), 59U) << "from memory";
    server_.set(Mood::kHonest);
    EXPECT_EQ(serve(kHybrid, **create(options()), tokens), 59U) << static_cast<int>(mood);
  }
}

TEST_F(RemoteTls, ConnectionsThatWereClosedAreMadeAgain) {
  const auto cache = create(options()).value();
  for (int round = 0; round < 3; ++round) {
    serve(kHybrid, *cache, prompt(60, round));
    ASSERT_TRUE(cache->flush_remote().is_ok());
    server_.hang_up();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(cache->remote_stats()->failures, 0U) << cache->remote_stats()->last_error;
  EXPECT_GT(cache->remote_stats()->connects, 2U);
}

TEST_F(RemoteTls, WrongOptionsAreRefusedAndNamed) {
  const auto refused = [&](const std::string& name, auto&& change) {
    RemoteTierOptions wrong = options();
    change(wrong);
    const Status status = create(wrong).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find("remote tier: " + name + ": "), std::string::npos)
        << status.message();
  };
  refused("ca_file", [](RemoteTierOptions& o) { o.tls.ca_file = "/nowhere"; });
  refused("key", [](RemoteTierOptions& o) { o.tls.key = o.tls.ca_file; });
  refused("tls", [](RemoteTierOptions& o) { o.tls.enabled = false; });
  refused("tls", [](RemoteTierOptions& o) {
    o.tls = {};
    o.tls.verify = false;
  });
  refused("tls", [](RemoteTierOptions& o) { o.addresses = {{"", 0, "/s"}}; });
}

}  // namespace
}  // namespace kvcache
