// A tree of draft tokens that one forward pass verifies: which row may see which, where each row
// stands, and which path the model's own choices accept.
//
// Row 0 is the root, the last known token; every other row has a parent before it. A row sees its
// ancestors and itself, and stands as many positions after the root as it is deep. The conventions
// are those of Medusa (arXiv:2401.10774) and EAGLE (arXiv:2401.15077): masks have a row for each
// query, retrieval indices are padded with -1; first_child() and next_sibling() are the links that
// SGLang's verify kernels walk.
// Thread safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

// Rows that the model accepts, from the root on, and its token after the last of them.
struct AcceptedPath {
  std::vector<std::int32_t> rows;
  std::int32_t bonus = 0;
};

class TokenTree {
 public:
  static constexpr std::size_t kMaxNodes = 4096;
  // Of one mask, whatever its prefix.
  static constexpr std::uint64_t kMaxMaskBytes = std::uint64_t{1} << 30;

  // parents[0] is -1 and parents[i] one of 0..i - 1. kInvalidArgument: they are not, the message
  // names the first that is wrong; no nodes, or more than kMaxNodes.
  static Result<TokenTree> create(std::span<const std::int32_t> parents);
  // Each node follows the one before it. kInvalidArgument: no nodes, or more than kMaxNodes.
  static Result<TokenTree> linear(std::uint64_t nodes);

  std::size_t nodes() const { return parents_.size(); }
  std::size_t leaves() const;
  std::size_t depth() const;  // of the deepest node; the root's is 0
  const std::vector<std::int32_t>& parents() const { return parents_; }
  const std::vector<std::int32_t>& depths() const { return depths_; }
  // Of each node, -1 where there is none; children of a node ascend.
  const std::vector<std::int32_t>& first_child() const { return first_child_; }
  const std::vector<std::int32_t>& next_sibling() const { return next_sibling_; }
  // Nodes from the root to `node`, both included. kInvalidArgument: no such node.
  Result<std::vector<std::int32_t>> path(std::uint64_t node) const;
  // Those of all leaves, which ascend: [leaves, depth + 1], padded with -1.
  std::vector<std::int32_t> retrieval_indices() const;
  // start + depth of each node. kInvalidArgument: beyond 63 bits.
  Result<std::vector<std::int64_t>> positions(std::uint64_t start) const;

  // Masks of [nodes, prefix + nodes]: row i sees all of the prefix, which is what the sequence
  // holds already, and column prefix + j where node j is an ancestor of node i or i itself.
  // Elements of one row; kInvalidArgument: the mask would take more than kMaxMaskBytes.
  Result<std::uint64_t> mask_columns(std::uint64_t prefix, std::uint64_t element_bytes) const;
  // 32-bit words of one row of a packed mask. Errors likewise.
  Result<std::uint64_t> packed_words(std::uint64_t prefix) const;
  // These fill `out` whole; kInvalidArgument: it has another size, or as above.
  Status fill_mask(std::uint64_t prefix, std::span<std::uint8_t> out) const;  // 1: seen, 0: not
  Status fill_bias(std::uint64_t prefix, std::span<float> out) const;  // added to scores: 0, -inf
  // Column j is bit j % 32 of word j / 32 of its row, lowest bit first; bits past the end are 0.
  // In memory that is lowest bit first in bytes, too (numpy's bitorder "little").
  Status fill_packed_mask(std::uint64_t prefix, std::span<std::uint32_t> out) const;

  // kInvalidArgument: `rows` are not a path from the root on, each the child of the one before.
  Status check_path(std::span<const std::int32_t> rows) const;
  // Greedy verification: tokens[i] is the token of row i and picks[i] the model's choice after it.
  // A row is accepted when its parent is and has picked its token; of the paths of accepted rows
  // the longest counts, of equally long ones that of the lowest row. kInvalidArgument: not one
  // token and one pick for each node.
  Result<AcceptedPath> accept(std::span<const std::int32_t> tokens,
                              std::span<const std::int32_t> picks) const;

 private:
  explicit TokenTree(std::vector<std::int32_t> parents);

  std::vector<std::int32_t> parents_;
  std::vector<std::int32_t> depths_;
  std::vector<std::int32_t> first_child_;
  std::vector<std::int32_t> next_sibling_;
};

}  // namespace kvcache
