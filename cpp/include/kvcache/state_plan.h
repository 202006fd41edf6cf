// From declarations to bytes: groups that share a block table, the layout of a page, of a slot and
// of a snapshot. The arena allocates from this plan and from nothing else.
// Thread safety: immutable after create().
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/retention.h"
#include "kvcache/snapshot.h"
#include "kvcache/stash.h"
#include "kvcache/state_decl.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

struct PlanOptions {
  std::uint64_t memory_bytes = 0;   // one budget for pages, slots and snapshots
  std::uint32_t block_tokens = 16;  // positions in a block
  std::uint32_t sequences = 64;     // sequences that may be open at once
  std::uint32_t ring_depth = 0;     // copies of its fixed-size state that each may record
  // Whether keys carry their position: a rotary embedding is applied before they are stored.
  bool rotated_keys = true;
  // Rows of inputs that the carry stash of a sequence holds, for the verify strategies "replay" and
  // "carry"; 0: no stash.
  std::uint32_t stash_rows = 0;
};

// One component of one layer inside a page: [rows, heads, width], one row for each position or
// record.
struct PagedComponent {
  std::uint32_t decl = 0;  // index into StatePlan::decls()
  std::int32_t layer = -1;
  DType dtype = DType::kF16;
  std::uint32_t heads = 0;
  std::uint32_t width = 0;
  std::uint32_t row_scale_bytes = 0;
  std::uint64_t rows_offset = 0;    // bytes from the start of the page
  std::uint64_t scales_offset = 0;  // meaningful when row_scale_bytes > 0

  // Of one position, or of one record: the rows of all heads, and their scales.
  std::uint64_t row_bytes() const { return std::uint64_t{heads} * width * dtype_bytes(dtype); }
  std::uint64_t scale_bytes() const { return std::uint64_t{heads} * row_scale_bytes; }
};

// Layers that need the same positions in the same storage, and so share one block table.
struct Group : Retention {
  std::vector<PagedComponent> components;
  std::uint64_t token_bytes = 0;  // stored bytes of one row of all components
  std::uint64_t page_bytes = 0;   // bytes of one block
};

// One fixed-size tensor inside a slot; a snapshot has the same layout.
struct FixedComponent {
  std::uint32_t decl = 0;
  std::int32_t layer = -1;
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

class StatePlan {
 public:
  // kInvalidArgument: no declarations, a duplicate id or component, a zero block or budget, blocks
  // without a whole number of records, or a size that does not fit 64 bits. kUnsupported: a kind
  // that has no run-time home here.
  static Result<StatePlan> create(std::vector<StateDecl> decls, const PlanOptions& options);

  const std::vector<StateDecl>& decls() const { return decls_; }
  const PlanOptions& options() const { return options_; }
  std::uint32_t block_tokens() const { return options_.block_tokens; }
  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<FixedComponent>& fixed() const { return fixed_; }
  bool has_fixed_state() const { return !fixed_.empty(); }
  // Bytes of all fixed-size state of one sequence; an exact snapshot is as large.
  std::uint64_t slot_bytes() const { return slot_bytes_; }
  // What a snapshot of `format` holds, and where.
  const SnapshotLayout& snapshot_layout(SnapshotFormat format) const {
    return snapshots_[static_cast<std::size_t>(format)];
  }
  // The carry stash of one sequence, taken when it first verifies by a strategy that needs it.
  const StashLayout& stash() const { return stash_; }
  std::uint64_t block_bytes() const;  // one block of every group
  // Most bytes that the decode rings of all sequences hold.
  std::uint64_t ring_bytes() const;

  // Most bytes that a sequence of `tokens` positions holds while it is written in one go of
  // `chunk_tokens` positions: its slot, its decode ring, its carry stash, its pages, and nothing
  // shared. kInvalidArgument when the result does not fit 64 bits.
  Result<std::uint64_t> sequence_bytes(std::uint64_t tokens, std::uint64_t chunk_tokens) const;
  // Stored bytes that a hit of `tokens` positions covers: rows of every group that the hit rule
  // needs, and the fixed-size state. kInvalidArgument when the result does not fit 64 bits.
  Result<std::uint64_t> hit_bytes(std::uint64_t tokens) const;
  // Identity of what the bytes mean: every declaration, in order. Files carry it.
  std::string fingerprint() const;

 private:
  std::vector<StateDecl> decls_;
  PlanOptions options_;
  std::vector<Group> groups_;
  std::vector<FixedComponent> fixed_;
  std::uint64_t slot_bytes_ = 0;
  std::array<SnapshotLayout, kSnapshotFormats> snapshots_;  // by format
  StashLayout stash_;
};

}  // namespace kvcache
