#include "speculate/ngram_ring.h"

#include <algorithm>
#include <bit>

#include "speculate/ngram_table.h"

namespace kvcache::speculate {
namespace {

constexpr std::int32_t kSeparator = -1;
constexpr std::uint64_t kWays = 4;    // slots that an n-gram may be in, the newest first
constexpr std::uint64_t kKnown = 32;  // predicted tokens in a row after which a run is not stored

using Tokens = std::span<const std::int32_t>;

}  // namespace

NgramRing::NgramRing(std::uint64_t bytes, std::uint64_t length)
    : length_(length), slots_(std::bit_floor(bytes / 8)), ring_(bytes / 4 - slots_) {
  table_.reset(static_cast<std::uint32_t*>(std::calloc(slots_, sizeof(std::uint32_t))));
  if (table_ == nullptr) return;
  tokens_.reset(static_cast<std::int32_t*>(std::calloc(ring_, sizeof(std::int32_t))));
  if (tokens_ != nullptr) tokens_.get()[head_] = kSeparator;
}

std::uint32_t* NgramRing::set_of(Tokens tokens, std::uint64_t end) const {
  std::uint64_t hash = 0;
  for (std::uint64_t i = 1; i <= length_; ++i) hash = hash_token(hash, tokens[end - i]);
  return table_.get() + (hash & (slots_ / kWays - 1)) * kWays;
}

bool NgramRing::ends_before(std::uint64_t place, Tokens tokens, std::uint64_t end) const {
  for (std::uint64_t i = 1; i <= length_; ++i) {
    place = before(place);
    if (tokens_.get()[place] != tokens[end - i]) return false;
  }
  return true;
}

std::uint64_t NgramRing::place_after(Tokens tokens, std::uint64_t end) const {
  const std::uint32_t* set = set_of(tokens, end);
  for (std::uint64_t way = 0; way < kWays && set[way] != 0; ++way) {
    if (ends_before(set[way] - 1, tokens, end)) return set[way] - 1;
  }
  return ring_;
}

void NgramRing::record(Tokens tokens, std::uint64_t end, std::uint64_t place) {
  std::uint32_t* set = set_of(tokens, end);
  std::uint64_t way = 0;
  while (way < kWays - 1 && set[way] != 0 && !ends_before(set[way] - 1, tokens, end)) ++way;
  std::copy_backward(set, set + way, set + way + 1);
  set[0] = static_cast<std::uint32_t>(place) + 1;
}

std::uint64_t NgramRing::find(Tokens history, std::span<std::int32_t> drafts) const {
  if (history.size() < length_) return 0;
  std::uint64_t place = place_after(history, history.size());
  if (place == ring_) return 0;
  std::uint64_t count = 0;
  while (count < drafts.size() && tokens_.get()[place] != kSeparator) {
    drafts[count++] = tokens_.get()[place];
    place = after(place);
  }
  return count;
}

void NgramRing::push(std::int32_t token) {
  tokens_.get()[head_] = token;
  head_ = after(head_);
  tokens_.get()[head_] = kSeparator;
  filled_ = std::min(filled_ + 1, ring_ - 1);
}

void NgramRing::insert(Tokens tokens) {
  std::uint64_t predicted = kKnown;  // nothing is stored before the first surprise
  std::uint64_t follow = ring_;      // what comes next where the run was said before
  for (std::uint64_t end = length_; end < tokens.size(); ++end) {
    std::uint64_t place = place_after(tokens, end);
    if (place == ring_ || tokens_.get()[place] != tokens[end]) place = follow;
    const bool known = place != ring_ && tokens_.get()[place] == tokens[end];
    const bool storing = predicted < kKnown;
    predicted = known ? predicted + 1 : 0;
    follow = known ? after(place) : ring_;
    if (!storing && !known) {
      push(kSeparator);
      for (std::uint64_t i = length_; i > 0; --i) push(tokens[end - i]);
    }
    const bool stored = storing || !known;
    record(tokens, end, stored ? head_ : place);
    if (stored) push(tokens[end]);
  }
}

}  // namespace kvcache::speculate
