#include "speculate/ngram_index.h"

#include <algorithm>

namespace kvcache::speculate {
namespace {

using Tokens = NgramIndex::Tokens;

bool equal_before(Tokens history, std::uint64_t a, std::uint64_t b, std::uint64_t length) {
  const std::int32_t* tokens = history.data();
  return std::equal(tokens + a - length, tokens + a, tokens + b - length);
}

Status no_memory(std::uint64_t buckets) {
  return Status::out_of_capacity("an n-gram table of ", buckets,
                                 " buckets: the system has no memory; lower history_tokens");
}

}  // namespace

Status NgramIndex::reserve() {
  const std::uint64_t buckets = NgramTable::buckets_for(capacity_ * lengths());
  return table_.allocate(buckets) ? Status::ok() : no_memory(buckets);
}

Status NgramIndex::observe(Tokens history) {
  const std::uint64_t length = history.size();
  if (length > UINT32_MAX) {
    return Status::invalid_argument("a history of ", length, " tokens; at most ", UINT32_MAX,
                                    " can be indexed");
  }
  const std::uint64_t buckets = NgramTable::buckets_for(std::min(length, capacity_) * lengths());
  if (buckets > table_.buckets()) {
    // The history itself fills the larger table: what is stale stays behind.
    if (!table_.allocate(buckets)) return no_memory(buckets);
    next_ = 0;
    trusted_ = ~std::uint64_t{0};
  }
  truncate(length);
  for (std::uint64_t begin = std::max(next_, min_); begin < length; begin += kStride) {
    index(history, begin, std::min(begin + kStride, length));
  }
  next_ = length;
  return Status::ok();
}

void NgramIndex::truncate(std::uint64_t length) {
  if (length >= next_) return;
  next_ = length;
  trusted_ = std::min(trusted_, length);
}

std::uint64_t NgramIndex::hash_before(Tokens history, std::uint64_t end,
                                      std::uint64_t* hashes) const {
  const std::uint64_t longest = std::min(max_, end);
  std::uint64_t hash = 0;
  std::uint64_t count = 0;
  for (std::uint64_t length = 1; length <= longest; ++length) {
    hash = hash_token(hash, history[end - length]);
    if (length >= min_) hashes[count++] = hash & hash_mask_;
  }
  return count;
}

// Several positions at a time, so that their entries arrive from memory side by side.
void NgramIndex::index(Tokens history, std::uint64_t begin, std::uint64_t end) {
  std::uint64_t hashes[kStride][kMaxLengths];
  std::uint64_t counts[kStride];
  for (std::uint64_t at = begin; at < end; ++at) {
    std::uint64_t* own = hashes[at - begin];
    counts[at - begin] = hash_before(history, at, own);
    for (std::uint64_t i = 0; i < counts[at - begin]; ++i) table_.prefetch(own[i]);
  }
  for (std::uint64_t at = begin; at < end; ++at) {
    for (std::uint64_t i = 0; i < counts[at - begin]; ++i) {
      record(history, at, min_ + i, hashes[at - begin][i]);
    }
  }
}

void NgramIndex::record(Tokens history, std::uint64_t end, std::uint64_t length,
                        std::uint64_t hash) {
  NgramTable::Entry& entry = table_.claim(hash);
  const std::uint64_t first = entry.first;
  const bool seen = first >= length && first < end &&
                    (first < trusted_ || equal_before(history, first, end, length));
  if (!seen) entry.first = static_cast<std::uint32_t>(end);
  entry.last = static_cast<std::uint32_t>(end);
}

NgramIndex::Match NgramIndex::find(Tokens history, bool earliest) const {
  std::uint64_t hashes[kMaxLengths];
  const std::uint64_t size = history.size();
  const std::uint64_t count = table_.buckets() == 0 ? 0 : hash_before(history, size, hashes);
  for (std::uint64_t i = 0; i < count; ++i) table_.prefetch(hashes[i]);
  for (std::uint64_t i = count; i-- > 0;) {
    const NgramTable::Entry* entry = table_.find(hashes[i]);
    if (entry == nullptr) continue;
    const std::uint64_t length = min_ + i;
    const std::uint64_t first = entry->first;
    const std::uint64_t last = entry->last;
    for (const std::uint64_t end : {earliest ? first : last, earliest ? last : first}) {
      const bool inside = end >= length && end < size;
      if (inside && equal_before(history, end, size, length)) return {end, length};
    }
  }
  return {};
}

}  // namespace kvcache::speculate
