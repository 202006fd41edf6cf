#include "prefix/placement.h"

#include <algorithm>
#include <map>

namespace kvcache::prefix {
namespace {

SnapshotKind kind_of(MarkKind mark) {
  switch (mark) {
    case MarkKind::kTurn:
      return SnapshotKind::kTurn;
    case MarkKind::kTools:
      return SnapshotKind::kTools;
    case MarkKind::kSystem:
      return SnapshotKind::kSystem;
    case MarkKind::kOther:
      break;
  }
  return SnapshotKind::kOther;
}

// The stops that somebody has a reason for. The last token of a prompt runs in any case, so the
// state before it serves the same prompt again and costs a longer one a single token.
std::map<std::uint64_t, SnapshotKind> reasons(const PlacementInput& input) {
  std::map<std::uint64_t, SnapshotKind> found;
  const auto add = [&](std::uint64_t position, SnapshotKind kind) {
    if (position <= input.length || position > input.tokens) return;
    SnapshotKind& known = found.try_emplace(position, kind).first->second;
    known = std::max(known, kind);
  };
  for (const Mark& mark : input.marks) add(mark.position, kind_of(mark.kind));
  for (const std::uint64_t branch : input.branches) {
    if (branch + 1 < input.tokens) add(branch, SnapshotKind::kBranch);
  }
  if (input.tokens > 0) add(input.tokens - 1, SnapshotKind::kPromptEnd);
  return found;
}

// Multiples of the least power-of-two multiple of the interval of which at most `limit` fit.
void add_intervals(const PlacementInput& input, std::uint64_t interval, std::uint64_t limit,
                   std::vector<Stop>& stops) {
  if (limit == 0 || input.tokens == 0) return;
  const std::uint64_t end = input.tokens - 1;
  if (end <= input.length) return;
  while ((end / interval) - (input.length / interval) > limit) {
    if (interval > end / 2) return;
    interval *= 2;
  }
  const std::vector<Stop> reasoned = stops;  // ascending by position
  auto next = reasoned.begin();
  for (std::uint64_t n = input.length / interval + 1; n <= end / interval; ++n) {
    const std::uint64_t position = n * interval;
    // A neighbour closer than a quarter serves nearly as well.
    while (next != reasoned.end() && next->position + interval / 4 <= position) ++next;
    if (next != reasoned.end() && next->position < position + interval / 4) continue;
    stops.push_back({position, SnapshotKind::kInterval});
  }
}

}  // namespace

std::vector<Stop> place_stops(const PlacementInput& input, const PlacementOptions& options) {
  std::vector<Stop> stops;
  for (const auto& [position, kind] : reasons(input)) stops.push_back({position, kind});
  const std::uint64_t most =
      options.snapshots_per_path == 0 ? UINT64_MAX : options.snapshots_per_path;
  if (stops.size() > most) {
    std::sort(stops.begin(), stops.end(), [](const Stop& a, const Stop& b) {
      return a.kind != b.kind ? a.kind > b.kind : a.position > b.position;
    });
    stops.resize(most);
  }
  const auto by_position = [](const Stop& a, const Stop& b) { return a.position < b.position; };
  std::sort(stops.begin(), stops.end(), by_position);
  const std::uint64_t taken = input.resident + stops.size();
  if (input.intervals && options.interval_tokens > 0 && taken < most) {
    add_intervals(input, options.interval_tokens, most - taken, stops);
    std::sort(stops.begin(), stops.end(), by_position);
  }
  return stops;
}

}  // namespace kvcache::prefix
