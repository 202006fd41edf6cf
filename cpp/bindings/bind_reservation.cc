#include <pybind11/pybind11.h>

#include "kvcache/cache.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

void bind_reservation(py::module_& m) {
  using kvcache::Cache;
  using kvcache::Reservation;
  using kvcache::bindings::ReleaseGil;
  using kvcache::bindings::unwrap;
  py::class_<Reservation, py::smart_holder>(m, "Reservation")
      .def_property_readonly("bytes", kvcache::bindings::own_getter(&Reservation::bytes))
      .def("release", &Reservation::release, py::call_guard<ReleaseGil>());
  m.def(
      "reserve", [](Cache& cache, std::uint64_t bytes) { return unwrap(cache.reserve(bytes)); },
      py::arg("cache"), py::arg("bytes"), py::call_guard<ReleaseGil>());
}
