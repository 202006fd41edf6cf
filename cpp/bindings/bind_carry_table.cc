#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "arrays.h"
#include "kvcache/carry_table.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::CarryLayer;
using kvcache::CarryTable;
using kvcache::DType;
using kvcache::StashComponent;
using kvcache::StashLayer;
using kvcache::StatePlan;
using kvcache::Status;
using kvcache::bindings::memory_array;
using kvcache::bindings::owner_capsule;
using kvcache::bindings::unwrap;

py::object address_array(const CarryLayer& layer, const std::uint64_t* addresses) {
  return memory_array(DType::kU64, {static_cast<py::ssize_t>(layer.batch_rows)},
                      {sizeof(std::uint64_t)}, addresses, layer.owner);
}

// Writable: the kernel's.
py::array flag_array(const CarryTable& table, std::int32_t index) {
  const CarryLayer layer = unwrap(table.layer(index));
  return py::array(py::dtype("uint32"), {static_cast<py::ssize_t>(layer.batch_rows)}, {},
                   layer.engaged, owner_capsule(layer.owner));
}

// Bytes from the start of a stash: (gate, left, right or rows, pending count).
py::tuple stash_offsets(const StatePlan& plan, std::int32_t index, const std::string& name) {
  for (const StashLayer& layer : plan.stash().layers) {
    if (layer.layer != index) continue;
    for (const StashComponent& part : layer.components) {
      if (plan.fixed()[part.fixed].name != name) continue;
      return py::make_tuple(part.gate_offset, part.left_offset, part.right_offset,
                            layer.pending_offset);
    }
  }
  unwrap(Status::not_found("carry table: layer ", index, " has no tensor '", name, "' that folds"));
  return py::make_tuple();
}

}  // namespace

void bind_carry_table(py::module_& m) {
  py::class_<CarryTable, py::smart_holder>(m, "CarryTable")
      .def(py::init([](const StatePlan& plan, std::uint64_t batch_rows) {
             return unwrap(CarryTable::create(plan, batch_rows));
           }),
           py::arg("plan"), py::arg("batch_rows"))
      .def_property_readonly("batch_rows", &CarryTable::batch_rows)
      .def_property_readonly("bytes", &CarryTable::bytes)
      .def_property_readonly("is_staged", kvcache::bindings::own_getter(&CarryTable::is_staged))
      .def(
          "live",
          [](const CarryTable& table, std::int32_t layer, const std::string& name) {
            const std::uint64_t* addresses = unwrap(table.live(layer, name));
            return address_array(unwrap(table.layer(layer)), addresses);
          },
          py::arg("layer"), py::arg("name"))
      .def(
          "stashes",
          [](const CarryTable& table, std::int32_t index) {
            const CarryLayer layer = unwrap(table.layer(index));
            return address_array(layer, layer.stashes);
          },
          py::arg("layer"))
      .def("engaged", &flag_array, py::arg("layer"));
  m.def("stash_offsets", &stash_offsets, py::arg("plan"), py::arg("layer"), py::arg("name"));
}
