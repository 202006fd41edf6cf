#include "kvcache/cache_terms.h"

#include <bit>

#include "base/checked.h"

namespace kvcache {
namespace {

using Units = std::optional<std::uint64_t>;  // none: more than 64 bits

Units tree_units(const CacheInputs& inputs) {
  if (!inputs.tree) return 0;
  const auto pairs = checked_mul(inputs.tree->nodes, inputs.tree->nodes);
  return pairs ? checked_mul(inputs.tree->verify_slots, *pairs) : std::nullopt;
}

Units units_of(StateKind kind, const CacheInputs& inputs) {
  switch (kind) {
    case StateKind::kPrefixSnapshot:
      return inputs.prefix_snapshot_slots;
    case StateKind::kRingSnapshot:
      return checked_mul(inputs.ring.depth, inputs.ring.sequences);
    case StateKind::kCarryStash:
      return inputs.carry.slots;
    case StateKind::kCarryTable:
      return inputs.carry.table_rows;
    case StateKind::kVerifyTable:
    case StateKind::kAcceptStash:
      return inputs.verify_table_rows;
    case StateKind::kHiddenCapture:
      return inputs.capture_rows;
    case StateKind::kPromptLookupIndex:
      return inputs.lookup ? checked_mul(inputs.lookup->sequences, inputs.lookup->history_tokens)
                           : Units{0};
    case StateKind::kTokenTreeMask:
      return tree_units(inputs);
    case StateKind::kDraftTokens:
      return inputs.drafts ? checked_mul(inputs.drafts->verify_slots, inputs.drafts->positions)
                           : Units{0};
    case StateKind::kRecurrent:
    case StateKind::kPagedKv:
      break;
  }
  return 0;
}

Result<CacheTerm> cache_term(const StateDecl& decl, std::uint32_t index,
                             const CacheInputs& inputs) {
  const auto unit = unit_bytes(decl);
  if (!unit) return unit.status();
  const Units units = units_of(decl.kind, inputs);
  Units bytes = units ? checked_mul(*units, *unit) : std::nullopt;
  const bool host = decl.kind == StateKind::kPromptLookupIndex;
  if (host && inputs.lookup) {
    const auto table = hash_table_bytes(inputs.lookup->history_tokens, *unit);
    bytes = table ? checked_mul(inputs.lookup->sequences, *table) : std::nullopt;
  }
  if (!units || !bytes) return Status::invalid_argument(decl.id, ": bytes do not fit 64 bits");
  return CacheTerm{index, *units, *bytes, host};
}

}  // namespace

Result<std::vector<CacheTerm>> cache_terms(const std::vector<StateDecl>& decls,
                                           const CacheInputs& inputs) {
  std::vector<CacheTerm> terms;
  for (std::uint32_t index = 0; index < decls.size(); ++index) {
    const StateKind kind = decls[index].kind;
    if (kind == StateKind::kRecurrent || kind == StateKind::kPagedKv) continue;
    const auto term = cache_term(decls[index], index, inputs);
    if (!term) return term.status();
    terms.push_back(*term);
  }
  return terms;
}

Result<std::uint64_t> hash_table_bytes(std::uint64_t entries, std::uint64_t entry_bytes) {
  constexpr std::uint64_t kGroup = 16;  // control bytes are probed 16 at a time
  constexpr std::uint64_t kMaxBuckets = std::uint64_t{1} << 63;
  if (entries == 0) return std::uint64_t{0};
  std::uint64_t buckets = entries < 4 ? 4 : 8;
  if (entries >= 8) {
    const auto scaled = checked_mul(entries, 8);
    if (!scaled || *scaled / 7 > kMaxBuckets) {
      return Status::invalid_argument("a table of ", entries, " entries does not fit 64 bits");
    }
    buckets = std::bit_ceil(*scaled / 7);
  }
  const auto data = checked_mul(buckets, entry_bytes);
  const auto aligned = data ? checked_add(*data, kGroup - 1) : std::nullopt;
  const auto control = checked_add(buckets, kGroup);
  const auto bytes =
      aligned && control ? checked_add(*aligned / kGroup * kGroup, *control) : std::nullopt;
  if (!bytes) {
    return Status::invalid_argument("a table of ", entries, " entries of ", entry_bytes,
                                    " bytes does not fit 64 bits");
  }
  return *bytes;
}

}  // namespace kvcache
