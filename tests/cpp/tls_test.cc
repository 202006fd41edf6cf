// TLS over a socket: what is sent arrives, whoever is not who it should be is refused, and a wire
// that goes wrong at any byte costs an error by the deadline and no wrong byte.
#include "remote/tls.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "fake_valkey.h"
#include "remote/connections.h"
#include "remote/openssl.h"
#include "remote/resp_client.h"
#include "tls_front.h"

namespace kvcache::remote {
namespace {

using fake::Certificates;
using fake::FrontOptions;
using fake::TlsFront;
using fake::Wire;

constexpr std::uint64_t kLongMs = 60'000;

// Certificates, made once, and a server behind TLS.
class Tls : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!Certificates::can_be_made()) return;
    made_ = std::make_unique<Certificates>();
    made_->make("here", "DNS:localhost,IP:127.0.0.1,IP:::1");
    made_->make("elsewhere", "DNS:elsewhere.test,DNS:*.elsewhere.test");
    made_->make("client", "DNS:client");
  }
  static void TearDownTestSuite() { made_.reset(); }
  void SetUp() override {
    if (made_) return;
    ASSERT_EQ(std::getenv("CI"), nullptr) << "no program openssl";
    GTEST_SKIP() << "no program openssl: Debian's package openssl";
  }

  static FrontOptions front(const std::string& name = "here") {
    FrontOptions options;
    options.certificate = made_->certificate(name);
    options.key = made_->key(name);
    return options;
  }
  // One that trusts a certificate.
  static RemoteTlsOptions trusting(const std::string& name = "here") {
    RemoteTlsOptions options;
    options.enabled = true;
    options.ca_file = made_->certificate(name);
    return options;
  }
  static std::shared_ptr<const TlsContext> context(const RemoteTlsOptions& options) {
    auto made = TlsContext::create(options);
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    return made.is_ok() ? *made : nullptr;
  }

  static std::unique_ptr<Certificates> made_;
};

std::unique_ptr<Certificates> Tls::made_;

// A command over a connection of its own.
Status ask(std::uint16_t port, const std::shared_ptr<const TlsContext>& tls,
           const std::string& host = "127.0.0.1", std::uint64_t ms = kLongMs) {
  Connections connections({host, port, ""}, {"", "", 0, tls}, 1);
  const Deadline deadline = Deadline::after_ms(ms);
  return connections.run(deadline, [&](RespClient& client) {
    Commands commands;
    commands.add({"STRLEN", "x"});
    if (Status sent = client.send(commands, deadline); !sent) return sent;
    Reply reply;
    if (Status come = client.receive({}, reply, deadline); !come) return come;
    return reply.kind == Reply::Kind::kInteger && reply.integer == 3
               ? Status::ok()
               : Status::internal("a wrong answer");
  });
}

void expect_refusal(const Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), StatusCode::kIoError) << part;
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

TEST_F(Tls, AServerThatShowsWhoItIsIsTalkedTo) {
  fake::Valkey server;
  server.put("x", "abc");
  const auto tls = context(trusting());
  for (const long version : {0x0303, 0x0304}) {
    for (const bool farewell : {false, true}) {
      FrontOptions options = front();
      options.version = version;
      options.farewell = farewell;
      TlsFront before(server.port(), options);
      for (const char* host : {"127.0.0.1", "localhost"}) {
        const Status status = ask(before.port(), tls, host);
        EXPECT_TRUE(status.is_ok()) << host << ": " << status.message();
      }
      server.hang_up();
    }
  }
}

TEST_F(Tls, WhoeverIsNotWhoItShouldBeIsRefused) {
  fake::Valkey server;
  server.put("x", "abc");
  TlsFront here(server.port(), front());
  TlsFront elsewhere(server.port(), front("elsewhere"));
  expect_refusal(ask(here.port(), context(trusting("elsewhere"))), "ca_file");
  RemoteTlsOptions by_system;
  by_system.enabled = true;
  expect_refusal(ask(here.port(), context(by_system)), "ca_file");
  const auto tls = context(trusting("elsewhere"));
  expect_refusal(ask(elsewhere.port(), tls), "IP address mismatch");
  expect_refusal(ask(elsewhere.port(), tls, "localhost"), "ostname mismatch");
  RemoteTlsOptions anybody;
  anybody.enabled = true;
  anybody.verify = false;
  EXPECT_TRUE(ask(elsewhere.port(), context(anybody)).is_ok());
  EXPECT_EQ(server.commands(), 1) << "nothing is said to who is refused";
}

TEST_F(Tls, OldVersionsAreRefused) {
  fake::Valkey server;
  FrontOptions options = front();
  options.version = 0x0302;
  TlsFront before(server.port(), options);
  expect_refusal(ask(before.port(), context(trusting())), "no TLS handshake");
}

