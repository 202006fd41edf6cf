#include "array_view.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>

#include "dlpack_abi.h"
#include "unwrap.h"

namespace py = pybind11;

namespace kvcache::bindings {
namespace {

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw StatusError(Status::invalid_argument(name, ": ", what));
}

// A struct-module format or the last two characters of a typestr.
std::optional<DType> dtype_of_code(char code, std::size_t bytes) {
  if (code == 'f' && bytes == 4) return DType::kF32;
  if ((code == 'e' || code == 'f') && bytes == 2) return DType::kF16;
  if ((code == 'b' || code == 'i') && bytes == 1) return DType::kI8;
  if ((code == 'B' || code == 'u') && bytes == 1) return DType::kU8;
  if (code == 'i' && bytes == 4) return DType::kI32;
  if ((code == 'I' || code == 'u') && bytes == 4) return DType::kU32;
  if ((code == 'L' || code == 'Q' || code == 'u') && bytes == 8) return DType::kU64;
  return std::nullopt;
}

std::optional<DType> dtype_of(dlpack::DataType type) {
  if (type.lanes != 1) return std::nullopt;
  if (type.code == dlpack::kFloat && type.bits == 32) return DType::kF32;
  if (type.code == dlpack::kFloat && type.bits == 16) return DType::kF16;
  if (type.code == dlpack::kBfloat && type.bits == 16) return DType::kBf16;
  if (type.code == dlpack::kInt && type.bits == 8) return DType::kI8;
  if (type.code == dlpack::kInt && type.bits == 32) return DType::kI32;
  if (type.code == dlpack::kUInt && type.bits == 8) return DType::kU8;
  if (type.code == dlpack::kUInt && type.bits == 32) return DType::kU32;
  if (type.code == dlpack::kUInt && type.bits == 64) return DType::kU64;
  return std::nullopt;
}

// PTRDIFF_MIN, which is no stride, where the product does not fit.
std::ptrdiff_t product(std::ptrdiff_t a, std::ptrdiff_t b) {
  std::ptrdiff_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? PTRDIFF_MIN : result;
}

std::string dtype_text(const py::object& object) {
  const py::object dtype = py::getattr(object, "dtype", py::none());
  return dtype.is_none() ? "its dtype" : "dtype " + std::string(py::str(dtype));
}

std::string list_text(const std::vector<std::ptrdiff_t>& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  }
  return text + "]";
}

// The text of an exception, whose own __str__ may fail.
std::string error_text(const py::error_already_set& error) {
  try {
    return py::str(error.value());
  } catch (const py::error_already_set&) {
    return "raised an exception without a text";
  }
}

}  // namespace

ArrayView::ArrayView(const py::object& object, std::string name, bool writable, const char* dtypes)
    : name_(std::move(name)), dtypes_(dtypes) {
  std::string refused;
  for (const auto take :
       {&ArrayView::take_buffer, &ArrayView::take_dlpack, &ArrayView::take_array_interface}) {
    try {
      if (!(this->*take)(object, writable)) continue;
      check_description();
      return;
    } catch (const py::error_already_set& error) {
      refused = error_text(error);
    } catch (const py::cast_error&) {
      fail(name_, std::string(Py_TYPE(object.ptr())->tp_name) +
                      " describes itself with values of a wrong type or range");
    }
  }
  if (!refused.empty()) fail(name_, refused);
  fail(name_, std::string(Py_TYPE(object.ptr())->tp_name) +
                  " has no buffer, no __dlpack__ and no __array_interface__");
}

void ArrayView::fail_dtype(const std::string& dtype) const {
  fail(name_, dtype + " is not " + dtypes_ + " of this machine's byte order");
}

