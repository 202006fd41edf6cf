// A strict JSON reader for files that nobody vouches for, and the little that writing needs.
// RFC 8259 without leniency: valid UTF-8, no duplicate keys, nothing after the value, and limits
// on depth, on the number of values and on the digits of a number.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::persist::json {

enum class Kind : std::uint8_t { kNull, kBool, kUnsigned, kNumber, kString, kArray, kObject };

struct Value {
  Kind kind = Kind::kNull;
  std::uint64_t number = 0;       // of kUnsigned; kNumber is any other number, its value dropped
  std::string text;               // of kString
  std::vector<std::string> keys;  // of kObject, beside items
  std::vector<Value> items;       // of kArray and kObject

  // A member of an object; null when this is no object or has no such member.
  const Value* find(std::string_view key) const;
};

// kCorruption: not JSON by the rules above; the message gives the byte offset.
Result<Value> parse(std::string_view text);

bool is_utf8(std::string_view text);
// Appends `text` as a JSON string. REQUIRES: is_utf8(text).
void append_string(std::string& out, std::string_view text);

}  // namespace kvcache::persist::json
