// Names inside a prompt-cache directory. They are the same in every format version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kvcache/status.h"
#include "persist/files.h"

namespace kvcache::persist {

inline constexpr char kCurrent[] = "CURRENT";
inline constexpr char kGenerations[] = ".generations";
inline constexpr char kManifest[] = "manifest.json";
inline constexpr std::string_view kGenerationPrefix = "generation-";

// A name that no other generation has: the time, and the digest of its manifest, which makes every
// byte of a generation checkable from CURRENT on.
std::string generation_name(std::string_view manifest);
// The digest in a name; none when it was not made as above.
std::optional<std::string> manifest_digest(std::string_view generation);

// The name in CURRENT. kCorruption: it is no single path component on one line.
Result<std::string> read_current(const File& root);

// How often a generation may be replaced while it is being opened.
inline constexpr int kMaxReplacements = 16;

// What `read(name)` gives of the current generation. Where it is not `whole`, a replacement may
// have taken that generation away meanwhile; then there is a newer one, which is read instead.
template <typename Read, typename Whole>
std::invoke_result_t<Read, const std::string&> read_newest(const File& root, Read read,
                                                           Whole whole) {
  auto name = read_current(root);
  for (int attempt = 1;; ++attempt) {
    if (!name) return name.status();
    auto found = read(*name);
    if (whole(found) || attempt == kMaxReplacements) return found;
    auto again = read_current(root);
    if (!again || *again == *name) return found;
    name = std::move(again);
  }
}

}  // namespace kvcache::persist
