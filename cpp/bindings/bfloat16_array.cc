#include "bfloat16_array.h"

#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "dlpack_abi.h"

namespace py = pybind11;

namespace kvcache::bindings {
namespace {

// What a capsule keeps alive.
struct Shared {
  PyObject* bits;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

template <typename Managed>
void release(Managed* managed) {
  std::unique_ptr<Managed> owned(managed);
  std::unique_ptr<Shared> shared(static_cast<Shared*>(managed->manager_context));
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;  // the consumer may drop it on any thread
  Py_DECREF(shared->bits);
}

// Runs when no consumer took the capsule.
template <typename Managed>
void drop_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, Managed::kName) == 0) return;
  release(static_cast<Managed*>(PyCapsule_GetPointer(capsule, Managed::kName)));
}

template <typename Managed>
py::capsule share(const py::array& bits) {
  auto shared = std::make_unique<Shared>();
  for (py::ssize_t i = 0; i < bits.ndim(); ++i) {
    shared->shape.push_back(bits.shape(i));
    shared->strides.push_back(bits.strides(i) / 2);
  }
  auto managed = std::make_unique<Managed>();
  if constexpr (std::is_same_v<Managed, dlpack::ManagedTensorVersioned>) {
    managed->version = {1, 0};
    managed->flags = bits.writeable() ? 0 : Managed::kReadOnly;
  }
  managed->tensor = {.data = const_cast<void*>(bits.data()),
                     .device = {dlpack::kCpu, 0},
                     .ndim = static_cast<std::int32_t>(bits.ndim()),
                     .dtype = {dlpack::kBfloat, 16, 1},
                     .shape = shared->shape.data(),
                     .strides = shared->strides.data(),
                     .byte_offset = 0};
  managed->deleter = release<Managed>;
  PyObject* capsule = PyCapsule_New(managed.get(), Managed::kName, drop_capsule<Managed>);
  if (capsule == nullptr) throw py::error_already_set();
  shared->bits = bits.ptr();
  Py_INCREF(shared->bits);
  managed->manager_context = shared.release();
  managed.release();
  return py::reinterpret_steal<py::capsule>(capsule);
}

// The same numbers in a dtype that numpy has: float32 holds every one of them.
py::object as_float32(const Bfloat16Array& array, const py::object& dtype,
                      std::optional<bool> copy) {
  if (!copy.value_or(true)) throw py::value_error("bfloat16 becomes float32 by a copy only");
  const py::object wide = array.bits().attr("astype")("uint32").attr("__lshift__")(16);
  const py::object floats = py::array(wide).attr("view")("float32");
  return dtype.is_none() ? floats : floats.attr("astype")(dtype);
}

}  // namespace

py::capsule Bfloat16Array::dlpack(std::optional<std::pair<int, int>> max_version,
                                  std::optional<std::pair<int, int>> dl_device,
                                  std::optional<bool> copy) const {
  if (dl_device && dl_device->first != dlpack::kCpu) {
    throw py::buffer_error("these elements are in host memory");
  }
  const py::array bits = copy.value_or(false) ? py::array(bits_.attr("copy")()) : bits_;
  if (max_version && max_version->first >= 1) return share<dlpack::ManagedTensorVersioned>(bits);
  return share<dlpack::ManagedTensor>(bits);
}

void bind_bfloat16_array(py::module_& m) {
  py::class_<Bfloat16Array>(
      m, "Bfloat16Array",
      "bfloat16 elements, which numpy has no dtype for.\n\n"
      "Any DLPack consumer reads them without a copy (torch.from_dlpack),\n"
      "numpy.asarray() makes float32 of them, ``bits`` are their uint16, and\n"
      "an index or slice is one of these again.\n\n"
      "Args:\n    bits: uint16, of any shape.")
      .def(py::init([](py::array_t<std::uint16_t, py::array::c_style> bits) {
             return Bfloat16Array(std::move(bits));
           }),
           py::arg("bits"))
      .def_property_readonly("bits", &Bfloat16Array::bits)
      .def_property_readonly("shape",
                             [](const Bfloat16Array& array) { return array.bits().attr("shape"); })
      .def("__len__", [](const Bfloat16Array& array) { return py::len(array.bits()); })
      .def("__getitem__",
           [](const Bfloat16Array& array, const py::object& index) {
             return Bfloat16Array(py::array(array.bits()[index]));
           })
      .def("__array__", &as_float32, py::arg("dtype") = py::none(), py::arg("copy") = py::none())
      .def("__repr__",
           [](const Bfloat16Array& array) {
             return py::str("<Bfloat16Array {}>").format(array.bits().attr("shape"));
           })
      .def("__dlpack_device__",
           [](const Bfloat16Array&) { return std::pair<int, int>(dlpack::kCpu, 0); })
      .def(
          "__dlpack__",
          [](const Bfloat16Array& array, const py::object&,
             std::optional<std::pair<int, int>> max_version,
             std::optional<std::pair<int, int>> dl_device,
             std::optional<bool> copy) { return array.dlpack(max_version, dl_device, copy); },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none());
}

}  // namespace kvcache::bindings
