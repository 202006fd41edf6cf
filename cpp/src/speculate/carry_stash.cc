#include "speculate/carry_stash.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/check.h"
#include "kvcache/fold.h"

namespace kvcache::speculate {
namespace {

constexpr std::size_t kNowhere = SIZE_MAX;

// One kind of inputs of a tensor: rows of [heads, width], fewer heads that divide them if `shares`.
struct Place {
  const char* name;
  std::uint64_t heads;
  std::uint64_t width;
  bool shares;
  DType dtype;
  std::byte* first_row;
};

// Whether a row has all elements, its axes being joined or split.
bool is_whole(const Place& place, const codec::RowsView& view) {
  return (view.heads == 1 || place.heads == 1) &&
         view.heads * view.width == place.heads * place.width;
}

// One head is no axis.
std::string shape_text(std::uint64_t rows, std::uint64_t heads, std::uint64_t width) {
  const std::string between = heads == 1 ? "" : std::to_string(heads) + ", ";
  return "[" + std::to_string(rows) + ", " + between + std::to_string(width) + "]";
}

Status check_inputs(const FixedComponent& component, const Place& place, std::uint64_t rows,
                    const codec::RowsView& view) {
  const bool converts = is_float(place.dtype) ? is_float(view.dtype) : view.dtype == place.dtype;
  if (!converts) {
    return Status::invalid_argument("stash of '", component.name, "' of layer ", component.layer,
                                    ": ", place.name, " of ", dtype_name(view.dtype), " cannot be ",
                                    dtype_name(place.dtype));
  }
  const bool heads_fit = view.heads == place.heads ||
                         (place.shares && view.heads > 0 && place.heads % view.heads == 0);
  if (view.tokens == rows && ((heads_fit && view.width == place.width) || is_whole(place, view))) {
    return Status::ok();
  }
  return Status::invalid_argument("stash of '", component.name, "' of layer ", component.layer,
                                  ": ", place.name, " must be ",
                                  shape_text(rows, place.heads, place.width), ", got ",
                                  shape_text(view.tokens, view.heads, view.width));
}

// Each head of `view` is repeated for the neighbours that share it.
void store(const codec::RowsView& view, const Place& place) {
  if (is_whole(place, view) || view.heads == place.heads) {
    return codec::encode_plain(view, place.dtype, place.first_row);
  }
  const std::size_t row_bytes = place.heads * place.width * dtype_bytes(place.dtype);
  for (std::size_t row = 0; row < view.tokens; ++row) {
    codec::RowsView heads = view;
    heads.data =
        static_cast<const char*>(view.data) + static_cast<std::ptrdiff_t>(row) * view.token_stride;
    heads.tokens = view.heads;
    heads.token_stride = view.head_stride;
    heads.heads = place.heads / view.heads;
    heads.head_stride = 0;
    codec::encode_plain(heads, place.dtype, place.first_row + row * row_bytes);
  }
}

}  // namespace

CarryStash::CarryStash(const StatePlan& plan, arena::Pool* pool) : plan_(&plan), pool_(pool) {
  const std::vector<StashLayer>& layers = plan.stash().layers;
  layers_.resize(layers.size());
  put_.resize(plan.fixed().size());
  place_.assign(plan.fixed().size(), {kNowhere, 0});
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    for (std::size_t part = 0; part < layers[layer].components.size(); ++part) {
      place_[layers[layer].components[part].fixed] = {layer, part};
    }
  }
}

Status CarryStash::take(arena::ItemSource& source) {
  if (pool_ == nullptr || item_ != arena::kNoItem) return Status::ok();
  auto item = source.allocate(*pool_);
  if (!item) return item.status();
  item_ = *item;
  is_new_ = true;
  drop();
  return Status::ok();
}

void CarryStash::release() {
  if (item_ != arena::kNoItem) pool_->release(item_);
  item_ = arena::kNoItem;
  is_new_ = false;
  for (Layer& layer : layers_) layer = {};
}

const StashComponent* CarryStash::find(const FixedComponent& component) const {
  const auto [layer, part] = place_[index_of(component)];
  return layer == kNowhere ? nullptr : &plan_->stash().layers[layer].components[part];
}

