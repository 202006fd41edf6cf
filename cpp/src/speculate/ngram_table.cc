#include "speculate/ngram_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvcache::speculate {
namespace {

constexpr std::uint8_t kNoBucket = 0xFF;  // control of what only fills up the last group
constexpr std::uint64_t kOnes = 0x0101010101010101U;
constexpr std::uint64_t kHighs = 0x8080808080808080U;

std::uint8_t tag_of(std::uint64_t hash) { return static_cast<std::uint8_t>(0x80 | hash >> 58); }

static_assert(std::endian::native == std::endian::little, "the first of eight controls is lowest");

std::uint64_t load(const std::uint8_t* controls) {
  std::uint64_t word = 0;
  std::memcpy(&word, controls, sizeof word);
  return word;
}

// The high bit of each byte of `word` that is zero.
std::uint64_t zero_bytes(std::uint64_t word) {
  return ~(((word & ~kHighs) + ~kHighs) | word | ~kHighs);
}

std::uint64_t first_byte(std::uint64_t highs) {
  return static_cast<std::uint64_t>(std::countr_zero(highs)) / 8;
}

}  // namespace

std::uint64_t NgramTable::buckets_for(std::uint64_t entries) {
  if (entries == 0) return 0;
  if (entries < 8) return entries < 4 ? 4 : 8;
  return std::bit_ceil(entries * 8 / 7);
}

bool NgramTable::allocate(std::uint64_t buckets) {
  // All zero, and mapped by the system only where it is touched.
  void* memory = std::calloc(buckets * (sizeof(Entry) + 1) + kGroup, 1);
  if (memory == nullptr) return false;
  memory_.reset(static_cast<std::byte*>(memory));
  entries_ = reinterpret_cast<Entry*>(memory_.get());
  control_ = reinterpret_cast<std::uint8_t*>(entries_ + buckets);
  buckets_ = buckets;
  group_mask_ = std::max(buckets / kGroup, std::uint64_t{1}) - 1;
  limit_ = buckets < kGroup ? buckets - 1 : buckets / 8 * 7;
  used_ = 0;
  std::memset(control_ + buckets, kNoBucket, kGroup);
  return true;
}

NgramTable::Entry* NgramTable::find_in(std::uint64_t group, std::uint64_t hash) const {
  const std::uint64_t tags = tag_of(hash) * kOnes;
  for (std::uint64_t half = 0; half < kGroup; half += 8) {
    const std::uint64_t start = group * kGroup + half;
    std::uint64_t equal = zero_bytes(load(control_ + start) ^ tags);
    for (; equal != 0; equal &= equal - 1) {
      Entry& entry = entries_[start + first_byte(equal)];
      if (entry.hash == hash) return &entry;
    }
  }
  return nullptr;
}

std::uint64_t NgramTable::empty_in(std::uint64_t group) const {
  for (std::uint64_t half = 0; half < kGroup; half += 8) {
    const std::uint64_t empty = ~load(control_ + group * kGroup + half) & kHighs;
    if (empty != 0) return half + first_byte(empty);
  }
  return kGroup;
}

const NgramTable::Entry* NgramTable::find(std::uint64_t hash) const {
  if (buckets_ == 0) return nullptr;
  std::uint64_t group = home(hash);
  for (std::uint64_t probe = 1; probe <= kProbes; ++probe) {
    if (const Entry* entry = find_in(group, hash)) return entry;
    if (empty_in(group) < kGroup) return nullptr;
    group = (group + probe) & group_mask_;
  }
  return nullptr;
}

NgramTable::Entry& NgramTable::claim(std::uint64_t hash) {
  std::uint64_t group = home(hash);
  for (std::uint64_t probe = 1; probe <= kProbes; ++probe) {
    if (Entry* entry = find_in(group, hash)) return *entry;
    const std::uint64_t empty = empty_in(group);
    if (empty < kGroup) {
      return used_ < limit_ ? place(group * kGroup + empty, hash) : take_over(home(hash), hash);
    }
    group = (group + probe) & group_mask_;
  }
  return take_over(home(hash), hash);
}

NgramTable::Entry& NgramTable::place(std::uint64_t bucket, std::uint64_t hash) {
  control_[bucket] = tag_of(hash);
  ++used_;
  entries_[bucket] = {hash, 0, 0};
  return entries_[bucket];
}

// The bucket stays occupied, so whatever lies behind it is still found.
NgramTable::Entry& NgramTable::take_over(std::uint64_t group, std::uint64_t hash) {
  const std::uint64_t start = group * kGroup;
  std::uint64_t stalest = start;
  if (control_[start] == 0) return place(start, hash);
  const std::uint64_t end = std::min(start + kGroup, buckets_);
  for (std::uint64_t bucket = start + 1; bucket < end && control_[bucket] != 0; ++bucket) {
    if (entries_[bucket].last < entries_[stalest].last) stalest = bucket;
  }
  control_[stalest] = tag_of(hash);
  entries_[stalest] = {hash, 0, 0};
  return entries_[stalest];
}

}  // namespace kvcache::speculate
