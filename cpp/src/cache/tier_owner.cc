#include "cache/tier_owner.h"

#include <array>
#include <charconv>
#include <optional>

#include "base/sha256.h"
#include "cache/cache_core.h"

namespace kvcache {
namespace {

using Fields = std::array<std::string_view, 4>;

std::string salt_text(const std::string& salt) { return salt.empty() ? "" : sha256_hex(salt); }

std::optional<Fields> parse(std::string_view owner) {
  Fields fields;
  for (std::string_view& field : fields) {
    std::size_t size = 0;
    const char* end = owner.data() + owner.size();
    const auto parsed = std::from_chars(owner.data(), end, size);
    if (parsed.ec != std::errc() || parsed.ptr == end || *parsed.ptr != ':') return std::nullopt;
    owner.remove_prefix(static_cast<std::size_t>(parsed.ptr - owner.data()) + 1);
    if (size > owner.size()) return std::nullopt;
    field = owner.substr(0, size);
    owner.remove_prefix(size);
  }
  return owner.empty() ? std::optional(fields) : std::nullopt;
}

}  // namespace

std::string owner_text(const PrefixSpace& space, std::string_view tenant) {
  return space_key({space.name, space.adapter, salt_text(space.salt)}) + with_length(tenant);
}

bool is_in_space(std::string_view owner, const EraseFilter& filter) {
  const auto fields = parse(owner);
  if (!fields) return true;
  EraseFilter salted = filter;
  if (filter.salt) salted.salt = salt_text(*filter.salt);
  const auto& [name, adapter, salt, tenant] = *fields;
  return agrees(name, adapter, salt, salted);
}

bool is_of_tenant(std::string_view owner, const EraseFilter& filter) {
  const auto fields = parse(owner);
  return !fields || !filter.tenant || *filter.tenant == fields->back();
}

}  // namespace kvcache