std::uint64_t CarryStash::pending() const {
  std::uint64_t most = 0;
  for (const Layer& layer : layers_) most = std::max(most, layer.pending);
  return most;
}

std::uint64_t CarryStash::pending(const FixedComponent& component) const {
  const std::size_t layer = place_[index_of(component)].first;
  return layer == kNowhere ? 0 : layers_[layer].pending;
}

void CarryStash::set_pending(std::size_t layer, std::uint64_t rows) {
  layers_[layer].pending = rows;
  if (data() == nullptr) return;
  const auto count = static_cast<std::uint32_t>(rows);
  std::memcpy(data() + plan_->stash().layers[layer].pending_offset, &count, sizeof count);
}

// ---- Readers of the live state ------------------------------------------------------------------

void CarryStash::fold(const StashComponent& part, std::uint64_t first, std::uint64_t rows,
                      std::byte* live) {
  const FixedComponent& tensor = plan_->fixed()[part.fixed];
  const StashRow& row = part.row;
  std::byte* const target = live + tensor.offset;
  if (row.kind == StashRow::Kind::kWindow) {
    const std::size_t row_bytes = row.columns * dtype_bytes(tensor.dtype);
    return codec::append_rows(target, row.lines, row_bytes,
                              data() + part.right_offset + first * row_bytes, rows);
  }
  const auto inputs = [&](std::uint64_t offset, std::uint64_t width) {
    return reinterpret_cast<const float*>(data() + offset) + first * width;
  };
  const Status status = codec::fold({target, tensor.dtype, row.heads, row.lines, row.columns},
                                    {.rows = rows,
                                     .gate_of = row.gate_of,
                                     .gate = inputs(part.gate_offset, row.gates),
                                     .gate_stride = row.gates,
                                     .left = inputs(part.left_offset, row.lefts()),
                                     .left_heads = row.heads,
                                     .left_stride = row.lefts(),
                                     .right = inputs(part.right_offset, row.rights()),
                                     .right_heads = row.heads,
                                     .right_stride = row.rights()});
  KVCACHE_CHECK(status.is_ok());
}

void CarryStash::flush_layer(std::size_t layer, std::byte* live) {
  const std::uint64_t rows = layers_[layer].pending;
  if (rows == 0) return;
  if (data() != nullptr) {
    for (const StashComponent& part : plan_->stash().layers[layer].components) {
      fold(part, 0, rows, live);
    }
  }
  set_pending(layer, 0);
}

void CarryStash::flush(std::byte* live) {
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) flush_layer(layer, live);
}

void CarryStash::flush_layer(const FixedComponent& component, std::byte* live) {
  const std::size_t layer = place_[index_of(component)].first;
  if (layer != kNowhere) flush_layer(layer, live);
}

void CarryStash::drop() {
  if (item_ == arena::kNoItem) return;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) set_pending(layer, 0);
}

// ---- A verify -----------------------------------------------------------------------------------

void CarryStash::begin(std::uint64_t rows, bool carry, std::byte* live) {
  if (!carry || pending() + rows > plan_->stash().rows) flush(live);
  rows_ = rows;
  for (Layer& layer : layers_) layer.first = layer.pending;
}

