#include "kvcache/token_tree.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/checked.h"

namespace kvcache {
namespace {

Status check_nodes(std::uint64_t nodes) {
  if (nodes >= 1 && nodes <= TokenTree::kMaxNodes) return Status::ok();
  return Status::invalid_argument("a token tree has 1..", TokenTree::kMaxNodes, " nodes, got ",
                                  nodes, nodes == 0 ? "; row 0 is its root" : "");
}

Status check_size(std::string_view name, std::uint64_t got, std::uint64_t nodes,
                  std::uint64_t columns) {
  if (got == nodes * columns) return Status::ok();
  return Status::invalid_argument(name, ": ", got, " elements are not [", nodes, ", ", columns,
                                  "]");
}

// A row of a mask is its parent's, and one column more. `first` is the row of the root but for
// itself, `show` makes a row see a node.
template <typename Element, typename Show>
void fill_rows(std::span<const std::int32_t> parents, std::uint64_t columns, Element* out,
               const Show& show) {
  for (std::size_t node = 0; node < parents.size(); ++node) {
    Element* row = out + node * columns;
    if (node > 0) {
      std::memcpy(row, out + static_cast<std::uint64_t>(parents[node]) * columns,
                  columns * sizeof(Element));
    }
    show(row, node);
  }
}

}  // namespace

TokenTree::TokenTree(std::vector<std::int32_t> parents)
    : parents_(std::move(parents)),
      depths_(parents_.size(), 0),
      first_child_(parents_.size(), -1),
      next_sibling_(parents_.size(), -1) {
  // Backwards: the child met last is the first.
  for (std::size_t node = parents_.size(); node-- > 1;) {
    std::int32_t& first = first_child_[static_cast<std::size_t>(parents_[node])];
    next_sibling_[node] = first;
    first = static_cast<std::int32_t>(node);
  }
  for (std::size_t node = 1; node < parents_.size(); ++node) {
    depths_[node] = depths_[static_cast<std::size_t>(parents_[node])] + 1;
  }
}

Result<TokenTree> TokenTree::create(std::span<const std::int32_t> parents) {
  if (Status status = check_nodes(parents.size()); !status) return status;
  if (parents[0] != -1) {
    return Status::invalid_argument("parents[0] must be -1, since row 0 is the root, got ",
                                    parents[0]);
  }
  for (std::size_t node = 1; node < parents.size(); ++node) {
    if (parents[node] >= 0 && static_cast<std::size_t>(parents[node]) < node) continue;
    return Status::invalid_argument("parents[", node, "] must be 0..", node - 1,
                                    ", a row before its child, got ", parents[node]);
  }
  return TokenTree(std::vector<std::int32_t>(parents.begin(), parents.end()));
}

Result<TokenTree> TokenTree::linear(std::uint64_t nodes) {
  if (Status status = check_nodes(nodes); !status) return status;
  std::vector<std::int32_t> parents(nodes);
  std::iota(parents.begin(), parents.end(), -1);
  return TokenTree(std::move(parents));
}

std::size_t TokenTree::leaves() const {
  return static_cast<std::size_t>(std::count(first_child_.begin(), first_child_.end(), -1));
}

std::size_t TokenTree::depth() const {
  return static_cast<std::size_t>(*std::max_element(depths_.begin(), depths_.end()));
}

Result<std::vector<std::int32_t>> TokenTree::path(std::uint64_t node) const {
  if (node >= nodes()) {
    return Status::invalid_argument("path: the tree has nodes 0..", nodes() - 1, ", got ", node);
  }
  auto at = static_cast<std::int32_t>(node);
  std::vector<std::int32_t> rows(static_cast<std::size_t>(depths_[node]) + 1);
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    *row = at;
    at = parents_[static_cast<std::size_t>(at)];
  }
  return rows;
}

std::vector<std::int32_t> TokenTree::retrieval_indices() const {
  const std::size_t columns = depth() + 1;
  std::vector<std::int32_t> table(leaves() * columns, -1);
  std::int32_t* row = table.data();
  for (std::size_t leaf = 0; leaf < nodes(); ++leaf) {
    if (first_child_[leaf] != -1) continue;
    auto at = static_cast<std::int32_t>(leaf);
    for (std::int32_t column = depths_[leaf]; column >= 0; --column) {
      row[column] = at;
      at = parents_[static_cast<std::size_t>(at)];
    }
    row += columns;
  }
  return table;
}

Result<std::vector<std::int64_t>> TokenTree::positions(std::uint64_t start) const {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (start > kMost - depth()) {
    return Status::invalid_argument("positions: start ", start, " and a depth of ", depth(),
                                    " pass 2^63 - 1");
  }
  std::vector<std::int64_t> positions;
  positions.reserve(nodes());
  for (const std::int32_t depth : depths_) {
    positions.push_back(static_cast<std::int64_t>(start) + depth);
  }
  return positions;
}

// ---- Masks ------------------------------------------------------------------------------------

