// What the price list learns: when things come of age, when they are used, how they are filed.
#include <algorithm>

#include "evict/price_list.h"

namespace kvcache::evict {
namespace {

constexpr std::uint32_t kRepriceEvery = 64;  // requests
constexpr double kHalfLife = 4000.0 / 64;    // in repricings
constexpr std::uint64_t kNewTokens = 3072;   // more is many
constexpr std::uint32_t kTail = 1;           // the class of a last block that is not full
constexpr std::uint32_t kKinds = 6;          // output x new
constexpr std::uint32_t kClasses = 2 + 6 * kKinds;
constexpr std::uint32_t kOwnSlots = 12;    // hints that are told apart
constexpr std::uint32_t kSharedSlots = 3;  // for all others

std::uint32_t uses_level(std::uint32_t uses) {
  constexpr std::array<std::uint32_t, 5> kAtMost = {1, 2, 4, 8, 32};
  return static_cast<std::uint32_t>(std::lower_bound(kAtMost.begin(), kAtMost.end(), uses) -
                                    kAtMost.begin());
}

}  // namespace

std::vector<HazardTable::Parents> class_parents(std::uint32_t hint) {
  std::vector<HazardTable::Parents> parents;
  for (std::uint16_t cls = 0; cls < kClasses; ++cls) {
    const std::uint32_t level = cls < 2 ? cls : 2 + (cls - 2) / kKinds;
    parents.push_back({hint == 0 ? HazardTable::kNoBase : cls, static_cast<std::uint16_t>(level)});
  }
  return parents;
}

// Moves what has come of age on to the next bucket.
void PriceList::advance(std::uint64_t now_ms) {
  now_ms_ = std::max(now_ms_, now_ms);
  snapshots_.advance(now_ms_);
  const auto& edges = age_edges();
  for (std::size_t bucket = 0; bucket < kLastBucket; ++bucket) {
    for (RecordId id = timers_[bucket].front(); id != kNoRecord; id = timers_[bucket].front()) {
      Record& record = history_[id];
      if (static_cast<double>(now_ms_ - record.t0) < edges[bucket + 1]) break;
      const bool listed = record.listed;
      if (listed) drawers_.remove(history_, id);
      timers_[bucket].remove(history_, id);
      ++record.bucket;
      timers_[bucket + 1].push_back(history_, id);
      if (record.bucket == kLastBucket && record.stored == 0) {
        forget(id);
        continue;
      }
      hazards_.enter(static_cast<int>(record.cls), record.bucket, record.weight * record.blocks());
      note_price(record);
      if (listed) drawers_.insert(history_, id, false);
    }
  }
}

// The run was used: its interval ends with a use.
void PriceList::close(RecordId id) {
  Record& record = history_[id];
  hazards_.reuse(static_cast<int>(record.cls), record.bucket, record.weight * record.blocks());
  reuses_ += record.blocks();
  timers_[record.bucket].remove(history_, id);
  record.timed = false;
}

// A new interval begins.
void PriceList::open(RecordId id, std::uint32_t cls, double weight) {
  Record& record = history_[id];
  const bool listed = record.listed;
  if (listed) drawers_.remove(history_, id);
  record.cls = cls;
  record.weight = weight;
  record.t0 = now_ms_;
  record.bucket = 0;
  record.timed = true;
  note_price(record);
  timers_[0].push_back(history_, id);
  hazards_.enter(static_cast<int>(cls), 0, weight * record.blocks());
  if (listed) drawers_.insert(history_, id, false);
}

void PriceList::arrive(const Arrival& arrival) {
  advance(arrival.now_ms);
  capacity_blocks_ = std::max(capacity_blocks_, stored_blocks_);  // there is more room than before
  collect_path(record_ending_at(arrival.deepest, arrival.resident));
  for (const RecordId id : path_) {
    meter_.hit_blocks += history_[id].blocks();
    if (history_[id].timed) close(id);
  }
}

void PriceList::complete(const Completion& completion) {
  advance(completion.now_ms);
  const RecordId deepest = record_ending_at(completion.deepest, completion.end);
  const Record& last = history_[deepest];
  if (completion.end % block_tokens_ != 0 && !last.root && last.uses == 0 && last.blocks() > 1) {
    cut(deepest, last.blocks() - 1);
  }
  collect_path(deepest);
  std::uint64_t known_tokens = 0;
  for (const RecordId id : path_) {
    if (history_[id].uses == 0) break;
    known_tokens += history_[id].blocks() * block_tokens_;
  }
  for (const RecordId id : path_) {
    if (history_[id].timed) close(id);
  }
  const std::uint64_t fresh =
      completion.prompt_tokens - std::min(known_tokens, completion.prompt_tokens);
  const std::uint32_t output = completion.output_tokens <= 32    ? 0
                               : completion.output_tokens <= 128 ? 1
                                                                 : 2;
  const std::uint32_t kind = output * 2 + (fresh > kNewTokens ? 1 : 0);
  meter_path();
  file_path(completion, kind);
  if (has_snapshots()) file_marks(completion, kind);
  if (++requests_ % kRepriceEvery == 0) {
    hazards_.reprice(kHalfLife);
    drawers_.sort(hazards_);
    if (has_snapshots()) snapshots_.reprice(kHalfLife);
  }
  for (RecordId id = history_.excess_ghost(); id != kNoRecord; id = history_.excess_ghost()) {
    forget(id);
  }
}

// The first hints get classes of their own, later ones share a few. A closed session is a hint.
std::uint32_t PriceList::hint_slot(const Completion& completion) {
  constexpr std::uint64_t kClosed = std::uint64_t{1} << 32;
  const std::uint64_t hint = completion.session_closed ? kClosed : completion.hint;
  if (hint == 0) return 0;
  const auto known = hint_slots_.find(hint);
  if (known != hint_slots_.end()) return known->second;
  auto slot = static_cast<std::uint32_t>(hint_slots_.size() + 1);
  if (slot <= kOwnSlots) {
    hint_slots_.emplace(hint, slot);
  } else {
    slot = kOwnSlots + 1 + static_cast<std::uint32_t>(hint % kSharedSlots);
  }
  while (static_cast<std::uint32_t>(hazards_.classes()) < (slot + 1) * kClasses) {
    hazards_.add_classes(class_parents(slot));
    drawers_.sort(hazards_);
  }
  return slot;
}

// Files path_ anew. Runs of one class share the weight of one interval.
void PriceList::file_path(const Completion& completion, std::uint32_t kind) {
  const std::uint32_t first_class = kClasses * hint_slot(completion);
  std::vector<std::uint32_t> classes;
  for (const RecordId id : path_) {
    Record& record = history_[id];
    if (record.uses < UINT8_MAX) ++record.uses;
    classes.push_back(first_class + 2 + kKinds * uses_level(record.uses) + kind);
  }
  if (!path_.empty() && completion.end % block_tokens_ != 0 &&
      history_[path_.back()].blocks() == 1) {
    classes.back() = kTail;
  }
  for (std::size_t i = 0; i < path_.size();) {
    std::size_t stop = i;
    std::uint64_t blocks = 0;
    for (; stop < path_.size() && classes[stop] == classes[i]; ++stop) {
      blocks += history_[path_[stop]].blocks();
    }
    for (; i < stop; ++i) {
      open(path_[i], classes[i], 1.0 / static_cast<double>(blocks));
      if (i > 0) history_[path_[i - 1]].last_child = history_.ref(path_[i]);
    }
  }
}

}  // namespace kvcache::evict