Status CarryStash::put(const FixedComponent& component, const StashInputs& inputs) {
  const StashComponent* part = find(component);
  if (part == nullptr) {
    return Status::unsupported("stash: nothing folds '", component.name, "' of layer ",
                               component.layer, "; fill state() after each row");
  }
  const StashRow& row = part->row;
  const bool window = row.kind == StashRow::Kind::kWindow;
  const std::uint64_t first = layers_[place_[index_of(component)].first].first;
  const DType dtype = window ? component.dtype : DType::kF32;
  const auto place = [&](const char* name, std::uint64_t heads, std::uint64_t width, bool shares,
                         std::uint64_t offset) {
    std::byte* at = data() + offset + first * heads * width * dtype_bytes(dtype);
    return Place{name, heads, width, shares, dtype, at};
  };
  const bool channels = row.gate_of != Gate::kHead;
  const std::uint64_t gate_width = row.gate_of == Gate::kElement ? row.columns : row.lines;
  const Place gate =
      channels ? place("gate", row.gates / gate_width, gate_width, false, part->gate_offset)
               : place("gate", 1, row.gates, false, part->gate_offset);
  const Place left = place("left", row.heads, row.lines, true, part->left_offset);
  const Place right =
      place(window ? "rows" : "right", row.heads, row.columns, !window, part->right_offset);
  const bool any = inputs.gate || inputs.left || inputs.right;
  if (window ? any || !inputs.window : inputs.window || !inputs.gate || !inputs.right) {
    return Status::invalid_argument("stash of '", component.name, "' of layer ", component.layer,
                                    window ? ": a convolution takes rows, and nothing else"
                                           : ": a recurrence takes gate, left and right, no rows");
  }
  if (!window && !inputs.left && row.heads * row.lines != 1) {
    return Status::invalid_argument("stash of '", component.name, "' of layer ", component.layer,
                                    ": left is missing; only a state of one axis has none");
  }
  const std::pair<const Place*, const std::optional<codec::RowsView>*> given[] = {
      {&gate, &inputs.gate},
      {&left, &inputs.left},
      {&right, window ? &inputs.window : &inputs.right}};
  for (const auto& [where, view] : given) {
    if (!*view) continue;
    if (Status status = check_inputs(component, *where, rows_, **view); !status) return status;
  }
  for (const auto& [where, view] : given) {
    if (*view) store(**view, *where);
  }
  if (!window && !inputs.left) {
    std::fill_n(reinterpret_cast<float*>(left.first_row), rows_, 1.0F);
  }
  put_[index_of(component)] = true;
  return Status::ok();
}

void CarryStash::engage(std::size_t layer) {
  for (const StashComponent& part : plan_->stash().layers[layer].components) {
    put_[part.fixed] = true;
  }
}

Status CarryStash::check_whole(std::string_view call) const {
  for (const StashLayer& layer : plan_->stash().layers) {
    const FixedComponent* with = nullptr;
    const FixedComponent* without = nullptr;
    for (const StashComponent& part : layer.components) {
      (put_[part.fixed] ? with : without) = &plan_->fixed()[part.fixed];
    }
    if (with == nullptr || without == nullptr) continue;
    return Status::invalid_argument(call, ": of layer ", layer.layer, " '", with->name,
                                    "' is stashed and '", without->name,
                                    "' is not; stash() all of a layer or none of it");
  }
  return Status::ok();
}

void CarryStash::move_row(const StashComponent& part, std::uint64_t from, std::uint64_t to) {
  const bool window = part.row.kind == StashRow::Kind::kWindow;
  const std::size_t element = dtype_bytes(window ? plan_->fixed()[part.fixed].dtype : DType::kF32);
  const auto move = [&](std::uint64_t offset, std::uint64_t width) {
    const std::size_t bytes = width * element;
    std::memmove(data() + offset + to * bytes, data() + offset + from * bytes, bytes);
  };
  move(part.gate_offset, part.row.gates);
  move(part.left_offset, part.row.lefts());
  move(part.right_offset, part.row.rights());
}

void CarryStash::commit(const KeptRows& kept, bool carry, std::byte* live) {
  const std::vector<StashLayer>& layers = plan_->stash().layers;
  for (std::size_t at = 0; at < layers.size(); ++at) {
    if (!put_[layers[at].components[0].fixed]) {
      set_pending(at, 0);  // the state after the last row has what waited
      continue;
    }
    const Layer& layer = layers_[at];
    for (const StashComponent& part : layers[at].components) {
      for (std::uint64_t i = 0; i < kept.count; ++i) {
        const std::uint64_t from = layer.first + kept.row(i), to = layer.pending + i;
        if (from != to) move_row(part, from, to);
      }
    }
    set_pending(at, layer.pending + kept.count);
    if (!carry) flush_layer(at, live);
  }
}

void CarryStash::end(bool begun) {
  put_.assign(put_.size(), false);
  if (!begun && is_new_) release();
  is_new_ = false;
}

}  // namespace kvcache::speculate
