// Replies of RESP2 and the connection that reads them: what is right is read, what is wrong, slow
// or endless costs an error by the deadline, and no memory.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "fake_valkey.h"
#include "remote/breaker.h"
#include "remote/connections.h"
#include "remote/resp_client.h"
#include "remote/resp_reply.h"

namespace kvcache::remote {
namespace {

using std::chrono::milliseconds;

std::optional<Reply> parse(std::string_view bytes, const ReplyLimits& limits = {}) {
  Reply reply;
  const auto used = parse_reply(bytes, limits, reply);
  if (!used || !*used) return std::nullopt;
  EXPECT_EQ(**used, bytes.size());
  return reply;
}

StatusCode refusal(std::string_view bytes, const ReplyLimits& limits = {}) {
  Reply reply;
  return parse_reply(bytes, limits, reply).status().code();
}

TEST(RespReply, EveryKindIsRead) {
  EXPECT_EQ(parse("+OK\r\n")->text, "OK");
  EXPECT_TRUE(parse("-ERR no\r\n")->is_error());
  EXPECT_EQ(parse(":-12\r\n")->integer, -12);
  EXPECT_EQ(parse(":9223372036854775807\r\n")->integer, INT64_MAX);
  EXPECT_EQ(parse("$5\r\na\r\nb\n\r\n")->text, "a\r\nb\n");
  EXPECT_EQ(parse("$0\r\n\r\n")->text, "");
  EXPECT_TRUE(parse("$-1\r\n")->is_nil());
  EXPECT_TRUE(parse("*-1\r\n")->is_nil());
  const auto nested = parse("*2\r\n$1\r\n0\r\n*2\r\n:1\r\n+x\r\n");
  ASSERT_EQ(nested->items.size(), 2U);
  EXPECT_EQ(nested->items[0].text, "0");
  EXPECT_EQ(nested->items[1].items[1].text, "x");
}

TEST(RespReply, APartOfAReplyIsNoneYet) {
  const std::string whole = "*3\r\n$3\r\nabc\r\n:5\r\n*1\r\n$-1\r\n";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    Reply reply;
    const auto used = parse_reply(std::string_view(whole).substr(0, size), {}, reply);
    ASSERT_TRUE(used.is_ok()) << size;
    EXPECT_FALSE(used->has_value()) << size;
  }
  EXPECT_TRUE(parse(whole));
}

TEST(RespReply, WhatIsNoReplyOrTooMuchIsRefused) {
  for (const std::string_view wrong :
       {"x\r\n", "\r\n", "$x\r\n", "$-2\r\n", "$1 \r\n", "$\r\n", ":\r\n", ":1.5\r\n",
        ":99999999999999999999\r\n", "$3\r\nabcd\r\n", "*-2\r\n", "$1152921504606846976\r\n",
        "*1152921504606846976\r\n", "*1\r\n*1\r\n*1\r\n:1\r\n", "$1025\r\n", "*65\r\n"}) {
    EXPECT_EQ(refusal(wrong), StatusCode::kCorruption) << wrong;
  }
  EXPECT_EQ(refusal("+" + std::string(1025, 'x')), StatusCode::kCorruption);
  EXPECT_EQ(refusal("+" + std::string(1023, 'x') + "\r"), StatusCode::kOk) << "its end may come";
  EXPECT_EQ(refusal("*40\r\n*40\r\n"), StatusCode::kCorruption) << "more than 64 in all";
  EXPECT_EQ(parse_bulk_line("$12").value(), 12);
  EXPECT_EQ(parse_bulk_line("$-1").value(), -1);
  EXPECT_EQ(parse_bulk_line("-OOM no\x01").status().message(), "the server says: OOM no");
  for (const std::string_view wrong : {"", ":1", "$", "$-2", "$1x", "*1", "+OK"}) {
    EXPECT_EQ(parse_bulk_line(wrong).status().code(), StatusCode::kCorruption) << wrong;
  }
}

TEST(Breaker, PausesGrowAndOneTriesAfterEach) {
  Breaker breaker;
  Breaker::Clock::time_point now{};
  EXPECT_TRUE(breaker.may_try(now));
  milliseconds pause = Breaker::kFirstPause;
  for (int i = 0; i < 10; ++i) {
    breaker.fail(now);
    EXPECT_TRUE(breaker.is_open());
    EXPECT_FALSE(breaker.may_try(now + pause - milliseconds(1)));
    now += pause;
    EXPECT_TRUE(breaker.may_try(now));
    EXPECT_FALSE(breaker.may_try(now)) << "somebody tries already";
    pause = std::min(2 * pause, Breaker::kLongestPause);
  }
  breaker.succeed();
  EXPECT_FALSE(breaker.is_open());
  EXPECT_TRUE(breaker.may_try(now));
}

// A connection and its other end.
struct Pair {
  Pair() {
    int files[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, files), 0);
    client = std::make_unique<RespClient>(std::make_unique<SocketStream>(Socket(files[0])));
    other = Socket(files[1]);
  }
  void say(std::string_view text) {
    EXPECT_EQ(::send(other.file(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  std::unique_ptr<RespClient> client;
  Socket other;
};

TEST(RespClient, ValuesGoStraightWhereTheyBelong) {
  Pair pair;
  pair.say("$6\r\nabcdef\r\n$-1\r\n$2\r\nxy\r\n-ERR broken\r\n$0\r\n\r\n+OK\r\n");
  const Deadline deadline = Deadline::after_ms(60'000);
  char one[2] = {};
  char two[4] = {};
  const iovec pieces[] = {{one, 2}, {two, 4}};
  EXPECT_EQ(pair.client->receive_into(pieces, deadline)->value(), 6U);
  EXPECT_EQ(std::string(one, 2) + std::string(two, 4), "abcdef");
  EXPECT_FALSE(pair.client->receive_into(pieces, deadline)->has_value());
  EXPECT_EQ(pair.client->receive_into(pieces, deadline)->value(), 2U) << "another length";
  EXPECT_EQ(std::string(one, 2), "ab") << "which is read past";
  EXPECT_EQ(pair.client->receive_into(pieces, deadline).status().code(), StatusCode::kIoError);
  EXPECT_FALSE(pair.client->is_broken());
  EXPECT_EQ(pair.client->receive_into({}, deadline)->value(), 0U);
  Reply reply;
  EXPECT_TRUE(pair.client->receive({}, reply, deadline).is_ok());
  EXPECT_EQ(reply.text, "OK");
}

TEST(RespClient, ALargeValueComesInParts) {
  Pair pair;
  std::string value(3 << 20, 'a');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7 / 3);
  std::thread server([&] {
    std::string all = "$" + std::to_string(value.size()) + "\r\n" + value + "\r\n:3\r\n";
    for (std::size_t at = 0; at < all.size();) {
      const ssize_t sent = ::send(pair.other.file(), all.data() + at, all.size() - at, 0);
      if (sent > 0) at += static_cast<std::size_t>(sent);
      if (sent < 0) std::this_thread::yield();
    }
  });
  const Deadline deadline = Deadline::after_ms(60'000);
  std::string got(value.size(), '\0');
  std::vector<iovec> pieces;
  for (std::size_t at = 0; at < got.size(); at += 4099) {
    pieces.push_back({got.data() + at, std::min<std::size_t>(4099, got.size() - at)});
  }
  EXPECT_TRUE(pair.client->receive_into(pieces, deadline).is_ok());
  Reply reply;
  EXPECT_TRUE(pair.client->receive({}, reply, deadline).is_ok());
  server.join();
  EXPECT_EQ(got, value);
  EXPECT_EQ(reply.integer, 3);
}

TEST(RespClient, WhatIsWrongOrMissingBreaksTheConnection) {
  for (const std::string_view wrong :
       {"$1152921504606846976\r\n", ":6\r\n", "$6\r\nabcdefgh", "hello\r\n", "$-7\r\n"}) {
    Pair pair;
    pair.say(wrong);
    char bytes[6];
    const iovec piece{bytes, sizeof(bytes)};
    const auto got = pair.client->receive_into({&piece, 1}, Deadline::after_ms(60'000));
    EXPECT_EQ(got.status().code(), StatusCode::kCorruption) << wrong;
    EXPECT_TRUE(pair.client->is_broken()) << wrong;
  }
  Pair slow;
  slow.say("$6\r\nabc");
  char bytes[6];
  const iovec piece{bytes, sizeof(bytes)};
  EXPECT_EQ(slow.client->receive_into({&piece, 1}, Deadline::after_ms(30)).status().code(),
            StatusCode::kIoError);
  EXPECT_TRUE(slow.client->has_timed_out());
  Pair closed;
  closed.say("$6\r\nab");
  closed.other = Socket();
  EXPECT_EQ(closed.client->receive_into({&piece, 1}, Deadline::after_ms(60'000)).status().code(),
            StatusCode::kIoError);
  EXPECT_FALSE(closed.client->has_timed_out());
  // Nobody takes in what is sent.
  Pair full;
  const std::string large(64 << 20, 'x');
  Commands commands;
  const iovec value{const_cast<char*>(large.data()), large.size()};
  commands.begin(1).word(std::span(&value, 1));
  EXPECT_EQ(full.client->send(commands, Deadline::after_ms(30)).code(), StatusCode::kIoError);
  EXPECT_TRUE(full.client->has_timed_out());
}

Status ping(RespClient& client, const Deadline& deadline);

// A reply too many would be taken for that to the next command, and so on for ever.
TEST(RespClient, WhatNobodyAskedForBreaksTheConnection) {
  const Deadline deadline = Deadline::after_ms(60'000);
  for (const bool at_once : {true, false}) {
    Pair pair;
    pair.say(at_once ? ":1\r\n:2\r\n" : "");
    Commands commands;
    commands.add({"STRLEN", "x"});
    if (at_once) {
      EXPECT_FALSE(pair.client->send(commands, deadline).is_ok()) << "before any command";
      continue;
    }
    EXPECT_TRUE(pair.client->send(commands, deadline).is_ok());
    pair.say(":1\r\n");
    Reply reply;
    EXPECT_TRUE(pair.client->receive({}, reply, deadline).is_ok());
    EXPECT_TRUE(pair.client->send(commands, deadline).is_ok());
    pair.say(":2\r\n:3\r\n");
    EXPECT_TRUE(pair.client->receive({}, reply, deadline).is_ok());
    EXPECT_EQ(reply.integer, 2);
    const Status unasked = pair.client->send(commands, deadline);
    EXPECT_EQ(unasked.code(), StatusCode::kIoError);
    EXPECT_NE(unasked.message().find(":3"), std::string::npos) << unasked.message();
    EXPECT_TRUE(pair.client->is_broken());
  }
  Pair pair;
  pair.say("$3\r\nabcd\r\n");
  char byte = 0;
  const iovec piece{&byte, 1};
  EXPECT_EQ(pair.client->receive_into({&piece, 1}, deadline).status().code(),
            StatusCode::kCorruption)
      << "a string without an end, of another length than was asked for";
}

Status ping(RespClient& client, const Deadline& deadline) {
  Commands commands;
  commands.add({"STRLEN", "x"});
  if (Status sent = client.send(commands, deadline); !sent) return sent;
  Reply reply;
  return client.receive({}, reply, deadline);
}

TEST(Connections, AKeptConnectionThatWasClosedIsMadeAgain) {
  fake::Valkey server;
  Connections connections({"127.0.0.1", server.port(), ""}, {}, 2);
  const Deadline deadline = Deadline::after_ms(60'000);
  const auto ask = [&] {
    return connections.run(deadline, [&](RespClient& client) { return ping(client, deadline); });
  };
  EXPECT_TRUE(ask().is_ok());
  EXPECT_TRUE(ask().is_ok());
  EXPECT_EQ(connections.stats().connects, 1U);
  server.hang_up();
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(ask().is_ok());
  EXPECT_EQ(connections.stats().connects, 2U);
  EXPECT_EQ(connections.stats().failures, 0U);
  EXPECT_GT(connections.stats().losses, 0U);
}

TEST(Connections, ManyThreadsShareAFew) {
  fake::Valkey server;
  Connections connections({"127.0.0.1", server.port(), ""}, {}, 2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const Deadline deadline = Deadline::after_ms(60'000);
        EXPECT_TRUE(
            connections.run(deadline, [&](RespClient& client) { return ping(client, deadline); })
                .is_ok());
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_LE(connections.stats().connects, 2U);
}

TEST(Connections, ALoginIsMadeAndARefusalIsSaid) {
  fake::Valkey server;
  server.require_password("secret");
  const Deadline deadline = Deadline::after_ms(60'000);
  const auto ask = [&](const Login& login) {
    Connections connections({"localhost", server.port(), ""}, login, 1);
    return connections.run(deadline, [&](RespClient& client) { return ping(client, deadline); });
  };
  EXPECT_TRUE(ask({"", "secret", 0}).is_ok());
  EXPECT_TRUE(ask({"user", "secret", 3}).is_ok());
  EXPECT_EQ(server.logins(), 2);
  const Status refused = ask({"user", "wrong", 0});
  EXPECT_EQ(refused.code(), StatusCode::kIoError);
  EXPECT_NE(refused.message().find("WRONGPASS"), std::string::npos) << refused.message();
  EXPECT_EQ(refused.message().find("wrong\""), std::string::npos) << "no password is told";
}

TEST(Connections, WhereNobodyListensItIsSaidOnceAndNotTriedForAWhile) {
  Connections connections({"", 0, "/nonexistent/socket"}, {}, 1);
  const Deadline deadline = Deadline::after_ms(60'000);
  const auto ask = [&] {
    return connections.run(deadline, [&](RespClient& client) { return ping(client, deadline); });
  };
  EXPECT_NE(ask().message().find("/nonexistent/socket"), std::string::npos);
  EXPECT_NE(ask().message().find("left alone"), std::string::npos);
  EXPECT_EQ(connections.stats().failures, 1U);
  EXPECT_EQ(connections.stats().refused_operations, 1U);
  Connections nameless({"no.such.host.invalid", 1, ""}, {}, 1);
  EXPECT_EQ(nameless.run(Deadline::after_ms(2000), [](RespClient&) { return Status::ok(); }).code(),
            StatusCode::kIoError);
}

}  // namespace
}  // namespace kvcache::remote