Result<std::uint64_t> TokenTree::mask_columns(std::uint64_t prefix,
                                              std::uint64_t element_bytes) const {
  const auto columns = checked_add(prefix, nodes());
  const auto bytes = checked_mul(columns.value_or(UINT64_MAX), nodes() * element_bytes);
  if (columns && bytes && *bytes <= kMaxMaskBytes) return *columns;
  return Status::invalid_argument(element_bytes == sizeof(float) ? "bias: " : "mask: ", nodes(),
                                  " rows of ", nodes(), " nodes and a prefix of ", prefix,
                                  " take more than ", kMaxMaskBytes,
                                  " bytes; leave the prefix to the kernel");
}

Result<std::uint64_t> TokenTree::packed_words(std::uint64_t prefix) const {
  const auto columns = checked_add(prefix, nodes());
  const std::uint64_t words = ceil_div(columns.value_or(UINT64_MAX), 32);
  if (words * sizeof(std::uint32_t) <= kMaxMaskBytes / nodes()) return words;
  return Status::invalid_argument("packed mask: ", nodes(), " rows of ", nodes(),
                                  " nodes and a prefix of ", prefix, " take more than ",
                                  kMaxMaskBytes, " bytes; leave the prefix to the kernel");
}

Status TokenTree::fill_mask(std::uint64_t prefix, std::span<std::uint8_t> out) const {
  const auto columns = mask_columns(prefix, sizeof(std::uint8_t));
  if (!columns) return columns.status();
  if (Status status = check_size("mask", out.size(), nodes(), *columns); !status) return status;
  std::fill_n(out.data(), prefix, std::uint8_t{1});
  std::fill_n(out.data() + prefix, nodes(), std::uint8_t{0});
  fill_rows(parents_, *columns, out.data(),
            [=](std::uint8_t* row, std::size_t node) { row[prefix + node] = 1; });
  return Status::ok();
}

Status TokenTree::fill_bias(std::uint64_t prefix, std::span<float> out) const {
  const auto columns = mask_columns(prefix, sizeof(float));
  if (!columns) return columns.status();
  if (Status status = check_size("bias", out.size(), nodes(), *columns); !status) return status;
  std::fill_n(out.data(), prefix, 0.0F);
  std::fill_n(out.data() + prefix, nodes(), -std::numeric_limits<float>::infinity());
  fill_rows(parents_, *columns, out.data(),
            [=](float* row, std::size_t node) { row[prefix + node] = 0; });
  return Status::ok();
}

Status TokenTree::fill_packed_mask(std::uint64_t prefix, std::span<std::uint32_t> out) const {
  const auto words = packed_words(prefix);
  if (!words) return words.status();
  if (Status status = check_size("packed mask", out.size(), nodes(), *words); !status)
    return status;
  std::fill_n(out.data(), *words, 0U);
  std::fill_n(out.data(), prefix / 32, UINT32_MAX);
  if (prefix % 32 != 0) out[prefix / 32] = (std::uint32_t{1} << prefix % 32) - 1;
  fill_rows(parents_, *words, out.data(), [=](std::uint32_t* row, std::size_t node) {
    row[(prefix + node) / 32] |= std::uint32_t{1} << (prefix + node) % 32;
  });
  return Status::ok();
}

// ---- The verdict ------------------------------------------------------------------------------

Status TokenTree::check_path(std::span<const std::int32_t> rows) const {
  if (rows.empty() || rows[0] != 0) {
    return Status::invalid_argument("path: it begins with row 0, the root, got ",
                                    rows.empty() ? "no rows" : std::to_string(rows[0]));
  }
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const bool known = rows[i] >= 0 && static_cast<std::size_t>(rows[i]) < nodes();
    if (known && parents_[static_cast<std::size_t>(rows[i])] == rows[i - 1]) continue;
    return Status::invalid_argument("path[", i, "]: row ", rows[i], " is no child of row ",
                                    rows[i - 1], known ? "" : "; rows are 0..",
                                    known ? "" : std::to_string(nodes() - 1));
  }
  return Status::ok();
}

Result<AcceptedPath> TokenTree::accept(std::span<const std::int32_t> tokens,
                                       std::span<const std::int32_t> picks) const {
  if (tokens.size() != nodes() || picks.size() != nodes()) {
    return Status::invalid_argument("accept: ", tokens.size(), " tokens and ", picks.size(),
                                    " picks for ", nodes(), " nodes");
  }
  std::vector<bool> accepted(nodes(), false);
  accepted[0] = true;
  std::size_t best = 0;
  for (std::size_t node = 1; node < nodes(); ++node) {
    const auto parent = static_cast<std::size_t>(parents_[node]);
    accepted[node] = accepted[parent] && tokens[node] == picks[parent];
    if (accepted[node] && depths_[node] > depths_[best]) best = node;
  }
  return AcceptedPath{path(best).value(), picks[best]};
}

}  // namespace kvcache
