#pragma once

#include <memory>

#include "evict/policy.h"

namespace kvcache::evict {

std::unique_ptr<Policy> make_lru();

}  // namespace kvcache::evict
