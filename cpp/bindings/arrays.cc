#include "arrays.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "unwrap.h"

namespace py = pybind11;

namespace kvcache::bindings {
namespace {

DType rows_dtype(const py::dtype& dtype) {
  if (dtype.kind() == 'f' && dtype.itemsize() == 4) return DType::kF32;
  if (dtype.kind() == 'f' && dtype.itemsize() == 2) return DType::kF16;
  unwrap(Status::invalid_argument("rows must be float32 or float16, got ",
                                  std::string(py::str(dtype))));
  return DType::kF32;
}

py::dtype numpy_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return py::dtype("float32");
    case DType::kU32:
      return py::dtype("uint32");
    case DType::kI32:
      return py::dtype("int32");
    case DType::kF16:
      return py::dtype("float16");
    case DType::kBf16:  // numpy has no bfloat16: its bits
      return py::dtype("uint16");
    case DType::kU64:
      return py::dtype("uint64");
    case DType::kI8:
      return py::dtype("int8");
    case DType::kU8:
    case DType::kFp8:
      break;
  }
  return py::dtype("uint8");
}

}  // namespace

std::span<const std::int32_t> token_span(const Tokens& tokens) {
  if (tokens.ndim() != 1) unwrap(Status::invalid_argument("tokens must have one axis"));
  return {tokens.data(), static_cast<std::size_t>(tokens.size())};
}

codec::RowsView rows_view(const py::array& rows) {
  if (rows.ndim() != 3) {
    unwrap(Status::invalid_argument("rows must be [tokens, heads, width], got ", rows.ndim(),
                                    " axes"));
  }
  // The strides of an empty array mean nothing, and numpy reports zeros.
  if (rows.size() > 0 && rows.shape(2) > 1 && rows.strides(2) != rows.itemsize()) {
    unwrap(Status::invalid_argument("the last axis of rows must be contiguous"));
  }
  return {.data = rows.data(),
          .dtype = rows_dtype(rows.dtype()),
          .tokens = static_cast<std::size_t>(rows.shape(0)),
          .heads = static_cast<std::size_t>(rows.shape(1)),
          .width = static_cast<std::size_t>(rows.shape(2)),
          .token_stride = rows.strides(0),
          .head_stride = rows.strides(1)};
}

codec::MutableRowsView mutable_view(py::array& rows) {
  const codec::RowsView view = rows_view(rows);
  return {.data = rows.mutable_data(),
          .dtype = view.dtype,
          .tokens = view.tokens,
          .heads = view.heads,
          .width = view.width,
          .token_stride = view.token_stride,
          .head_stride = view.head_stride};
}

py::array tensor_array(StateView view) {
  auto pin = std::make_unique<std::shared_ptr<void>>(std::move(view.pin));
  py::capsule base(pin.get(), [](void* held) { delete static_cast<std::shared_ptr<void>*>(held); });
  pin.release();
  const std::vector<py::ssize_t> shape(view.component->shape.begin(), view.component->shape.end());
  return py::array(numpy_dtype(view.component->dtype), shape, {}, view.data, base);
}

}  // namespace kvcache::bindings