// What an object says of itself need not fit together; whatever is computed from it must.
void ArrayView::check_description() const {
  if (strides_.size() != shape_.size()) {
    fail(name_, std::to_string(strides_.size()) + " strides for the shape " + shape_text());
  }
  auto bytes = static_cast<std::ptrdiff_t>(dtype_bytes(dtype_));
  std::ptrdiff_t reach = bytes;
  bool overflows = false;
  for (std::size_t i = 0; i < shape_.size(); ++i) {
    if (shape_[i] < 0) fail(name_, "a negative size in the shape " + shape_text());
    std::ptrdiff_t span = 0;
    overflows |= __builtin_mul_overflow(bytes, std::max<std::ptrdiff_t>(shape_[i], 1), &bytes);
    overflows |= strides_[i] == PTRDIFF_MIN ||
                 __builtin_mul_overflow(std::max<std::ptrdiff_t>(shape_[i] - 1, 0),
                                        std::abs(strides_[i]), &span) ||
                 __builtin_add_overflow(reach, span, &reach);
  }
  if (overflows) fail(name_, "the shape " + shape_text() + " exceeds the address space");
  if (data_ == nullptr && elements() > 0) fail(name_, "a null address");
}

bool ArrayView::take_buffer(const py::object& object, bool writable) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();  // numpy has buffers, but not of a bfloat16 array
    return false;
  }
  Py_buffer* held = buffer.release();
  owner_ = std::shared_ptr<void>(held, [](void* at) {
    PyBuffer_Release(static_cast<Py_buffer*>(at));
    delete static_cast<Py_buffer*>(at);
  });
  if (writable && held->readonly != 0) fail(name_, "read-only");
  std::string_view format = held->format == nullptr ? "B" : held->format;
  if (!format.empty() && (format[0] == '@' || format[0] == '=' || format[0] == '<')) {
    format.remove_prefix(1);
  }
  const auto bytes = static_cast<std::size_t>(held->itemsize);
  const auto dtype = format.size() == 1 ? dtype_of_code(format[0], bytes) : std::nullopt;
  if (!dtype) fail_dtype(dtype_text(object));
  data_ = held->buf;
  dtype_ = *dtype;
  shape_.assign(held->shape, held->shape + held->ndim);
  strides_.assign(held->strides, held->strides + held->ndim);
  return true;
}

bool ArrayView::take_dlpack(const py::object& object, bool writable) {
  if (!py::hasattr(object, "__dlpack__") || !py::hasattr(object, "__dlpack_device__")) return false;
  const auto device = object.attr("__dlpack_device__")().cast<py::tuple>();
  const auto kind = py::int_(device[0]).cast<std::int32_t>();
  if (kind != dlpack::kCpu && kind != dlpack::kCudaHost) {
    fail(name_, "not in host memory (DLPack device " + std::to_string(kind) + "); copy it first");
  }
  py::object capsule;
  try {
    capsule = object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = object.attr("__dlpack__")();  // a producer from before version 1
  }
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::ManagedTensorVersioned::kName) != 0) {
    take_capsule<dlpack::ManagedTensorVersioned>(py::capsule(capsule), writable);
  } else if (PyCapsule_IsValid(capsule.ptr(), dlpack::ManagedTensor::kName) != 0) {
    take_capsule<dlpack::ManagedTensor>(py::capsule(capsule), writable);
  } else {
    fail(name_, "__dlpack__ gave no DLPack capsule");
  }
  return true;
}

template <typename Managed>
void ArrayView::take_capsule(const py::capsule& capsule, bool writable) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), Managed::kName));
  if constexpr (std::is_same_v<Managed, dlpack::ManagedTensorVersioned>) {
    if (managed->version.major != 1) {
      fail(name_, "DLPack version " + std::to_string(managed->version.major) + " is unknown");
    }
    if (writable && (managed->flags & Managed::kReadOnly) != 0) fail(name_, "read-only");
  }
  if (PyCapsule_SetName(capsule.ptr(), Managed::kUsedName) != 0) throw py::error_already_set();
  owner_ = std::shared_ptr<void>(managed, [](void* at) {
    auto* held = static_cast<Managed*>(at);
    if (held->deleter != nullptr) held->deleter(held);
  });
  const dlpack::Tensor& tensor = managed->tensor;
  const auto dtype = dtype_of(tensor.dtype);
  if (!dtype) {
    fail_dtype("its dtype (DLPack code " + std::to_string(tensor.dtype.code) + ", " +
               std::to_string(tensor.dtype.bits) + " bits)");
  }
  data_ = static_cast<char*>(tensor.data) + tensor.byte_offset;
  dtype_ = *dtype;
  shape_.assign(tensor.shape, tensor.shape + tensor.ndim);
  if (tensor.strides == nullptr) return set_row_major_strides();
  for (std::int32_t i = 0; i < tensor.ndim; ++i) {
    const auto bytes = static_cast<std::ptrdiff_t>(dtype_bytes(dtype_));
    strides_.push_back(product(tensor.strides[i], bytes));
  }
}

