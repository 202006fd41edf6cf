#include "kvcache/state_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/sha256.h"
#include "layout/snapshot_layout.h"
#include "layout/spans.h"
#include "layout/stash_layout.h"

namespace kvcache {
namespace {

// Beyond this an offset inside a page or a slot would be no size any machine has.
constexpr std::uint64_t kMaxItemBytes = std::uint64_t{1} << 46;
// A ring is searched entry by entry; engines use up to 8.
constexpr std::uint32_t kMaxRingDepth = 4096;
// Rows of one verify; engines use up to 16, token trees some dozens.
constexpr std::uint32_t kMaxStashRows = 4096;

Status check_decl(const StateDecl& decl) {
  if (decl.kind != StateKind::kPagedKv && decl.kind != StateKind::kRecurrent) {
    return Status::unsupported(decl.id, ": state kind ", static_cast<int>(decl.kind),
                               " is sized by cache terms, not by a run-time plan");
  }
  if (decl.kind == StateKind::kPagedKv && decl.shape.size() != 2) {
    return Status::invalid_argument(decl.id, ": paged state needs the shape [heads, width], got ",
                                    decl.shape.size(), " axes");
  }
  if (Status status = check_retention(decl); !status) return status;
  const bool int8 = decl.dtype == DType::kI8;
  if (decl.kind == StateKind::kPagedKv && decl.dtype == DType::kFp8) {
    return Status::unsupported(decl.id, ": fp8 rows have their scale elsewhere and no codec here; ",
                               "use f16, bf16, f32 or int8");
  }
  if (decl.kind == StateKind::kPagedKv && decl.row_scale_bytes != (int8 ? 4U : 0U)) {
    return Status::invalid_argument(decl.id, ": ", dtype_name(decl.dtype), " rows carry ",
                                    int8 ? 4 : 0, " bytes of scale, got ", decl.row_scale_bytes);
  }
  const auto bytes = unit_bytes(decl);
  if (!bytes) return bytes.status();
  if (*bytes > kMaxItemBytes) {
    return Status::invalid_argument(decl.id, ": one unit takes ", *bytes, " bytes");
  }
  return Status::ok();
}

// A record lies in one page, so that a page is as true as its rows.
Status check_records(const StateDecl& decl, std::uint32_t block_tokens) {
  if (block_tokens % decl.record_tokens == 0) return Status::ok();
  return Status::invalid_argument(decl.id, ": a block of ", block_tokens,
                                  " positions holds no whole number of records of ",
                                  decl.record_tokens, "; set block_tokens to a multiple");
}

// Scales first, then rows: every region is naturally aligned and there is no padding.
Status lay_out_page(Group& group, std::uint32_t block_tokens) {
  const std::uint64_t rows = group.rows(block_tokens);
  // Each unit is below kMaxItemBytes, so that this sum and the offsets below cannot wrap.
  std::uint64_t token_bytes = 0;
  for (const PagedComponent& component : group.components) {
    token_bytes += std::uint64_t{component.heads} *
                   (component.width * dtype_bytes(component.dtype) + component.row_scale_bytes);
    if (token_bytes > kMaxItemBytes / block_tokens) {
      return Status::invalid_argument("a block of ", block_tokens, " positions takes more than ",
                                      kMaxItemBytes, " bytes; lower block_tokens");
    }
  }
  std::uint64_t offset = 0;
  for (PagedComponent& component : group.components) {
    component.scales_offset = offset;
    offset += rows * component.scale_bytes();
  }
  for (PagedComponent& component : group.components) {
    component.rows_offset = offset;
    offset += rows * component.row_bytes();
  }
  group.page_bytes = offset;
  group.token_bytes = token_bytes;
  return Status::ok();
}

Status check_options(const PlanOptions& options) {
  constexpr std::uint32_t kMaxBlockTokens = 1 << 20;
  if (options.block_tokens == 0 || options.block_tokens > kMaxBlockTokens) {
    return Status::invalid_argument("block_tokens must be 1..", kMaxBlockTokens, ", got ",
                                    options.block_tokens);
  }
  if (options.memory_bytes == 0) return Status::invalid_argument("memory must be positive, got 0");
  if (options.sequences == 0) return Status::invalid_argument("sequences must be positive, got 0");
  if (options.ring_depth > kMaxRingDepth) {
    return Status::invalid_argument("ring_depth must be 0..", kMaxRingDepth, ", got ",
                                    options.ring_depth);
  }
  if (options.stash_rows > kMaxStashRows) {
    return Status::invalid_argument("stash_rows must be 0..", kMaxStashRows, ", got ",
                                    options.stash_rows);
  }
  return Status::ok();
}

}  // namespace

Result<StatePlan> StatePlan::create(std::vector<StateDecl> decls, const PlanOptions& options) {
  if (decls.empty()) return Status::invalid_argument("a plan needs at least one state declaration");
  if (Status status = check_options(options); !status) return status;
  StatePlan plan;
  plan.options_ = options;
  std::set<std::string> ids;
  std::set<std::pair<std::int32_t, std::string>> components;
  // Window, element and scale come first: files list the groups of a plan in this order.
  using GroupKey =
      std::tuple<std::uint32_t, DType, std::uint32_t, bool, std::uint32_t, std::uint32_t>;
  std::map<GroupKey, Group> groups;
  for (std::uint32_t index = 0; index < decls.size(); ++index) {
    const StateDecl& decl = decls[index];
    if (Status status = check_decl(decl); !status) return status;
    if (Status status = check_records(decl, options.block_tokens); !status) return status;
    if (!ids.insert(decl.id).second) return Status::invalid_argument(decl.id, ": declared twice");
    if (!components.insert({decl.layer, decl.component}).second) {
      return Status::invalid_argument(decl.id, ": layer ", decl.layer, " declares ", decl.component,
                                      " twice");
    }
    if (decl.kind == StateKind::kRecurrent) {
      plan.fixed_.push_back(
          {index, decl.layer, decl.component, decl.dtype, decl.shape, 0, *unit_bytes(decl)});
      continue;
    }
    if (decl.shape[0] > UINT32_MAX || decl.shape[1] > UINT32_MAX) {
      return Status::invalid_argument(decl.id, ": heads and width must fit 32 bits");
    }
    Group& group = groups[{decl.window, decl.dtype, decl.row_scale_bytes, decl.chunked, decl.sinks,
                           decl.record_tokens}];
    static_cast<Retention&>(group) = decl.retention();
    group.components.push_back(
        {index, decl.layer, decl.dtype, static_cast<std::uint32_t>(decl.shape[0]),
         static_cast<std::uint32_t>(decl.shape[1]), decl.row_scale_bytes, 0, 0});
  }
  for (auto& [key, group] : groups) {
    if (Status status = lay_out_page(group, options.block_tokens); !status) return status;
    plan.groups_.push_back(std::move(group));
  }
  // Wide elements first, so that each tensor is aligned without padding.
  std::vector<FixedComponent*> by_width;
  for (FixedComponent& fixed : plan.fixed_) by_width.push_back(&fixed);
  std::stable_sort(by_width.begin(), by_width.end(),
                   [](auto* a, auto* b) { return dtype_bytes(a->dtype) > dtype_bytes(b->dtype); });
  for (FixedComponent* fixed : by_width) {
    fixed->offset = plan.slot_bytes_;
    plan.slot_bytes_ += fixed->bytes;
    if (plan.slot_bytes_ > kMaxItemBytes) {
      return Status::invalid_argument("the fixed-size state of one sequence takes more than ",
                                      kMaxItemBytes, " bytes");
    }
  }
  const std::uint64_t ring_items = std::uint64_t{options.ring_depth} * options.sequences;
  if (!checked_mul(ring_items, plan.slot_bytes_)) {
    return Status::invalid_argument("decode rings of ", ring_items, " copies of ", plan.slot_bytes_,
                                    " bytes do not fit 64 bits; lower ring_depth or sequences");
  }
  auto stash = lay_out_stash(plan.fixed_, decls, options.stash_rows, kMaxItemBytes);
  if (!stash) return stash.status();
  plan.stash_ = std::move(stash).value();
  plan.decls_ = std::move(decls);
  for (std::size_t format = 0; format < kSnapshotFormats; ++format) {
    plan.snapshots_[format] =
        lay_out_snapshot(plan.fixed_, plan.decls_, static_cast<SnapshotFormat>(format));
  }
  return plan;
}

std::uint64_t StatePlan::block_bytes() const {
  std::uint64_t bytes = 0;
  for (const Group& group : groups_) bytes += group.page_bytes;
  return bytes;
}

std::uint64_t StatePlan::ring_bytes() const {
  return std::uint64_t{options_.ring_depth} * options_.sequences * slot_bytes_;
}

Result<std::uint64_t> StatePlan::sequence_bytes(std::uint64_t tokens,
                                                std::uint64_t chunk_tokens) const {
  // At most 4098 items of 2^46 bytes.
  const SpanGeometry slot = span_geometry(slot_bytes_);
  std::uint64_t total = span_bytes(slot, 1) + span_bytes(slot, options_.ring_depth) +
                        span_bytes(span_geometry(stash_.bytes), 1);
  for (const Group& group : groups_) {
    const std::uint64_t blocks = group.most_blocks(tokens, chunk_tokens, options_.block_tokens);
    const SpanGeometry geometry = span_geometry(group.page_bytes);
    const auto bytes = checked_mul(ceil_div(blocks, geometry.items), geometry.bytes);
    const auto sum = bytes ? checked_add(total, *bytes) : std::nullopt;
    if (!sum) {
      return Status::invalid_argument("the state of ", tokens, " positions does not fit 64 bits");
    }
    total = *sum;
  }
  return total;
}

Result<std::uint64_t> StatePlan::hit_bytes(std::uint64_t tokens) const {
  if (tokens == 0) return std::uint64_t{0};
  std::uint64_t total = slot_bytes_;
  for (const Group& group : groups_) {
    const auto bytes = checked_mul(group.needed_rows(tokens), group.token_bytes);
    const auto sum = bytes ? checked_add(total, *bytes) : std::nullopt;
    if (!sum) {
      return Status::invalid_argument("the state of ", tokens, " positions does not fit 64 bits");
    }
    total = *sum;
  }
  return total;
}

std::string StatePlan::fingerprint() const {
  std::string text;
  for (const StateDecl& decl : decls_) {
    text += decl.id + '|' + std::to_string(decl.layer) + '|' + decl.component + '|' +
            std::to_string(static_cast<int>(decl.kind)) + '|' +
            std::to_string(static_cast<int>(decl.section)) + '|' +
            std::string(dtype_name(decl.dtype)) + '|' + std::to_string(decl.row_scale_bytes) + '|' +
            std::to_string(decl.window);
    for (const std::uint64_t axis : decl.shape) text += ',' + std::to_string(axis);
    // What a declaration leaves at its default is not there, as before these fields were.
    if (decl.record_tokens != 1) text += "|record_tokens=" + std::to_string(decl.record_tokens);
    if (decl.chunked) text += "|chunked";
    if (decl.sinks != 0) text += "|sinks=" + std::to_string(decl.sinks);
    text += '\n';
  }
  if (!options_.rotated_keys) text += "rotated_keys=0\n";
  return "sha256:" + sha256_hex(text);
}

}  // namespace kvcache
