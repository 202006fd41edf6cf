#include "speculate/carry_table.h"

#include <algorithm>
#include <utility>

namespace kvcache {
namespace {

constexpr std::uint64_t kMostRows = std::uint64_t{1} << 20;

}  // namespace

Status CarryTableCore::claim(const StatePlan& plan, std::uint64_t sequences) {
  // Plans that agree in their tensors may still hold stashes of other lengths.
  const bool same_stash = plan.stash().bytes == stash_bytes;
  if (Status status = claimed_.check_plan(fixed, plan, same_stash); !status) return status;
  if (Status status = claimed_.check_room(sequences, batch_rows); !status) return status;
  return claimed_.take();
}

void CarryTableCore::stage(std::uint64_t row, std::uint64_t slot, std::uint64_t stash) {
  staged_rows_ = std::max(staged_rows_, row + 1);
  for (Layer& layer : layers) {
    for (Tensor& tensor : layer.tensors) tensor.addresses[row] = slot + tensor.offset;
    layer.stashes[row] = stash;
  }
}

void CarryTableCore::give_back() {
  for (Layer& layer : layers) {
    for (Tensor& tensor : layer.tensors) std::fill_n(tensor.addresses, staged_rows_, 0);
    std::fill_n(layer.stashes, staged_rows_, 0);
    std::fill_n(layer.engaged, batch_rows, 0);
  }
  staged_rows_ = 0;
  claimed_.give_back();
}

Result<CarryTable> CarryTable::create(const StatePlan& plan, std::uint64_t batch_rows) {
  if (plan.stash().bytes == 0) {
    return Status::invalid_argument(
        "carry table: the plan has no carry stash; raise its stash_rows above 0");
  }
  if (batch_rows == 0 || batch_rows > kMostRows) {
    return Status::invalid_argument("carry table: batch_rows must be 1..", kMostRows, ", got ",
                                    batch_rows);
  }
  auto core = std::make_shared<CarryTableCore>();
  core->fixed = plan.fixed();
  core->stash_bytes = plan.stash().bytes;
  core->batch_rows = batch_rows;
  std::uint64_t pointers = 0;
  for (const StashLayer& layer : plan.stash().layers) {
    CarryTableCore::Layer& made = core->layers.emplace_back();
    made.layer = layer.layer;
    for (const StashComponent& part : layer.components) {
      const FixedComponent& tensor = plan.fixed()[part.fixed];
      made.tensors.push_back({tensor.name, tensor.offset, nullptr});
    }
    pointers += made.tensors.size() + 1;
  }
  core->bytes =
      batch_rows * (pointers * sizeof(std::uint64_t) + core->layers.size() * sizeof(std::uint32_t));
  if (core->bytes > kMostTableBytes) {
    return Status::invalid_argument("carry table: ", batch_rows, " batch rows take ", core->bytes,
                                    " bytes, more than ", kMostTableBytes);
  }
  core->entries.reset(static_cast<std::uint64_t*>(std::calloc(1, core->bytes)));
  if (!core->entries) {
    return Status::out_of_capacity("carry table: the system has no ", core->bytes, " bytes");
  }
  std::uint64_t* next = core->entries.get();
  auto* flags = reinterpret_cast<std::uint32_t*>(next + pointers * batch_rows);
  for (CarryTableCore::Layer& layer : core->layers) {
    for (CarryTableCore::Tensor& tensor : layer.tensors) {
      tensor.addresses = std::exchange(next, next + batch_rows);
    }
    layer.stashes = std::exchange(next, next + batch_rows);
    layer.engaged = std::exchange(flags, flags + batch_rows);
  }
  return CarryTable(std::move(core));
}

Status CarryTable::check_process() const { return core_->check_process(); }

std::uint64_t CarryTable::batch_rows() const { return core_->batch_rows; }
std::uint64_t CarryTable::bytes() const { return core_->bytes; }
bool CarryTable::is_staged() const { return core_->check_process() && core_->is_staged(); }

Result<CarryLayer> CarryTable::layer(std::int32_t layer) const {
  if (Status status = check_process(); !status) return status;
  for (const CarryTableCore::Layer& found : core_->layers) {
    if (found.layer != layer) continue;
    return CarryLayer{found.stashes, found.engaged, core_->batch_rows, core_};
  }
  return Status::not_found("carry table: nothing of layer ", layer, " folds");
}

Result<const std::uint64_t*> CarryTable::live(std::int32_t layer, std::string_view name) const {
  if (Status status = check_process(); !status) return status;
  for (const CarryTableCore::Layer& found : core_->layers) {
    if (found.layer != layer) continue;
    for (const CarryTableCore::Tensor& tensor : found.tensors) {
      if (tensor.name == name) return static_cast<const std::uint64_t*>(tensor.addresses);
    }
  }
  return Status::not_found("carry table: layer ", layer, " has no tensor '", name, "' that folds");
}

}  // namespace kvcache