TEST_F(Tls, AClientShowsItsCertificateWhereItIsAskedFor) {
  fake::Valkey server;
  server.put("x", "abc");
  for (const long version : {0x0303, 0x0304}) {
    FrontOptions options = front();
    options.client_ca = made_->certificate("client");
    options.version = version;
    TlsFront before(server.port(), options);
    RemoteTlsOptions own = trusting();
    expect_refusal(ask(before.port(), context(own)), "alert");
    own.certificate = made_->certificate("elsewhere");
    own.key = made_->key("elsewhere");
    expect_refusal(ask(before.port(), context(own)), "alert");
    own.certificate = made_->certificate("client");
    own.key = made_->key("client");
    const Status status = ask(before.port(), context(own));
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
}

TEST_F(Tls, WhatIsInNoFileOrInAWrongOneIsSaid) {
  const std::string client = made_->certificate("client");
  const std::string both = made_->path("both.pem");
  std::ofstream(both) << std::ifstream(made_->certificate("client")).rdbuf()
                      << std::ifstream(made_->key("client")).rdbuf();
  RemoteTlsOptions options = trusting();
  options.certificate = both;
  EXPECT_TRUE(TlsContext::create(options).is_ok()) << "the key is in the same file";
  const std::string locked = made_->path("locked.key");
  made_->run("ec -aes128 -passout pass:secret -in " + made_->key("client") + " -out " + locked);
  std::ofstream(made_->path("text")) << "-----BEGIN nothing\n";
  const auto refused = [&](const std::string& option, const std::string& authority,
                           const std::string& certificate, const std::string& key) {
    const Status status = TlsContext::create({true, authority, certificate, key, true}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << option;
    EXPECT_EQ(status.message().substr(0, option.size() + 1), option + ":") << status.message();
  };
  for (const std::string& wrong : {made_->path("nowhere"), made_->path("text"), made_->path(""),
                                   std::string("/dev/null"), client + std::string("\0x", 2)}) {
    refused("ca_file", wrong, "", "");
    refused("certificate", "", wrong, "");
    refused("key", "", client, wrong);
  }
  refused("key", "", client, "");  // which has none
  refused("key", "", client, made_->key("here"));
  refused("key", "", client, locked);
  refused("key", "", "", made_->key("client"));
}

TEST(OpenSsl, WhereThereIsNoneItIsSaidWhatToInstall) {
  const char* nowhere[] = {"libnowhere.so.3", "libnowhere.so.1.1"};
  const Status none = load_openssl(nowhere).status();
  EXPECT_EQ(none.code(), StatusCode::kUnsupported);
  for (const char* part : {"libnowhere.so.3, libnowhere.so.1.1", "libssl3"}) {
    EXPECT_NE(none.message().find(part), std::string::npos) << none.message();
  }
  const char* another[] = {"libm.so.6"};
  const Status wrong = load_openssl(another).status();
  EXPECT_EQ(wrong.code(), StatusCode::kUnsupported);
  EXPECT_NE(wrong.message().find("libm.so.6"), std::string::npos) << wrong.message();
}

// ---- Data ---------------------------------------------------------------------------------------

TEST_F(Tls, LargeValuesInManyPiecesArriveAsTheyWere) {
  fake::Valkey server;
  TlsFront before(server.port(), front());
  const auto tls = context(trusting());
  std::string value(3 << 20, 'a');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7 / 3);
  const Deadline deadline = Deadline::after_ms(kLongMs);
  bool timed_out = false;
  auto client =
      RespClient::connect({"localhost", before.port(), ""}, {"", "", 0, tls}, deadline, timed_out);
  ASSERT_TRUE(client.is_ok()) << client.status().message();
  for (const std::size_t size : {7U, 4099U, 16'384U, 100'003U, 3U << 20}) {
    std::string got(value.size(), '\0');
    std::vector<iovec> sent;
    std::vector<iovec> pieces;
    for (std::size_t at = 0; at < got.size(); at += size) {
      const std::size_t part = std::min(size, got.size() - at);
      sent.push_back({value.data() + at, part});
      pieces.push_back({got.data() + at, part});
      if (at > 100 * size) {  // the rest at once
        sent.push_back({value.data() + at + part, got.size() - at - part});
        pieces.push_back({got.data() + at + part, got.size() - at - part});
        break;
      }
    }
    Commands commands;
    commands.begin(3).word("SET").word("x").word(sent);
    commands.add({"GET", "x"}).add({"STRLEN", "x"});
    ASSERT_TRUE((*client)->send(commands, deadline).is_ok());
    Reply reply;
    ASSERT_TRUE((*client)->receive({}, reply, deadline).is_ok());
    const auto come = (*client)->receive_into(pieces, deadline);
    ASSERT_TRUE(come.is_ok()) << come.status().message();
    EXPECT_TRUE(got == value) << size;
    ASSERT_TRUE((*client)->receive({}, reply, deadline).is_ok());
    EXPECT_EQ(reply.integer, 3 << 20);
  }
  server.set(fake::Mood::kSilent);  // and takes in no more than a socket holds
  const std::string much(64 << 20, 'x');
  const iovec piece{const_cast<char*>(much.data()), much.size()};
  Commands commands;
  commands.begin(1).word(std::span(&piece, 1));
  server.hang_up();
  EXPECT_FALSE((*client)->send(commands, Deadline::after_ms(kLongMs)).is_ok());
  EXPECT_TRUE((*client)->is_broken());
}

// ---- What goes wrong on the way -----------------------------------------------------------------

TEST_F(Tls, AWireThatFailsAtAnyByteIsAnErrorAndNoWrongAnswer) {
  fake::Valkey server;
  server.put("x", "abc");
  TlsFront before(server.port(), front());
  const auto tls = context(trusting());
  std::uint64_t all = 0;
  {
    Wire wire(before.port(), Wire::Fault::kNone, 0);
    ASSERT_TRUE(ask(wire.port(), tls).is_ok());
    all = wire.passed();
  }
  ASSERT_GT(all, 500U);
  for (const Wire::Fault fault : {Wire::Fault::kCut, Wire::Fault::kFlip}) {
    std::uint64_t failed = 0;
    for (std::uint64_t at = 0; at < all; at += at < 16 || at + 64 > all ? 1 : 37) {
      Wire wire(before.port(), fault, at);
      const auto start = std::chrono::steady_clock::now();
      const Status status = ask(wire.port(), tls, "127.0.0.1", 3000);
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << at;
      EXPECT_TRUE(status.is_ok() || status.code() == StatusCode::kIoError) << status.message();
      failed += !status;
    }
    EXPECT_GT(failed, 20U) << "but for bytes behind the answer";
  }
}

TEST_F(Tls, AWireThatStallsOrDribblesEndsAtTheDeadline) {
  fake::Valkey server;
  server.put("x", "abc");
  TlsFront before(server.port(), front());
  const auto tls = context(trusting());
  for (const Wire::Fault fault : {Wire::Fault::kStall, Wire::Fault::kDribble}) {
    for (const std::uint64_t at : {0, 3, 90, 200}) {
      Wire wire(before.port(), fault, at);
      Connections connections({"127.0.0.1", wire.port(), ""}, {"", "", 0, tls}, 1);
      const Deadline deadline = Deadline::after_ms(100);
      const auto start = std::chrono::steady_clock::now();
      const Status status = connections.run(deadline, [](RespClient&) { return Status::ok(); });
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
      EXPECT_EQ(status.code(), StatusCode::kIoError);
      EXPECT_EQ(connections.stats().timeouts, 1U) << at;
    }
  }
}

// Whoever answers speaks no TLS.
TEST_F(Tls, WhatIsNoTlsIsAnErrorByTheDeadline) {
  const auto tls = context(trusting());
  for (const std::string_view said :
       {"", "-ERR Protocol error\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n", "\x16\x03\x01\xff\xff",
        "\x15\x03\x03\x00\x02\x02\x28", "\x16\x03\x03\x40\x00xxxx"}) {
    for (const bool closes : {false, true}) {
      int files[2];
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, files), 0);
      Socket other(files[1]);
      ASSERT_EQ(::send(files[1], said.data(), said.size(), 0), static_cast<ssize_t>(said.size()));
      if (closes) other = Socket();
      bool timed_out = false;
      const auto stream =
          connect_tls(tls, Socket(files[0]), "localhost", Deadline::after_ms(50), timed_out);
      EXPECT_EQ(stream.status().code(), StatusCode::kIoError) << said;
      EXPECT_FALSE(closes && timed_out) << said;
    }
  }
  fake::Valkey in_the_clear;
  expect_refusal(ask(in_the_clear.port(), tls, "127.0.0.1", 200), "no TLS handshake");
}

TEST_F(Tls, ManyThreadsShareWhatIsMadeOnce) {
  fake::Valkey server;
  server.put("x", "abc");
  TlsFront before(server.port(), front());
  const auto tls = context(trusting());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        const Status status = ask(before.port(), tls);
        EXPECT_TRUE(status.is_ok()) << status.message();
      }
    });
  }
  for (std::thread& each : threads) each.join();
}

}  // namespace
}  // namespace kvcache::remote
