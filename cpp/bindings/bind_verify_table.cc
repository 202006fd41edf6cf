#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "arrays.h"
#include "kvcache/verify_table.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::PointerTable;
using kvcache::VerifyTable;
using kvcache::bindings::memory_array;
using kvcache::bindings::unwrap;

py::object pointer_array(const VerifyTable& table, std::int32_t layer, const std::string& name) {
  const PointerTable pointers = unwrap(table.pointers(layer, name));
  constexpr py::ssize_t kEntry = sizeof(std::uint64_t);
  const auto tables = static_cast<py::ssize_t>(pointers.tables);
  const auto rows = static_cast<py::ssize_t>(pointers.batch_rows);
  return memory_array(kvcache::DType::kU64, {tables, rows}, {rows * kEntry, kEntry}, pointers.data,
                      pointers.owner);
}

}  // namespace

void bind_verify_table(py::module_& m) {
  py::class_<VerifyTable, py::smart_holder>(m, "VerifyTable")
      .def(py::init(
               [](const kvcache::StatePlan& plan, std::uint64_t batch_rows, std::uint64_t tables) {
                 return unwrap(VerifyTable::create(plan, batch_rows, tables));
               }),
           py::arg("plan"), py::arg("batch_rows"), py::arg("tables"))
      .def_property_readonly("batch_rows", &VerifyTable::batch_rows)
      .def_property_readonly("tables", &VerifyTable::tables)
      .def_property_readonly("bytes", &VerifyTable::bytes)
      .def_property_readonly("is_staged", kvcache::bindings::own_getter(&VerifyTable::is_staged))
      .def("pointers", &pointer_array, py::arg("layer"), py::arg("name"));
}
