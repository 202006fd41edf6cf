#include "remote/resp_reply.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace kvcache::remote {
namespace {

constexpr std::string_view kEnd = "\r\n";
constexpr std::size_t kMostShown = 200;

Status not_a_reply(std::string_view what) {
  return Status::corruption("no answer of a Valkey server: ", what);
}

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  return whole && !text.empty() ? std::optional(value) : std::nullopt;
}

class Parser {
 public:
  Parser(std::string_view bytes, const ReplyLimits& limits)
      : bytes_(bytes), limits_(limits), items_left_(limits.items) {}

  // False: more bytes are needed.
  Result<bool> parse(Reply& reply, int depth) {
    const auto line = take_line();
    if (!line) return line.status();
    if (!*line) return false;
    if ((*line)->empty()) return not_a_reply("an empty line");
    const char kind = (*line)->front();
    const std::string_view rest = (*line)->substr(1);
    if (kind == '+' || kind == '-') {
      reply.kind = kind == '+' ? Reply::Kind::kStatus : Reply::Kind::kError;
      reply.text = rest;
      return true;
    }
    if (kind != ':' && kind != '$' && kind != '*') return not_a_reply("a line of unknown kind");
    const auto number = number_of(rest);
    if (!number) return not_a_reply("a length or number that is none");
    if (kind == ':') {
      reply.kind = Reply::Kind::kInteger;
      reply.integer = *number;
      return true;
    }
    if (*number < -1) return not_a_reply("a negative length");
    if (*number == -1) {
      reply.kind = Reply::Kind::kNil;
      return true;
    }
    const auto count = static_cast<std::uint64_t>(*number);
    return kind == '$' ? parse_bulk(reply, count) : parse_array(reply, count, depth);
  }

  std::size_t used() const { return at_; }

 private:
  // None: it is not whole yet.
  Result<std::optional<std::string_view>> take_line() {
    const std::string_view rest = bytes_.substr(at_);
    const std::size_t end = rest.find(kEnd);
    // Half of an end may be all that has come of it.
    const std::size_t size = end == rest.npos ? rest.size() - rest.ends_with('\r') : end;
    if (size > limits_.line_bytes) return not_a_reply("a line too long");
    if (end == rest.npos) return std::optional<std::string_view>();
    at_ += end + kEnd.size();
    return std::optional(rest.substr(0, end));
  }

  Result<bool> parse_bulk(Reply& reply, std::uint64_t size) {
    if (size > limits_.bulk_bytes) return not_a_reply("a string longer than what was asked for");
    const std::string_view rest = bytes_.substr(at_);
    if (rest.size() < size + kEnd.size()) return false;
    if (rest.substr(size, kEnd.size()) != kEnd) return not_a_reply("a string without an end");
    reply.kind = Reply::Kind::kBulk;
    reply.text = rest.substr(0, size);
    at_ += size + kEnd.size();
    return true;
  }

  Result<bool> parse_array(Reply& reply, std::uint64_t count, int depth) {
    if (count > items_left_) return not_a_reply("more items than were asked for");
    if (depth >= limits_.depth) return not_a_reply("arrays within arrays");
    items_left_ -= count;
    reply.kind = Reply::Kind::kArray;
    reply.items.clear();
    for (std::uint64_t i = 0; i < count; ++i) {
      Reply item;
      const auto whole = parse(item, depth + 1);
      if (!whole || !*whole) return whole;
      reply.items.push_back(std::move(item));
    }
    return true;
  }

  const std::string_view bytes_;
  const ReplyLimits& limits_;
  std::size_t at_ = 0;
  std::uint64_t items_left_;
};

}  // namespace

Result<std::optional<std::size_t>> parse_reply(std::string_view bytes, const ReplyLimits& limits,
                                               Reply& reply) {
  Parser parser(bytes, limits);
  reply = Reply();
  const auto whole = parser.parse(reply, 0);
  if (!whole) return whole.status();
  return *whole ? std::optional(parser.used()) : std::nullopt;
}

Result<std::int64_t> parse_bulk_line(std::string_view line) {
  if (!line.empty() && line.front() == '-') {
    return Status::io_error("the server says: ", printable(line.substr(1)));
  }
  if (line.empty() || line.front() != '$') return not_a_reply("a string was asked for");
  const auto size = number_of(line.substr(1));
  if (!size || *size < -1) return not_a_reply("a length that is none");
  return *size;
}

std::string printable(std::string_view text) {
  std::string shown(text.substr(0, kMostShown));
  std::erase_if(shown, [](char c) { return c < ' ' || c > '~'; });
  return shown;
}

}  // namespace kvcache::remote
