// Whose a record of a disk tier is, as text, so that erase() finds it in files that know neither
// caches nor spaces. FORMAT.md says the same in words. Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "kvcache/cache.h"
#include "kvcache/prefix_space.h"

namespace kvcache {

// Name, adapter, the hexadecimal SHA-256 of a salt that is not empty, and the tenant, each with its
// length.
std::string owner_text(const PrefixSpace& space, std::string_view tenant);

// Whether a filter's fields but the tenant, or its tenant, agree. A text that is no owner_text()
// does: nobody could tell that it is not meant.
bool is_in_space(std::string_view owner, const EraseFilter& filter);
bool is_of_tenant(std::string_view owner, const EraseFilter& filter);

}  // namespace kvcache
