#include "kvcache/fold.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "codec/float_environment.h"
#include "codec/registry.h"
#include "codec/row_codec.h"
#include "kvcache/codec.h"

namespace kvcache::codec {
namespace {

constexpr std::size_t kThreadBytes = std::size_t{256} << 10;  // below this a thread costs more

Status check_heads(const FoldState& state, std::size_t heads, const char* name) {
  if (heads > 0 && state.heads % heads == 0) return Status::ok();
  return Status::invalid_argument("fold: ", name, " of ", heads, " heads cannot be shared by the ",
                                  state.heads, " heads of the state; use a divisor of it");
}

FoldGate kernel_gate(Gate gate) {
  if (gate == Gate::kHead) return kGateHead;
  return gate == Gate::kChannel ? kGateChannel : kGateElement;
}

}  // namespace

Status fold(const FoldState& state, const FoldRows& rows, FoldRounding rounding, unsigned threads) {
  if (Status status = check_isa(); !status) return status;
  if (!is_float(state.dtype)) {
    return Status::invalid_argument("fold: a state of ", dtype_name(state.dtype),
                                    " is not f32, f16 or bf16");
  }
  if (Status status = check_heads(state, rows.left_heads, "left"); !status) return status;
  if (Status status = check_heads(state, rows.right_heads, "right"); !status) return status;
  const std::size_t lines = state.heads * state.lines;
  const std::size_t bytes = lines * state.columns * dtype_bytes(state.dtype);
  if (bytes == 0 || rows.rows == 0) return Status::ok();
  const auto& by_gate = kernels_or_scalar().fold[element_of(state.dtype)];
  const Fold kernel = by_gate[kernel_gate(rows.gate_of)][rounding == FoldRounding::kOnce ? 1 : 0];
  const auto part = [&](std::size_t, std::size_t first, std::size_t count) {
    const NearestRounding nearest;
    kernel({.state = static_cast<char*>(state.data),
            .first = first,
            .count = count,
            .lines = state.lines,
            .columns = state.columns,
            .rows = rows.rows,
            .gate = rows.gate,
            .gate_stride = rows.gate_stride,
            .left = rows.left,
            .left_stride = rows.left_stride,
            .left_group = state.heads / rows.left_heads,
            .right = rows.right,
            .right_stride = rows.right_stride,
            .right_group = state.heads / rows.right_heads});
  };
  const std::size_t useful = std::min<std::size_t>({threads, bytes / kThreadBytes, lines});
  for_each_part(lines, std::max<std::size_t>(1, useful), part);
  return Status::ok();
}

void append_rows(void* window, std::size_t width, std::size_t row_bytes, const void* rows,
                 std::size_t count) {
  if (width == 0 || row_bytes == 0 || count == 0) return;
  auto* const first = static_cast<std::byte*>(window);
  const auto* added = static_cast<const std::byte*>(rows);
  const std::size_t fresh = std::min(count, width);
  std::memmove(first, first + fresh * row_bytes, (width - fresh) * row_bytes);
  std::memcpy(first + (width - fresh) * row_bytes, added + (count - fresh) * row_bytes,
              fresh * row_bytes);
}

}  // namespace kvcache::codec
