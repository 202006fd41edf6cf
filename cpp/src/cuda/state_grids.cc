// Grids of copies and folds.
#include "cuda/grids.h"
#include "cuda/sizes.h"

namespace kvcache::cuda {
namespace {

constexpr std::uint64_t kMostSequences = 65535;  // along the second axis of a launch
constexpr std::uint64_t kMostPitch = INT32_MAX;  // of a strided copy, on every device

Status check_items(const Items& items, std::uint64_t bytes, const char* name) {
  if (items.data == nullptr) return Status::invalid_argument(name, ": no address");
  if (items.count > kMostBlocks || times(items.count, items.stride) > kMostBytes) {
    return Status::invalid_argument(name, ": ", items.count, " items of ", items.stride,
                                    " bytes: more than ", kMostBlocks,
                                    ", or than fit the address space");
  }
  if (bytes > items.stride) {
    return Status::invalid_argument(name, ": items of ", items.stride, " bytes hold no ", bytes);
  }
  return Status::ok();
}

bool is_word_aligned(const Items& items) {
  return aligned(items.data, kCopyWord) && items.stride % kCopyWord == 0;
}

// ---- Folds ------------------------------------------------------------------------------------

struct Inputs {
  const char* name;
  const float* data;
  std::uint64_t floats;  // of one row
  std::uint64_t stride;
  std::uint64_t step;
};

Status check_inputs(const Inputs& inputs, std::uint64_t rows, std::uint64_t sequences) {
  if (inputs.data == nullptr || !aligned(inputs.data, sizeof(float))) {
    return Status::invalid_argument("fold: ", inputs.name, " has no address, or no aligned one");
  }
  const std::uint64_t extent =
      plus(times(rows - 1, inputs.stride), times(sequences - 1, inputs.step), inputs.floats);
  if (times(extent, sizeof(float)) <= kMostBytes) return Status::ok();
  return Status::invalid_argument("fold: ", inputs.name, " of ", rows, " rows at strides of ",
                                  inputs.stride, " and ", sequences, " sequences at steps of ",
                                  inputs.step, " floats does not fit the address space");
}

Status check_heads(std::uint64_t state, std::uint64_t heads, const char* name) {
  if (heads > 0 && state % heads == 0) return Status::ok();
  return Status::invalid_argument("fold: ", name, " of ", heads, " heads cannot be shared by the ",
                                  state, " heads of the state; use a divisor of it");
}

Status check_state(const codec::FoldState& state, std::uint64_t elements) {
  const std::uint64_t bytes = dtype_bytes(state.dtype);
  const bool fits = times(elements, bytes) <= kMostBytes;
  if (!fits || ceil_div(elements, kFoldThreads) > kMostBlocks) {
    return Status::invalid_argument("fold: a state [", state.heads, ", ", state.lines, ", ",
                                    state.columns, "] is more than one launch takes");
  }
  if (state.data == nullptr || !aligned(state.data, bytes)) {
    return Status::invalid_argument("fold: the state has no address, or none that is aligned to ",
                                    bytes, " bytes");
  }
  return Status::ok();
}

Status check_batch(const FoldBatch& batch, std::uint64_t state_bytes, std::uint64_t element_bytes,
                   const FaultWord* faults) {
  if (batch.sequences > kMostSequences || batch.items > kMostBlocks) {
    return Status::invalid_argument("fold: ", batch.sequences, " sequences and ", batch.items,
                                    " items: at most ", kMostSequences, " and ", kMostBlocks);
  }
  const bool one = batch.items <= 1;
  if (!one && (batch.stride < state_bytes || batch.stride % element_bytes != 0 ||
               times(batch.items, batch.stride) > kMostBytes)) {
    return Status::invalid_argument("fold: ", batch.items, " states of ", state_bytes,
                                    " bytes cannot lie ", batch.stride, " bytes apart");
  }
  if (!aligned(batch.ids, sizeof(std::int32_t)) || !aligned(batch.rows, sizeof(std::int32_t))) {
    return Status::invalid_argument("fold: ids or counts of rows are not aligned");
  }
  if (batch.ids == nullptr && batch.sequences > batch.items) {
    return Status::invalid_argument("fold: ", batch.sequences, " sequences without ids, and ",
                                    batch.items, " items");
  }
  if (batch.ids != nullptr && (faults == nullptr || !aligned(faults, sizeof *faults))) {
    return Status::invalid_argument("fold: ids, but no fault word, or none aligned to 8 bytes");
  }
  return Status::ok();
}

std::uint64_t gates_of(const codec::FoldState& state, Gate gate) {
  if (gate == Gate::kHead) return state.heads;
  const std::uint64_t channels = times(state.heads, state.lines);
  return gate == Gate::kChannel ? channels : times(channels, state.columns);
}

}  // namespace

Result<CopyGrid> copy_grid(const Items& from, const Items& to, std::uint64_t bytes,
                           const ItemPair* pairs, std::size_t count, FaultWord* faults) {
  CopyGrid grid;
  if (count == 0 || bytes == 0) return grid;
  if (Status status = check_items(from, bytes, "copy from"); !status) return status;
  if (Status status = check_items(to, bytes, "copy to"); !status) return status;
  if (pairs == nullptr || !aligned(pairs, alignof(ItemPair))) {
    return Status::invalid_argument("copy: the pairs have no address, or no aligned one");
  }
  if (faults == nullptr || !aligned(faults, sizeof *faults)) {
    return Status::invalid_argument("no fault word, or it is not aligned to 8 bytes");
  }
  grid.blocks_of_pair = ceil_div(bytes, kCopyBlockBytes);
  if (times(count, grid.blocks_of_pair) > kMostBlocks) {
    return Status::invalid_argument("copy: ", count, " pairs of ", bytes,
                                    " bytes are more than one launch takes, ", kMostBlocks,
                                    " blocks of ", kCopyBlockBytes, " bytes; split the call");
  }
  grid.from = static_cast<const char*>(from.data);
  grid.to = static_cast<char*>(to.data);
  grid.from_count = from.count;
  grid.to_count = to.count;
  grid.from_stride = from.stride;
  grid.to_stride = to.stride;
  grid.bytes = bytes;
  grid.pairs_count = count;
  grid.pairs = pairs;
  grid.whole = is_word_aligned(from) && is_word_aligned(to);
  grid.faults = faults;
  return grid;
}

Status check_move(const Items& from, const Items& to, std::uint64_t bytes,
                  std::span<const ItemPair> pairs) {
  if (pairs.empty() || bytes == 0) return Status::ok();
  if (Status status = check_items(from, bytes, "move from"); !status) return status;
  if (Status status = check_items(to, bytes, "move to"); !status) return status;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto [source, target] = pairs[i];
    if (source >= 0 && static_cast<std::uint64_t>(source) < from.count && target >= 0 &&
        static_cast<std::uint64_t>(target) < to.count) {
      continue;
    }
    return Status::invalid_argument("move: pair ", i, " is from ", source, " of ", from.count,
                                    " items to ", target, " of ", to.count);
  }
  return Status::ok();
}

