// Names inside a prompt-cache directory. They are the same in every format version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

}  // namespace kvcache::persist
