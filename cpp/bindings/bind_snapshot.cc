#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>

#include "kvcache/snapshot.h"

namespace py = pybind11;

void bind_snapshot(py::module_& m) {
  using kvcache::SnapshotError;
  using kvcache::SnapshotFormat;
  py::native_enum<SnapshotFormat>(m, "SnapshotFormat", "enum.IntEnum")
      .value("EXACT", SnapshotFormat::kExact)
      .value("F16", SnapshotFormat::kF16)
      .value("INT8", SnapshotFormat::kInt8)
      .finalize();
  py::class_<SnapshotError>(m, "SnapshotError")
      .def_readonly("layer", &SnapshotError::layer)
      .def_readonly("name", &SnapshotError::name)
      .def_readonly("stored", &SnapshotError::stored)
      .def_readonly("max_abs", &SnapshotError::max_abs)
      .def_readonly("relative_rms", &SnapshotError::relative_rms);
}