std::size_t run_of_moves(const Items& from, const Items& to, std::uint64_t bytes,
                         std::span<const ItemPair> pairs) {
  if (from.stride > kMostPitch || to.stride > kMostPitch) return 1;
  const auto begin_of = [](const Items& items, std::int32_t id) {
    return reinterpret_cast<std::uintptr_t>(items.data) +
           static_cast<std::uint64_t>(id) * items.stride;
  };
  const std::uintptr_t source = begin_of(from, pairs[0].from);
  const std::uintptr_t target = begin_of(to, pairs[0].to);
  std::size_t length = 1;
  for (; length < pairs.size(); ++length) {
    const ItemPair before = pairs[length - 1];
    const ItemPair next = pairs[length];
    if (next.from - 1 != before.from || next.to - 1 != before.to) break;
    const std::uintptr_t source_end = begin_of(from, next.from) + bytes;
    const std::uintptr_t target_end = begin_of(to, next.to) + bytes;
    if (source < target_end && target < source_end) break;
  }
  return length;
}

Result<FoldGrid> fold_grid(const codec::FoldState& state, const codec::FoldRows& rows,
                           const FoldBatch& batch, FaultWord* faults) {
  if (!is_float(state.dtype)) {
    return Status::invalid_argument("fold: a state of ", dtype_name(state.dtype),
                                    " is not f32, f16 or bf16");
  }
  if (Status status = check_heads(state.heads, rows.left_heads, "left"); !status) return status;
  if (Status status = check_heads(state.heads, rows.right_heads, "right"); !status) return status;
  FoldGrid grid;
  const std::uint64_t elements = times(state.heads, state.lines, state.columns);
  if (elements == 0 || rows.rows == 0 || batch.sequences == 0) return grid;
  if (Status status = check_state(state, elements); !status) return status;
  const std::uint64_t bytes = dtype_bytes(state.dtype);
  if (Status status = check_batch(batch, elements * bytes, bytes, faults); !status) return status;
  const Inputs inputs[] = {
      {"gate", rows.gate, gates_of(state, rows.gate_of), rows.gate_stride, batch.gate_step},
      {"left", rows.left, times(rows.left_heads, state.lines), rows.left_stride, batch.left_step},
      {"right", rows.right, times(rows.right_heads, state.columns), rows.right_stride,
       batch.right_step}};
  for (const Inputs& each : inputs) {
    if (Status status = check_inputs(each, rows.rows, batch.sequences); !status) return status;
  }
  return FoldGrid{.state = static_cast<char*>(state.data),
                  .stride = batch.items <= 1 ? 0 : batch.stride,
                  .items = batch.items,
                  .ids = batch.ids,
                  .sequences = batch.sequences,
                  .lines = state.lines,
                  .columns = state.columns,
                  .elements = elements,
                  .rows = rows.rows,
                  .rows_of = batch.rows,
                  .gate = rows.gate,
                  .gate_stride = rows.gate_stride,
                  .gate_step = batch.gate_step,
                  .left = rows.left,
                  .left_stride = rows.left_stride,
                  .left_step = batch.left_step,
                  .left_group = state.heads / rows.left_heads,
                  .right = rows.right,
                  .right_stride = rows.right_stride,
                  .right_step = batch.right_step,
                  .right_group = state.heads / rows.right_heads,
                  .faults = faults};
}

std::uint32_t blocks_of(const CopyGrid& grid) {
  return static_cast<std::uint32_t>(grid.pairs_count * grid.blocks_of_pair);
}

std::uint32_t blocks_of(const FoldGrid& grid) {
  return static_cast<std::uint32_t>(ceil_div(grid.elements, kFoldThreads));
}

}  // namespace kvcache::cuda