bool ArrayView::take_array_interface(const py::object& object, bool writable) {
  if (!py::hasattr(object, "__array_interface__")) return false;
  const py::dict fields = object.attr("__array_interface__");
  const py::object data = fields.attr("get")("data");
  if (data.is_none() || !py::isinstance<py::tuple>(data)) {
    fail(name_, "__array_interface__ without an address");
  }
  const auto address = py::tuple(data)[0].cast<std::uintptr_t>();
  if (writable && py::tuple(data)[1].cast<bool>()) fail(name_, "read-only");
  const auto type = fields["typestr"].cast<std::string>();
  const bool native = type.size() == 3 && (type[0] == '<' || type[0] == '|');
  std::optional<DType> dtype;
  if (native) dtype = dtype_of_code(type[1], static_cast<std::size_t>(type[2] - '0'));
  if (native && type.substr(1) == "V2") {  // how numpy says bfloat16, which it lacks
    const py::object named =
        py::getattr(py::getattr(object, "dtype", py::none()), "name", py::none());
    if (named.equal(py::str("bfloat16"))) dtype = DType::kBf16;
  }
  if (!dtype) fail_dtype(dtype_text(object));
  data_ = reinterpret_cast<void*>(address);
  dtype_ = *dtype;
  for (const auto& size : fields["shape"].cast<py::tuple>()) {
    shape_.push_back(size.cast<std::ptrdiff_t>());
  }
  const py::object strides = fields.attr("get")("strides");
  if (strides.is_none()) {
    set_row_major_strides();
  } else {
    for (const auto& stride : strides.cast<py::tuple>()) {
      strides_.push_back(stride.cast<std::ptrdiff_t>());
    }
  }
  owner_ = std::make_shared<py::tuple>(py::make_tuple(object, fields));  // either may own the bytes
  return true;
}

void ArrayView::set_row_major_strides() {
  strides_.resize(shape_.size());
  auto stride = static_cast<std::ptrdiff_t>(dtype_bytes(dtype_));
  for (std::size_t i = shape_.size(); i-- > 0;) {
    strides_[i] = stride;
    stride = product(stride, std::max<std::ptrdiff_t>(shape_[i], 1));
  }
}

std::size_t ArrayView::elements() const {
  std::size_t count = 1;
  for (std::ptrdiff_t size : shape_) count *= static_cast<std::size_t>(size);
  return count;
}

bool ArrayView::is_contiguous() const {
  auto expected = static_cast<std::ptrdiff_t>(dtype_bytes(dtype_));
  for (std::size_t i = shape_.size(); i-- > 0;) {
    if (shape_[i] != 1 && strides_[i] != expected && elements() != 0) return false;
    expected *= shape_[i];
  }
  return true;
}

std::string ArrayView::shape_text() const { return list_text(shape_); }

std::string ArrayView::layout_text() const {
  return "the shape " + shape_text() + " with strides of " + list_text(strides_) + " bytes";
}

ArrayView::Extent ArrayView::extent() const {
  if (elements() == 0) return {0, 0};
  std::ptrdiff_t low = 0;
  std::ptrdiff_t high = static_cast<std::ptrdiff_t>(dtype_bytes(dtype_));
  for (std::size_t i = 0; i < shape_.size(); ++i) {
    const std::ptrdiff_t reach = (shape_[i] - 1) * strides_[i];
    (reach < 0 ? low : high) += reach;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(data_);
  return {address + static_cast<std::uintptr_t>(low), address + static_cast<std::uintptr_t>(high)};
}

}  // namespace kvcache::bindings
