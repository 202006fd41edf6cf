// The strict JSON reader on any bytes.
#include <string_view>

#include "fuzz.h"
#include "persist/json.h"

namespace {

using kvcache::persist::json::Kind;
using kvcache::persist::json::Value;

void check(const Value& value) {
  FUZZ_EXPECT(value.kind == Kind::kObject ? value.keys.size() == value.items.size()
                                          : value.keys.empty());
  if (value.kind == Kind::kString) {
    // What was read can be written, and is read again as the same.
    FUZZ_EXPECT(kvcache::persist::json::is_utf8(value.text));
    std::string quoted;
    kvcache::persist::json::append_string(quoted, value.text);
    const auto again = kvcache::persist::json::parse(quoted);
    FUZZ_EXPECT(again.is_ok() && again->text == value.text);
  }
  for (std::size_t i = 0; i < value.keys.size(); ++i) {
    FUZZ_EXPECT(value.find(value.keys[i]) == &value.items[i]);
  }
  for (const Value& item : value.items) check(item);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed =
      kvcache::persist::json::parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (parsed) check(*parsed);
  return 0;
}
