// Which records of a log an erasure takes. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "persist/segment.h"
#include "persist/segment_format.h"

namespace kvcache::persist {

// Records whose owner is chosen by both; with `tokens`, only those of paths that begin with them in
// the spaces that `space` chooses, and what led only there.
struct TierErasure {
  using Choose = std::function<bool(std::string_view owner)>;
  Choose space;
  Choose tenant;
  std::vector<std::int32_t> tokens = {};
};

// All records of one segment, in order.
struct Listed {
  std::shared_ptr<Segment> segment;
  std::vector<RecordHeader> records;
};

// Of each segment, the indices of its chosen records. What does not say whose it is, and with
// `tokens` what no run leads to, is chosen as well: nobody could tell that it is not meant.
std::vector<std::vector<std::size_t>> choose_records(std::span<const Listed> segments,
                                                     const TierErasure& erasure);

}  // namespace kvcache::persist
