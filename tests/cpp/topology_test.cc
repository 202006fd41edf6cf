// What servers tell of each other: right words are read, and wrong, odd or endless ones are refused
// or lead nowhere.
#include "remote/topology.h"

#include <gtest/gtest.h>

#include <string>

namespace kvcache::remote {
namespace {

const Address kAsked{"10.0.0.9", 7000, ""};

Reply integer(std::int64_t value) {
  Reply reply;
  reply.kind = Reply::Kind::kInteger;
  reply.integer = value;
  return reply;
}
Reply bulk(std::string text) {
  Reply reply;
  reply.kind = Reply::Kind::kBulk;
  reply.text = std::move(text);
  return reply;
}
Reply array(std::vector<Reply> items) {
  Reply reply;
  reply.kind = Reply::Kind::kArray;
  reply.items = std::move(items);
  return reply;
}
Reply error(std::string text) {
  Reply reply = bulk(std::move(text));
  reply.kind = Reply::Kind::kError;
  return reply;
}
Reply range(std::int64_t first, std::int64_t last, Reply host, Reply port) {
  return array({integer(first), integer(last), array({std::move(host), std::move(port)})});
}
Reply range(std::int64_t first, std::int64_t last, const char* host, std::int64_t port) {
  return range(first, last, bulk(host), integer(port));
}

// As a server answers CLUSTER KEYSLOT.
TEST(SlotOf, IsThatOfEveryServer) {
  EXPECT_EQ(slot_of("123456789"), 0x31C3);
  EXPECT_EQ(slot_of("foo"), 12182);
  EXPECT_EQ(slot_of("bar"), 5061);
  EXPECT_EQ(slot_of(""), 0);
  EXPECT_EQ(slot_of("a{foo}b"), slot_of("foo"));
  EXPECT_EQ(slot_of("{foo}{bar}"), slot_of("foo"));
  EXPECT_EQ(slot_of("foo{{bar}}"), slot_of("{bar"));
  for (const char* whole : {"{}foo", "foo}bar{", "foo{bar", "foo{}{bar}"}) {
    EXPECT_NE(slot_of(whole), slot_of("foo")) << whole;
    EXPECT_NE(slot_of(whole), slot_of("bar")) << whole;
  }
}

TEST(ReadSlots, NodesAreFoundAndGapsAreNobodys) {
  Reply with_replica = range(0, 99, "10.0.0.1", 7001);
  with_replica.items.push_back(array({bulk("10.0.0.5"), integer(7005)}));
  const auto map = read_slots(
      array({with_replica, range(100, 100, "::1", 7002), range(200, 16383, "10.0.0.1", 7001)}),
      kAsked);
  ASSERT_TRUE(map.is_ok()) << map.status().message();
  ASSERT_EQ(map->nodes.size(), 2U) << "replicas are not asked";
  EXPECT_EQ(map->nodes[0].text(), "10.0.0.1:7001");
  EXPECT_EQ(map->nodes[1].text(), "[::1]:7002");
  EXPECT_EQ(map->owners[0], 0);
  EXPECT_EQ(map->owners[100], 1);
  EXPECT_EQ(map->owners[101], kNobody);
  EXPECT_EQ(map->owners[16383], 0);
  EXPECT_TRUE(read_slots(array({}), kAsked)->nodes.empty());
}

TEST(ReadSlots, WhoCallsItselfNothingIsWhoWasAsked) {
  const auto map =
      read_slots(array({range(0, 5, "", 7003), range(6, 6, Reply(), integer(7003)),
                        range(7, 7, "?", 7003), range(8, 8, "a b", 1), range(9, 9, "x", 0),
                        range(10, 10, std::string(300, 'x').c_str(), 1)}),
                 kAsked);
  ASSERT_TRUE(map.is_ok()) << map.status().message();
  ASSERT_EQ(map->nodes.size(), 1U);
  EXPECT_EQ(map->nodes[0].text(), "10.0.0.9:7003");
  EXPECT_EQ(map->owners[6], 0);
  for (int slot = 7; slot <= 10; ++slot) EXPECT_EQ(map->owners[slot], kNobody) << slot;
}

TEST(ReadSlots, WhatContradictsItselfIsRefused) {
  const Reply wrong[] = {
      Reply(),
      integer(3),
      bulk("slots"),
      error("ERR unknown command"),
      array({integer(1)}),
      array({array({})}),
      array({range(0, 16384, "h", 1)}),
      array({range(-1, 5, "h", 1)}),
      array({range(5, 4, "h", 1)}),
      array({range(INT64_MIN, INT64_MAX, "h", 1)}),
      array({range(0, 5, "h", 1), range(5, 6, "h", 1)}),
      array({range(0, 5, "h", 1), range(0, 5, "h", 1)}),
      array({range(0, 5, integer(1), integer(1))}),
      array({range(0, 5, bulk("h"), bulk("1"))}),
      array({array({bulk("0"), integer(5), array({bulk("h"), integer(1)})})}),
      array({array({integer(0), integer(5), array({bulk("h")})})}),
      array({array({integer(0), integer(5), bulk("h")})}),
  };
  for (const Reply& each : wrong) {
    EXPECT_EQ(read_slots(each, kAsked).status().code(), StatusCode::kCorruption);
  }
  std::vector<Reply> many;
  for (int i = 0; i < 1025; ++i) many.push_back(range(i, i, "h", i + 1));
  EXPECT_EQ(read_slots(array(many), kAsked).status().code(), StatusCode::kCorruption);
}

TEST(ReadRedirection, WordsWithAnAddressAreFollowed) {
  const auto moved = read_redirection("MOVED 3999 10.0.0.2:6381", kAsked);
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->to.text(), "10.0.0.2:6381");
  EXPECT_FALSE(moved->asking);
  const auto ask = read_redirection("ASK 3999 ::1:6381", kAsked);
  ASSERT_TRUE(ask);
  EXPECT_EQ(ask->to.text(), "[::1]:6381");
  EXPECT_TRUE(ask->asking);
  EXPECT_EQ(read_redirection("MOVED 3999 :6381", kAsked)->to.text(), "10.0.0.9:6381");
  for (const char* wrong :
       {"", "MOVED", "MOVED ", "MOVED 1", "MOVED 1 ", "MOVED 1 host",
        "MOVED 1 host:", "MOVED 1 host:0", "MOVED 1 host:65536", "MOVED 1 host:-1",
        "MOVED 1 host:1x", "ASK", "MOVED:1 ", "MOVED 1 ho\x01st:1", "MOVED 1 a b:1",
        "moved 1 host:1", "TRYAGAIN 1 host:1", "CLUSTERDOWN The cluster is down"}) {
    EXPECT_FALSE(read_redirection(wrong, kAsked)) << wrong;
  }
}

TEST(ReadPrimary, ASentinelsWordIsAnAddressOrNone) {
  EXPECT_EQ(read_primary(array({bulk("10.0.0.3"), bulk("6379")}), kAsked)->text(), "10.0.0.3:6379");
  EXPECT_EQ(read_primary(Reply(), kAsked).status().code(), StatusCode::kIoError) << "unknown";
  for (const Reply& wrong :
       {integer(1), array({}), array({bulk("h")}), array({bulk("h"), bulk("0")}),
        array({bulk("h"), bulk("x")}), array({bulk(""), bulk("1")}), array({bulk("?"), bulk("1")}),
        array({bulk("h"), bulk("1"), bulk("2")})}) {
    EXPECT_EQ(read_primary(wrong, kAsked).status().code(), StatusCode::kCorruption);
  }
}

TEST(CheckPrimary, OnlyAPrimaryIsOne) {
  EXPECT_TRUE(check_primary(array({bulk("master"), integer(1), array({})})).is_ok());
  for (const Reply& other : {array({bulk("slave"), bulk("h"), integer(1)}), array({}), Reply(),
                             integer(1), error("NOPERM"), array({bulk("sentinel")})}) {
    EXPECT_EQ(check_primary(other).code(), StatusCode::kIoError);
  }
}

}  // namespace
}  // namespace kvcache::remote
