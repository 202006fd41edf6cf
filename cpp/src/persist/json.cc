#include "persist/json.h"

#include <charconv>
#include <set>
#include <utility>

namespace kvcache::persist::json {
namespace {

constexpr int kMaxDepth = 16;
constexpr std::size_t kMaxValues = 1 << 18;  // about 30 MB of Value
constexpr std::size_t kMaxDigits = 32;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

// Recursive descent; every method returns false after it has set error_.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Value> run() {
    Value value;
    if (!is_utf8(text_)) return Status::corruption("not valid UTF-8");
    if (!parse_value(value, 0)) return failure();
    skip_space();
    if (at_ != text_.size()) {
      fail("something follows the value");
      return failure();
    }
    return value;
  }

 private:
  Status failure() const { return Status::corruption("byte ", at_, ": ", error_); }
  bool fail(const char* what) {
    error_ = what;
    return false;
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool accept(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
  }
  bool parse_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return fail("expected a value");
    at_ += word.size();
    return true;
  }

  bool parse_value(Value& value, int depth) {
    if (++values_ > kMaxValues) return fail("too many values");
    skip_space();
    switch (peek()) {
      case '{':
        return depth < kMaxDepth ? parse_object(value, depth) : fail("nested too deeply");
      case '[':
        return depth < kMaxDepth ? parse_array(value, depth) : fail("nested too deeply");
      case '"':
        value.kind = Kind::kString;
        return parse_string(value.text);
      case 't':
        value.kind = Kind::kBool;
        value.number = 1;
        return parse_word("true");
      case 'f':
        value.kind = Kind::kBool;
        return parse_word("false");
      case 'n':
        return parse_word("null");
      default:
        return parse_number(value);
    }
  }

  bool parse_array(Value& value, int depth) {
    value.kind = Kind::kArray;
    accept('[');
    skip_space();
    if (accept(']')) return true;
    do {
      value.items.emplace_back();
      if (!parse_value(value.items.back(), depth + 1)) return false;
      skip_space();
    } while (accept(','));
    return accept(']') || fail("expected ',' or ']'");
  }

  bool parse_object(Value& value, int depth) {
    value.kind = Kind::kObject;
    accept('{');
    skip_space();
    if (accept('}')) return true;
    std::set<std::string> seen;
    do {
      skip_space();
      std::string key;
      if (!parse_string(key)) return false;
      if (!seen.insert(key).second) return fail("a key appears twice");
      value.keys.push_back(std::move(key));
      skip_space();
      if (!accept(':')) return fail("expected ':'");
      value.items.emplace_back();
      if (!parse_value(value.items.back(), depth + 1)) return false;
      skip_space();
    } while (accept(','));
    return accept('}') || fail("expected ',' or '}'");
  }

  bool parse_digits() {
    const std::size_t from = at_;
    while (is_digit(peek())) ++at_;
    return at_ > from || fail("expected a digit");
  }

  bool parse_number(Value& value) {
    const std::size_t from = at_;
    bool integer = !accept('-');
    if (!is_digit(peek())) return fail("expected a value");
    if (accept('0')) {
      if (is_digit(peek())) return fail("a number begins with 0");
    } else if (!parse_digits()) {
      return false;
    }
    if (accept('.')) {
      integer = false;
      if (!parse_digits()) return false;
    }
    if (accept('e') || accept('E')) {
      integer = false;
      if (!accept('+')) accept('-');
      if (!parse_digits()) return false;
    }
    if (at_ - from > kMaxDigits) return fail("a number has too many digits");
    value.kind = integer ? Kind::kUnsigned : Kind::kNumber;
    if (!integer) return true;
    const auto read = std::from_chars(text_.data() + from, text_.data() + at_, value.number);
    return read.ec == std::errc() || fail("an integer does not fit 64 bits");
  }

  bool parse_hex4(std::uint32_t& code) {
    if (text_.size() - at_ < 4) return fail("a cut-off \\u escape");
    for (const char* p = text_.data() + at_; p < text_.data() + at_ + 4; ++p) {
      const bool hex = is_digit(*p) || (*p >= 'a' && *p <= 'f') || (*p >= 'A' && *p <= 'F');
      if (!hex) return fail("a \\u escape needs four hex digits");
    }
    std::from_chars(text_.data() + at_, text_.data() + at_ + 4, code, 16);
    at_ += 4;
    return true;
  }

  bool parse_unicode(std::string& out) {
    std::uint32_t code = 0;
    if (!parse_hex4(code)) return false;
    if (code >= 0xdc00 && code < 0xe000) return fail("half of a surrogate pair");
    if (code >= 0xd800 && code < 0xdc00) {
      std::uint32_t low = 0;
      if (!accept('\\') || !accept('u')) return fail("half of a surrogate pair");
      if (!parse_hex4(low)) return false;
      if (low < 0xdc00 || low >= 0xe000) return fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(out, code);
    return true;
  }

  bool parse_escape(std::string& out) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (accept('u')) return parse_unicode(out);
    const std::size_t index = at_ < text_.size() ? kNames.find(text_[at_]) : kNames.npos;
    if (index == kNames.npos) return fail("an unknown escape");
    out += kMeanings[index];
    ++at_;
    return true;
  }

  bool parse_string(std::string& out) {
    if (!accept('"')) return fail("expected a string");
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) return fail("a control character in a string");
      ++at_;
      if (c == '"') return true;
      if (c != '\\') {
        out += c;
      } else if (!parse_escape(out)) {
        return false;
      }
    }
    return fail("a string has no end");
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t values_ = 0;
  const char* error_ = "";
};

// Length of the well-formed sequence that `p` begins (Unicode 15, table 3-7), or 0.
std::size_t utf8_length(const unsigned char* p, std::size_t left) {
  const unsigned char lead = p[0];
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (left < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((p[i] & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && p[1] < 0xa0) || (lead == 0xf0 && p[1] < 0x90);
  const bool surrogate = lead == 0xed && p[1] > 0x9f;
  const bool too_large = lead == 0xf4 && p[1] > 0x8f;
  return overlong || surrogate || too_large ? 0 : length;
}

}  // namespace

const Value* Value::find(std::string_view key) const {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

Result<Value> parse(std::string_view text) { return Parser(text).run(); }

bool is_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(bytes + at, text.size() - at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

void append_string(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (code < 0x20) {
      out += "\\u00";
      out += kHex[code >> 4];
      out += kHex[code & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

}  // namespace kvcache::persist::json
