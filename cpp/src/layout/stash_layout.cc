#include "layout/stash_layout.h"

#include <algorithm>
#include <string_view>

#include "base/checked.h"

namespace kvcache {
namespace {

constexpr std::string_view kConvolution = "state.convolution";  // and ".0" and so on

std::uint64_t gates_of(const StashRow& row) {
  switch (row.gate_of) {
    case Gate::kHead:
      return row.heads;
    case Gate::kChannel:
      return row.heads * row.lines;
    case Gate::kElement:
      break;
  }
  return row.heads * row.lines * row.columns;
}

// One stretch of the stash: its place is assigned once all are known.
struct Region {
  std::uint64_t element_bytes = 0;
  std::uint64_t elements = 0;
  std::uint64_t* offset = nullptr;
};

// Wide elements first, so that everything is aligned without padding. False: too large.
bool place(std::vector<Region>& regions, std::uint64_t max_bytes, std::uint64_t& bytes) {
  std::stable_sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) {
    return a.element_bytes > b.element_bytes;
  });
  bytes = 0;
  for (const Region& region : regions) {
    *region.offset = bytes;
    const auto size = checked_mul(region.elements, region.element_bytes);
    const auto end = size ? checked_add(bytes, *size) : std::nullopt;
    if (!end || *end > max_bytes) return false;
    bytes = *end;
  }
  return true;
}

}  // namespace

Result<StashRow> stash_row(const StateDecl& decl) {
  if (const auto bytes = unit_bytes(decl); !bytes) return bytes.status();
  StashRow row;
  if (decl.kind != StateKind::kRecurrent) return row;
  const std::vector<std::uint64_t>& shape = decl.shape;
  if (decl.verify == VerifyRule::kHSteps && is_float(decl.dtype) && shape.size() <= 3) {
    row.kind = StashRow::Kind::kMatrix;
    row.columns = shape.back();
    if (shape.size() > 1) row.lines = shape[shape.size() - 2];
    if (shape.size() > 2) row.heads = shape[0];
    row.gate_of = decl.gate;
    row.gates = gates_of(row);
  } else if (decl.verify == VerifyRule::kConvSteps &&
             std::string_view(decl.component).starts_with(kConvolution)) {
    row.kind = StashRow::Kind::kWindow;
    row.lines = shape[0];
    for (std::size_t axis = 1; axis < shape.size(); ++axis) row.columns *= shape[axis];
  }
  return row;
}

Result<StashLayout> lay_out_stash(const std::vector<FixedComponent>& fixed,
                                  const std::vector<StateDecl>& decls, std::uint32_t rows,
                                  std::uint64_t max_bytes) {
  StashLayout layout;
  layout.rows = rows;
  if (rows == 0) return layout;
  for (std::uint32_t index = 0; index < fixed.size(); ++index) {
    const auto row = stash_row(decls[fixed[index].decl]);
    if (!row) return row.status();
    if (row->kind == StashRow::Kind::kNone) continue;
    const auto known = std::find_if(layout.layers.begin(), layout.layers.end(),
                                    [&](const auto& l) { return l.layer == fixed[index].layer; });
    StashLayer& layer = known == layout.layers.end() ? layout.layers.emplace_back() : *known;
    layer.layer = fixed[index].layer;
    layer.components.push_back({index, *row, 0, 0, 0});
  }
  std::vector<Region> regions;
  for (StashLayer& layer : layout.layers) {
    for (StashComponent& part : layer.components) {
      const std::uint64_t width = dtype_bytes(
          part.row.kind == StashRow::Kind::kMatrix ? DType::kF32 : fixed[part.fixed].dtype);
      const auto add = [&](std::uint64_t elements, std::uint64_t* offset) {
        regions.push_back({width, checked_mul(elements, rows).value_or(UINT64_MAX), offset});
      };
      add(part.row.gates, &part.gate_offset);
      add(part.row.lefts(), &part.left_offset);
      add(part.row.rights(), &part.right_offset);
    }
    regions.push_back({sizeof(std::uint32_t), 1, &layer.pending_offset});
  }
  if (!place(regions, max_bytes, layout.bytes)) {
    return Status::invalid_argument("a carry stash of ", rows, " rows takes more than ", max_bytes,
                                    " bytes a sequence; lower stash_rows");
  }
  return layout;
}

}  // namespace kvcache
