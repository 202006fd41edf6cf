// Whose prefixes may be shared, and what the tokens of a prompt stand for.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

// One image, clip or file inside a prompt: positions [start, start + length) hold pad tokens, which
// are the same for every item, so its content is told by a digest.
struct MediaSpan {
  std::uint64_t start = 0;
  std::uint64_t length = 0;
  std::string digest;  // of the content, any bytes: 1 to 64 of them

  bool operator==(const MediaSpan&) const = default;
};

// Only sequences that agree in all fields share, byte for byte.
struct PrefixSpace {
  std::string name;     // application namespace
  std::string adapter;  // adapter identity, name and revision; empty for none
  std::string salt;
  std::vector<MediaSpan> media = {};  // by ascending start, apart from one another
};

// A space as the index keys it. Borrows.
struct SpaceRef {
  // NOLINTNEXTLINE(google-explicit-constructor): a space without media is its name.
  SpaceRef(std::string_view key_value) : key(key_value) {}
  SpaceRef(const char* key_value) : key(key_value) {}
  SpaceRef(const std::string& key_value) : key(key_value) {}
  SpaceRef(std::string_view key_value, std::span<const MediaSpan> media_value,
           std::uint64_t epoch_value)
      : key(key_value), media(media_value), epoch(epoch_value) {}

  static constexpr std::uint64_t kAnyEpoch = UINT64_MAX;

  std::string_view key;
  std::span<const MediaSpan> media;
  std::uint64_t epoch = kAnyEpoch;  // of the weights that computed the state
};

}  // namespace kvcache
