// The line format of requests and answers, see docs/servers.md: one flat JSON object a line.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace server {

struct Request {
  std::int64_t id = 0;
  std::vector<std::int32_t> tokens;
  std::uint64_t max_tokens = 16;
  bool stats = false;  // asks for the counters of the server instead
};

struct Answer {
  std::int64_t id = 0;
  kvcache::Status status;
  std::vector<std::int32_t> tokens;
  std::uint64_t cached_tokens = 0;  // of the prompt, restored and not computed
};

// Whole numbers, and one array of them: {"id": 7, "tokens": [1, 2, 3], "max_tokens": 16}, or
// {"id": 7, "stats": 1}. kInvalidArgument, naming the key or the column: anything else, token ids
// outside the vocabulary, or no tokens.
kvcache::Result<Request> parse_request(std::string_view line);

// {"id": 7, "tokens": [4, 5], "cached_tokens": 2}, or
// {"id": 7, "error": "out_of_capacity", "message": "..."}.
std::string answer_line(const Answer& answer);

std::string_view error_name(kvcache::StatusCode code);

}  // namespace server
