// A bounded memory of what has left the index and why, by 64-bit keys of paths: for explain(),
// which may err in one answer out of 2^58, never for a hit. Thread safety: thread-compatible; the
// cache's lock guards it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "evict/block_keys.h"
#include "kvcache/explanation.h"
#include "kvcache/prefix_space.h"

namespace kvcache::prefix {

// What of a path has left.
enum class GhostKind : std::uint32_t {
  kRun = 0,
  kSnapshot = 1,
  kWindow = 2,         // + group
  kTenant = 1U << 30,  // + number: whose quota any of these had to go for
};

class Ghosts {
 public:
  explicit Ghosts(std::uint64_t bytes);

  // Memory is taken by the first call; where there is none, nothing is remembered. The oldest of
  // the eight entries that share a cache line gives way. An entry is written by the next call, when
  // its line has come.
  void add(std::uint64_t key, MissReason why) noexcept;
  std::optional<MissReason> find(std::uint64_t key) const;

  static std::uint64_t key_of(std::uint64_t path, GhostKind kind, std::uint32_t group = 0);

 private:
  static constexpr std::size_t kWays = 8;
  static constexpr std::uint64_t kReasonMask = 7;
  using Set = std::array<std::uint64_t, kWays>;

  std::uint64_t set_of(std::uint64_t key) const { return key >> shift_; }
  void write(std::uint64_t entry) noexcept;

  unsigned shift_;
  std::vector<Set> sets_;
  std::uint64_t latest_ = 0;  // not written yet; 0: there is none
};

// A media item that begins in a block: its offset there, and its label.
struct LabelAt {
  std::uint64_t offset;
  std::string_view label;
};

// Keys of paths. `generation` counts the times that everything was dropped.
std::uint64_t root_key(std::string_view space, std::uint64_t generation);
std::uint64_t block_path_key(std::uint64_t before, std::span<const std::int32_t> tokens,
                             std::span<const LabelAt> items);

// The same of one block's beginnings, from the shortest on, each in constant time.
class RollingPathKey {
 public:
  explicit RollingPathKey(std::uint64_t before) : hash_(before) {}

  // A media item that begins before the next end.
  void add(const LabelAt& item);
  std::uint64_t of(std::span<const std::int32_t> tokens);

 private:
  evict::block_keys_internal::RollingHash hash_;
  std::uint64_t items_ = 0;  // of those so far; 0: there is none
};

}  // namespace kvcache::prefix
