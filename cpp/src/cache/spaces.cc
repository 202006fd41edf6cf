// Prefix spaces: their keys, and dropping what they hold.
#include <charconv>
#include <utility>

#include "cache/cache_core.h"
#include "cache/disk_tier.h"
#include "cache/remote_tier.h"
#include "kvcache/cache.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxDigestBytes = 64;

// Takes one field off a key that space_key() made.
std::string_view take_field(std::string_view& key) {
  std::size_t size = 0;
  const auto parsed = std::from_chars(key.data(), key.data() + key.size(), size);
  const std::size_t begin = static_cast<std::size_t>(parsed.ptr - key.data()) + 1;
  const std::string_view field = key.substr(begin, size);
  key.remove_prefix(begin + size);
  return field;
}

bool agrees(std::string_view key, const EraseFilter& filter) {
  const std::string_view name = take_field(key);
  const std::string_view adapter = take_field(key);
  return agrees(name, adapter, take_field(key), filter);
}

}  // namespace

bool agrees(std::string_view name, std::string_view adapter, std::string_view salt,
            const EraseFilter& filter) {
  if (filter.name && *filter.name != name) return false;
  // A name without a revision is the beginning of one with it: each part carries its length.
  const bool named =
      !filter.adapter ||
      (filter.adapter->empty() ? adapter.empty() : adapter.starts_with(*filter.adapter));
  return named && (!filter.salt || *filter.salt == salt);
}

std::string with_length(std::string_view field) {
  return std::to_string(field.size()).append(1, ':').append(field);
}

std::string space_key(const PrefixSpace& space) {
  std::string key;
  for (const std::string* field : {&space.name, &space.adapter, &space.salt}) {
    key += with_length(*field);
  }
  return key;
}

PrefixSpace space_of(std::string_view key) {
  PrefixSpace space;
  for (std::string* field : {&space.name, &space.adapter, &space.salt}) *field = take_field(key);
  return space;
}

Status check_media(std::span<const MediaSpan> media, std::uint64_t begin, std::uint64_t end) {
  std::uint64_t from = begin;
  for (std::size_t i = 0; i < media.size(); ++i) {
    const MediaSpan& span = media[i];
    if (span.digest.empty() || span.digest.size() > kMaxDigestBytes) {
      return Status::invalid_argument("media[", i, "].digest: expected 1..", kMaxDigestBytes,
                                      " bytes, got ", span.digest.size());
    }
    const bool inside = span.start >= from && span.start <= end && span.length <= end - span.start;
    if (span.length == 0 || !inside) {
      return Status::invalid_argument("media[", i, "]: ", span.length, " positions from ",
                                      span.start, " do not lie within [", from, ", ", end,
                                      "), after the item before; items ascend and are apart");
    }
    from = span.start + span.length;
  }
  return Status::ok();
}

void Cache::bump_epoch(std::string weights) {
  const std::lock_guard lock(core_->mutex);
  if (!core_->mutex.is_own_process()) return;
  core_->index.bump_epoch();
  for (Tier* tier : core_->tiers()) {
    if (tier != nullptr) tier->set_weights(weights);
  }
  core_->weights = std::move(weights);
}

Result<std::uint64_t> Cache::erase(const EraseFilter& filter) {
  if (Status status = check_process(); !status) return status;
  const bool whole = filter.name && filter.adapter && filter.salt;
  if (!filter.tokens.empty() && !whole) {
    return Status::invalid_argument(
        "erase: tokens need a whole space: namespace, adapter and salt, empty ones included");
  }
  if (filter.tenant && filter.tenant->empty()) {
    return Status::invalid_argument("erase: a tenant needs a name");
  }
  if (!filter.tokens.empty()) {
    if (Status status = check_media(filter.media, 0, filter.tokens.size()); !status) return status;
  }
  // What was read before this is not inserted after it.
  Status below;
  for (Tier* tier : core_->tiers()) {
    const Status status = tier != nullptr ? tier->erase(filter).status() : Status::ok();
    if (below) below = status;
  }
  const std::lock_guard lock(core_->mutex);
  ++core_->erasures;
  const std::uint64_t blocks = core_->erase(filter);
  if (!below) return below;
  return blocks;
}

std::uint64_t CacheCore::erase(const EraseFilter& filter) {
  if (filter.tokens.empty()) {
    const auto chosen = [&](std::string_view key) { return agrees(key, filter); };
    return filter.tenant ? index.erase_tenant(*filter.tenant, chosen) : index.erase_spaces(chosen);
  }
  const std::string key = space_key({*filter.name, *filter.adapter, *filter.salt});
  const SpaceRef space(key, filter.media, SpaceRef::kAnyEpoch);
  return filter.tenant ? index.erase_tenant(*filter.tenant, space, filter.tokens)
                       : index.erase_prefix(space, filter.tokens);
}

}  // namespace kvcache
