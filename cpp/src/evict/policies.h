// The makers of all policies, one a file; the registry names them.
#pragma once

#include <memory>

#include "evict/policy.h"

namespace kvcache::evict {

std::unique_ptr<Policy> make_flop_aware(const Costs& costs);
std::unique_ptr<Policy> make_gdsf(const Costs& costs);
std::unique_ptr<Policy> make_lru(const Costs& costs);
std::unique_ptr<Policy> make_price_list(const Costs& costs);
std::unique_ptr<Policy> make_s3fifo(const Costs& costs);

}  // namespace kvcache::evict
