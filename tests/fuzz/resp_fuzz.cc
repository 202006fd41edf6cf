// The reader of a server's replies: on any bytes, and on edits of valid replies. Nothing beyond the
// limits is accepted, and what is accepted is the same however it is cut into pieces. What they
// tell of other servers names some, or is refused.
#include <algorithm>

#include "fuzz.h"
#include "remote/resp_reply.h"
#include "remote/topology.h"

namespace {

namespace remote = kvcache::remote;

using kvcache::remote::parse_bulk_line;
using kvcache::remote::parse_reply;
using kvcache::remote::Reply;
using kvcache::remote::ReplyLimits;

constexpr ReplyLimits kLimits{.line_bytes = 64, .bulk_bytes = 256, .items = 16, .depth = 2};

std::size_t items_of(const Reply& reply, int depth) {
  FUZZ_EXPECT(reply.text.size() <= kLimits.bulk_bytes);
  FUZZ_EXPECT(depth <= kLimits.depth);
  std::size_t count = reply.items.size();
  for (const Reply& each : reply.items) count += items_of(each, depth + 1);
  return count;
}

void check(std::string_view bytes) {
  Reply reply;
  const auto used = parse_reply(bytes, kLimits, reply);
  if (used && *used) {
    FUZZ_EXPECT(**used > 0 && **used <= bytes.size());
    FUZZ_EXPECT(items_of(reply, 0) <= kLimits.items);
    Reply again;
    const auto exact = parse_reply(bytes.substr(0, **used), kLimits, again);
    FUZZ_EXPECT(exact && *exact == *used && again.text == reply.text);
    const auto part = parse_reply(bytes.substr(0, **used - 1), kLimits, again);
    FUZZ_EXPECT(part && !*part);
  }
  const auto size = parse_bulk_line(bytes);
  FUZZ_EXPECT(!size || *size >= -1);
}

void check_topology(std::string_view bytes) {
  const remote::Address asked{"asked", 1, ""};
  if (const auto way = remote::read_redirection(bytes, asked)) {
    FUZZ_EXPECT(!way->to.host.empty() && way->to.port != 0);
  }
  Reply reply;
  const auto used = parse_reply(bytes, remote::kSlotsLimits, reply);
  if (!used || !*used) return;
  const auto primary = remote::read_primary(reply, asked);
  FUZZ_EXPECT(!primary || (!primary->host.empty() && primary->port != 0));
  const auto map = remote::read_slots(reply, asked);
  if (!map) return;
  FUZZ_EXPECT(map->owners.size() == remote::kSlots && map->nodes.size() <= remote::kMostNodes);
  for (const std::uint16_t owner : map->owners) {
    FUZZ_EXPECT(owner == remote::kNobody || owner < map->nodes.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check(bytes);
  check_topology(bytes);
  const std::string valid[] = {"*3\r\n$3\r\nabc\r\n:-5\r\n*2\r\n$-1\r\n+OK\r\n",
                               "$12\r\nabcdef\r\nghij\r\n",
                               "-ERR no such thing\r\n",
                               "*2\r\n$1\r\n0\r\n*1\r\n$4\r\nname\r\n",
                               "*2\r\n*3\r\n:0\r\n:9\r\n*2\r\n$1\r\na\r\n:1\r\n"
                               "*3\r\n:10\r\n:16383\r\n*2\r\n$0\r\n\r\n:2\r\n",
                               "*2\r\n$1\r\na\r\n$4\r\n6379\r\n",
                               "MOVED 3999 127.0.0.1:6381",
                               "ASK 3999 ::1:6381"};
  const std::string wrong =
      kvcache::fuzz::edited(valid[data[0] % std::size(valid)], data + 1, size - 1);
  check(wrong);
  check_topology(wrong);
  return 0;
}
