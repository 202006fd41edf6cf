#include "prefix/ghosts.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "base/prefetch.h"

namespace kvcache::prefix {
namespace {

std::uint64_t mix(std::uint64_t key, std::uint64_t with) {
  return evict::block_keys_internal::fold(key ^ 0x9E3779B97F4A7C15, with * 2 + 0xC2B2AE3D27D4EB4F);
}

}  // namespace

Ghosts::Ghosts(std::uint64_t bytes)
    : shift_(64 - static_cast<unsigned>(
                      std::bit_width(std::max<std::uint64_t>(bytes / sizeof(Set), 2)) - 1)) {}

void Ghosts::add(std::uint64_t key, MissReason why) noexcept {
  if (sets_.empty()) {
    try {
      sets_.resize(std::size_t{1} << (64 - shift_));
    } catch (const std::bad_alloc&) {
      return;
    }
  }
  base::prefetch(&sets_[set_of(key)]);
  write(std::exchange(latest_, (key & ~kReasonMask) | static_cast<std::uint64_t>(why)));
}

void Ghosts::write(std::uint64_t entry) noexcept {
  if (entry == 0) return;
  Set& set = sets_[set_of(entry)];
  const auto same = std::find_if(set.begin(), set.end() - 1, [&](std::uint64_t known) {
    return (known & ~kReasonMask) == (entry & ~kReasonMask);
  });
  std::copy_backward(set.begin(), same, same + 1);  // over itself, or over the oldest
  set.front() = entry;
}

std::optional<MissReason> Ghosts::find(std::uint64_t key) const {
  const auto is_key = [&](std::uint64_t entry) {
    return entry != 0 && (entry & ~kReasonMask) == (key & ~kReasonMask);
  };
  if (is_key(latest_)) return static_cast<MissReason>(latest_ & kReasonMask);
  if (sets_.empty()) return {};
  for (const std::uint64_t entry : sets_[set_of(key)]) {
    if (is_key(entry)) return static_cast<MissReason>(entry & kReasonMask);
  }
  return {};
}

std::uint64_t Ghosts::key_of(std::uint64_t path, GhostKind kind, std::uint32_t group) {
  return mix(path, static_cast<std::uint32_t>(kind) + group + 1);
}

std::uint64_t root_key(std::string_view space, std::uint64_t generation) {
  return mix(evict::space_seed(space), generation);
}

std::uint64_t block_path_key(std::uint64_t before, std::span<const std::int32_t> tokens,
                             std::span<const LabelAt> items) {
  RollingPathKey key(before);
  for (const LabelAt& item : items) key.add(item);
  return key.of(tokens);
}

void RollingPathKey::add(const LabelAt& item) {
  items_ = mix(items_ ^ evict::space_seed(item.label), item.offset);
}

std::uint64_t RollingPathKey::of(std::span<const std::int32_t> tokens) {
  const std::uint64_t key = hash_.of(std::as_bytes(tokens));
  return items_ == 0 ? key : mix(key, items_);
}

}  // namespace kvcache::prefix
