// Replies of RESP2, the protocol of Valkey and Redis, out of bytes that nobody vouches for.
// Source: the protocol's published description, https://valkey.io/topics/protocol/.
// Thread safety: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::remote {

struct Reply {
  enum class Kind : std::uint8_t { kStatus, kError, kInteger, kBulk, kNil, kArray };
  Kind kind = Kind::kNil;
  std::string text;          // of a status, an error or a bulk string
  std::int64_t integer = 0;  // of an integer
  std::vector<Reply> items;  // of an array

  bool is_error() const { return kind == Kind::kError; }
  bool is_nil() const { return kind == Kind::kNil; }
};

// What a reply may be at most; more is an answer to another question.
struct ReplyLimits {
  std::size_t line_bytes = 1 << 10;
  std::size_t bulk_bytes = 1 << 10;
  std::size_t items = 64;  // of all arrays together
  int depth = 2;           // arrays in arrays
};

// Reads one reply from the front of `bytes` and returns how many it takes; none: they do not
// suffice yet. kCorruption: it is no reply, or one beyond the limits. Nothing of the announced size
// is allocated before its bytes are there.
Result<std::optional<std::size_t>> parse_reply(std::string_view bytes, const ReplyLimits& limits,
                                               Reply& reply);

// The first line of a bulk string: its length, or -1 for nil. kIoError: the server's error, in its
// words. kCorruption: another reply. `bytes` is the line without its end.
Result<std::int64_t> parse_bulk_line(std::string_view line);

// What a server said, with what is not printable left out, to be shown.
std::string printable(std::string_view text);

}  // namespace kvcache::remote
