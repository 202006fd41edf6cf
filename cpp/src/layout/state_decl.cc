#include "kvcache/state_decl.h"

#include "base/checked.h"

namespace kvcache {

Status check_retention(const StateDecl& decl) {
  const bool paged = decl.kind == StateKind::kPagedKv;
  if (!paged && (decl.window != 0 || decl.row_scale_bytes != 0 || decl.record_tokens != 1 ||
                 decl.chunked || decl.sinks != 0)) {
    return Status::invalid_argument(
        decl.id, ": window, chunked, sinks, row scales and records are of paged state only");
  }
  if (decl.record_tokens == 0) {
    return Status::invalid_argument(decl.id, ": record_tokens must be positive, got 0");
  }
  if (decl.window == 0 && (decl.chunked || decl.sinks != 0)) {
    return Status::invalid_argument(decl.id, ": ", decl.chunked ? "chunked" : "sinks",
                                    " without a window; set window");
  }
  if (decl.chunked && decl.sinks != 0) {
    return Status::invalid_argument(decl.id, ": ", decl.sinks,
                                    " sinks beside a chunked window; sinks need a sliding one");
  }
  if (decl.record_tokens > 1 && decl.window != 0) {
    return Status::invalid_argument(decl.id, ": state pooled over ", decl.record_tokens,
                                    " positions keeps all its records; its window must be 0, got ",
                                    decl.window);
  }
  return Status::ok();
}

Result<std::uint64_t> unit_elements(const StateDecl& decl) {
  if (decl.shape.empty()) return Status::invalid_argument(decl.id, ": shape has no axis");
  std::uint64_t elements = 1;
  for (std::size_t axis = 0; axis < decl.shape.size(); ++axis) {
    if (decl.shape[axis] == 0) {
      return Status::invalid_argument(decl.id, ": shape[", axis,
                                      "] is 0; every axis must be positive");
    }
    const auto product = checked_mul(elements, decl.shape[axis]);
    if (!product) {
      return Status::invalid_argument(decl.id, ": the elements of one unit do not fit 64 bits");
    }
    elements = *product;
  }
  return elements;
}

Result<std::uint64_t> unit_bytes(const StateDecl& decl) {
  const auto elements = unit_elements(decl);
  if (!elements) return elements.status();
  const std::uint64_t rows = *elements / decl.shape.back();
  const auto payload = checked_mul(*elements, dtype_bytes(decl.dtype));
  const auto scales = checked_mul(rows, decl.row_scale_bytes);
  const auto total = payload && scales ? checked_add(*payload, *scales) : std::nullopt;
  if (!total)
    return Status::invalid_argument(decl.id, ": the bytes of one unit do not fit 64 bits");
  return *total;
}

}  // namespace kvcache
