#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "array_view.h"
#include "arrays.h"
#include "kvcache/engine_layout.h"
#include "kvcache/sequence.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::EngineLayout;
using kvcache::EnginePlaces;
using kvcache::EngineTensor;
using kvcache::Sequence;
using kvcache::Status;
using kvcache::bindings::ArrayView;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::span_of;
using kvcache::bindings::unwrap;

using BlockTable = py::array_t<std::int32_t, py::array::c_style>;
using SlotMapping = py::array_t<std::int64_t, py::array::c_style>;

// Tensors of the caller, borrowed without a copy. Made and let go with the GIL held.
class EngineTensors {
 public:
  EngineTensors(const std::vector<py::object>& arrays, const std::vector<EngineLayout>& layouts,
                bool writable) {
    if (arrays.size() != layouts.size()) {
      unwrap(Status::invalid_argument(arrays.size(), " tensors and ", layouts.size(), " layouts"));
    }
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      const std::string name = arrays.size() == 1 ? "tensor" : "tensors[" + std::to_string(i) + "]";
      borrowed_.push_back(std::make_unique<ArrayView>(arrays[i], name, writable));
      const ArrayView& array = *borrowed_.back();
      tensors_.push_back({.data = array.data(),
                          .dtype = array.dtype(),
                          .shape = {array.shape().begin(), array.shape().end()},
                          .strides = array.strides(),
                          .layout = layouts[i]});
    }
  }
  std::span<const EngineTensor> tensors() const { return tensors_; }

 private:
  std::vector<std::unique_ptr<ArrayView>> borrowed_;
  std::vector<EngineTensor> tensors_;
};

EnginePlaces places_of(const BlockTable& block_table, const SlotMapping& slot_mapping) {
  return {span_of(block_table, "block_table"), span_of(slot_mapping, "slot_mapping")};
}

void import_rows(Sequence& sequence, const std::vector<std::int32_t>& layers, std::uint64_t start,
                 std::uint64_t stop, const std::vector<py::object>& arrays,
                 const std::vector<EngineLayout>& layouts, const BlockTable& block_table,
                 const SlotMapping& slot_mapping) {
  const EngineTensors borrowed(arrays, layouts, false);
  const EnginePlaces places = places_of(block_table, slot_mapping);
  const ReleaseGil nogil;
  unwrap(sequence.import_rows(layers, start, stop, borrowed.tensors(), places));
}

void export_rows(const Sequence& sequence, const std::vector<std::int32_t>& layers,
                 std::uint64_t start, std::uint64_t stop, const std::vector<py::object>& arrays,
                 const std::vector<EngineLayout>& layouts, const BlockTable& block_table,
                 const SlotMapping& slot_mapping) {
  const EngineTensors borrowed(arrays, layouts, true);
  const EnginePlaces places = places_of(block_table, slot_mapping);
  const ReleaseGil nogil;
  unwrap(sequence.export_rows(layers, start, stop, borrowed.tensors(), places));
}

void shift(Sequence& sequence, std::uint64_t keep, std::uint64_t drop) {
  unwrap(sequence.shift(keep, drop));
}

}  // namespace

void bind_engine_layout(py::module_& m) {
  py::class_<EngineLayout>(m, "EngineLayout")
      .def(py::init([](const std::string& axes) { return unwrap(EngineLayout::parse(axes)); }),
           py::arg("axes"))
      .def_property_readonly("text", &EngineLayout::text);
  m.def("import_rows", &import_rows, py::arg("sequence"), py::arg("layers"), py::arg("start"),
        py::arg("stop"), py::arg("tensors"), py::arg("layouts"), py::arg("block_table"),
        py::arg("slot_mapping"));
  m.def("shift", &shift, py::arg("sequence"), py::arg("keep"), py::arg("drop"),
        py::call_guard<ReleaseGil>());
  m.def("export_rows", &export_rows, py::arg("sequence"), py::arg("layers"), py::arg("start"),
        py::arg("stop"), py::arg("tensors"), py::arg("layouts"), py::arg("block_table"),
        py::arg("slot_mapping"));
}
