#include "request_line.h"

#include <charconv>
#include <set>
#include <system_error>

#include "toy_model.h"

namespace server {
namespace {

using kvcache::Result;
using kvcache::Status;
using kvcache::StatusCode;

constexpr std::int64_t kMostTokens = 1 << 16;

// Reads a line from left to right; after a failure status() says why and everything is a no.
class Reader {
 public:
  explicit Reader(std::string_view line) : line_(line) {}

  bool take(char wanted) {
    skip_spaces();
    if (at_ == line_.size() || line_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (status_ && !take(wanted)) fail("expected '", wanted, "'");
  }
  std::string_view key() {
    expect('"');
    const std::size_t start = at_;
    while (at_ < line_.size() && line_[at_] != '"') ++at_;
    const std::string_view text = line_.substr(start, at_ - start);
    expect('"');
    return text;
  }
  std::int64_t number(std::string_view key, std::int64_t least, std::int64_t most) {
    skip_spaces();
    std::int64_t value = least;
    const char* end = line_.data() + line_.size();
    const auto [stop, error] = std::from_chars(line_.data() + at_, end, value);
    if (status_ && (error != std::errc() || value < least || value > most)) {
      fail(key, ": expected a whole number of ", least, " to ", most);
    }
    at_ = static_cast<std::size_t>(stop - line_.data());
    return value;
  }
  bool at_end() {
    skip_spaces();
    return at_ == line_.size();
  }

  template <typename... Parts>
  void fail(const Parts&... parts) {
    if (status_) status_ = Status::invalid_argument(parts..., " at column ", at_ + 1);
  }
  const Status& status() const { return status_; }

 private:
  void skip_spaces() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r')) {
      ++at_;
    }
  }

  std::string_view line_;
  std::size_t at_ = 0;
  Status status_;
};

void read_tokens(Reader& reader, std::vector<std::int32_t>& tokens) {
  reader.expect('[');
  if (reader.take(']')) return;
  do {
    tokens.push_back(static_cast<std::int32_t>(reader.number("tokens", 0, kVocabulary - 1)));
  } while (reader.status() && reader.take(','));
  reader.expect(']');
}

void append_tokens(std::string& text, const std::vector<std::int32_t>& tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tokens[i]);
  }
}

// What a string literal of JSON cannot hold as it is becomes '.'; messages are ASCII.
void append_quoted(std::string& text, std::string_view message) {
  text += '"';
  for (const char letter : message) {
    if (letter == '"' || letter == '\\') text += '\\';
    text += letter >= ' ' && letter <= '~' ? letter : '.';
  }
  text += '"';
}

}  // namespace

Result<Request> parse_request(std::string_view line) {
  Request request;
  Reader reader(line);
  std::set<std::string_view> seen;
  reader.expect('{');
  do {
    const std::string_view key = reader.key();
    reader.expect(':');
    if (!reader.status()) return reader.status();
    if (!seen.insert(key).second) reader.fail("a key occurs twice");
    if (key == "id") {
      request.id = reader.number(key, 0, INT64_MAX);
    } else if (key == "tokens") {
      read_tokens(reader, request.tokens);
    } else if (key == "max_tokens") {
      request.max_tokens = static_cast<std::uint64_t>(reader.number(key, 1, kMostTokens));
    } else if (key == "stats") {
      request.stats = reader.number(key, 0, 1) != 0;
    } else {
      reader.fail("expected one of the keys id, tokens, max_tokens, stats");
    }
  } while (reader.status() && reader.take(','));
  reader.expect('}');
  if (reader.status() && !reader.at_end()) reader.fail("more than one object");
  if (!reader.status()) return reader.status();
  if (request.tokens.empty() && !request.stats) {
    return Status::invalid_argument("tokens: expected at least one");
  }
  return request;
}

std::string answer_line(const Answer& answer) {
  std::string text = "{\"id\": " + std::to_string(answer.id);
  if (answer.status) {
    text += ", \"tokens\": [";
    append_tokens(text, answer.tokens);
    text += "], \"cached_tokens\": " + std::to_string(answer.cached_tokens);
  } else {
    text += ", \"error\": \"" + std::string(error_name(answer.status.code()));
    text += "\", \"message\": ";
    append_quoted(text, answer.status.message());
  }
  return text + "}";
}

std::string_view error_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid_argument";
    case StatusCode::kNotFound:
      return "not_found";
    case StatusCode::kOutOfCapacity:
      return "out_of_capacity";
    case StatusCode::kCorruption:
      return "corruption";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kIoError:
      return "io_error";
    case StatusCode::kNonFinite:
      return "non_finite";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace server
