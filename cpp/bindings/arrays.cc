#include "arrays.h"

#include <array>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bfloat16_array.h"
#include "unwrap.h"

namespace py = pybind11;

namespace kvcache::bindings {
namespace {

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

py::capsule owner_capsule(std::shared_ptr<const void> owner) {
  using Owner = std::shared_ptr<const void>;
  auto held = std::make_unique<Owner>(std::move(owner));
  py::capsule capsule(held.get(), [](void* at) { delete static_cast<Owner*>(at); });
  held.release();
  return capsule;
}

std::vector<MediaSpan> media_of(const Media& media) {
  std::vector<MediaSpan> spans;
  for (const auto& [start, length, digest] : media) spans.push_back({start, length, digest});
  return spans;
}

template <typename View>
Components<View>::Components(const std::vector<py::object>& arrays) {
  constexpr bool kWritable = std::is_same_v<View, codec::MutableRowsView>;
  constexpr std::array<const char*, 2> kNames = {"keys", "values"};
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const std::string name =
        i < kNames.size() ? kNames[i] : "components[" + std::to_string(i) + "]";
    borrowed_.push_back(std::make_unique<ArrayView>(arrays[i], name, kWritable));
    const ArrayView& array = *borrowed_.back();
    const DType dtype = array.dtype();
    if (array.shape().size() != 3) {
      unwrap(Status::invalid_argument(name, ": expected [tokens, heads, width], got the shape ",
                                      array.shape_text()));
    }
    // The strides of an empty array mean nothing, and numpy reports zeros.
    if (array.elements() > 0 && array.shape()[2] > 1 &&
        array.strides()[2] != static_cast<std::ptrdiff_t>(dtype_bytes(dtype))) {
      unwrap(Status::invalid_argument(name, ": the last axis must be contiguous"));
    }
    views_.push_back({.data = array.data(),
                      .dtype = dtype,
                      .tokens = static_cast<std::size_t>(array.shape()[0]),
                      .heads = static_cast<std::size_t>(array.shape()[1]),
                      .width = static_cast<std::size_t>(array.shape()[2]),
                      .token_stride = array.strides()[0],
                      .head_stride = array.strides()[1]});
  }
}

template class Components<codec::RowsView>;
template class Components<codec::MutableRowsView>;

py::array tensor_array(StateView view) {
  const std::vector<py::ssize_t> shape(view.component->shape.begin(), view.component->shape.end());
  try {
    return py::array(numpy_dtype(view.component->dtype), shape, {}, view.data,
                     owner_capsule(std::move(view.pin)));
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_ValueError)) throw;
    // 64 in numpy 2, 32 before.
    unwrap(Status::unsupported("'", view.component->name, "' of layer ", view.component->layer,
                               " has ", shape.size(), " axes, more than a numpy array; declare it",
                               " with fewer, or take it through C or C++"));
    throw;
  }
}

py::object memory_array(DType dtype, const std::vector<py::ssize_t>& shape,
                        const std::vector<py::ssize_t>& strides, const void* data,
                        std::shared_ptr<const void> owner) {
  py::array array(numpy_dtype(dtype), shape, strides, data, owner_capsule(std::move(owner)));
  // Over a capsule numpy refuses to set it again.
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  if (dtype == DType::kBf16) return py::cast(Bfloat16Array(std::move(array)));
  return array;
}

}  // namespace kvcache::bindings
