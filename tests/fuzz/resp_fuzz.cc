// The reader of a server's replies: on any bytes, and on edits of valid replies. Nothing beyond the
// limits is accepted, and what is accepted is the same however it is cut into pieces.
#include <algorithm>

#include "fuzz.h"
#include "remote/resp_reply.h"

namespace {

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check(bytes);
  const std::string valid[] = {"*3\r\n$3\r\nabc\r\n:-5\r\n*2\r\n$-1\r\n+OK\r\n",
                               "$12\r\nabcdef\r\nghij\r\n", "-ERR no such thing\r\n",
                               "*2\r\n$1\r\n0\r\n*1\r\n$4\r\nname\r\n"};
  check(kvcache::fuzz::edited(valid[data[0] % std::size(valid)], data + 1, size - 1));
  return 0;
}
