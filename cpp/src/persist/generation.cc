#include "persist/generation.h"

#include <algorithm>
#include <chrono>

#include "base/sha256.h"

namespace kvcache::persist {
namespace {

constexpr std::size_t kDigestDigits = 64;
constexpr std::size_t kMaxNameBytes = 256;

bool all_of(std::string_view text, std::string_view allowed) {
  return text.find_first_not_of(allowed) == text.npos;
}

}  // namespace

std::string generation_name(std::string_view manifest) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  return std::string(kGenerationPrefix) + std::to_string(nanos) + '-' + sha256_hex(manifest);
}

std::optional<std::string> manifest_digest(std::string_view generation) {
  if (!generation.starts_with(kGenerationPrefix)) return std::nullopt;
  generation.remove_prefix(kGenerationPrefix.size());
  const std::size_t dash = generation.find('-');
  if (dash == generation.npos || dash == 0) return std::nullopt;
  const std::string_view digest = generation.substr(dash + 1);
  if (!all_of(generation.substr(0, dash), "0123456789")) return std::nullopt;
  if (digest.size() != kDigestDigits || !all_of(digest, "0123456789abcdef")) return std::nullopt;
  return std::string(digest);
}

Result<std::string> read_current(const File& root) {
  auto text = read_small_file(root, kCurrent, kMaxNameBytes + 1);
  if (!text) return text.status();
  const std::string path = root.path() + '/' + kCurrent;
  if (text->empty() || text->back() != '\n') {
    return Status::corruption(path, ": expected one name and a newline");
  }
  text->pop_back();
  const std::string& name = *text;
  const bool safe = !name.empty() && name != "." && name != ".." &&
                    name.find_first_of(std::string_view("/\\\n\0", 4)) == name.npos;
  if (!safe) return Status::corruption(path, ": does not name a generation");
  return text;
}

}  // namespace kvcache::persist
