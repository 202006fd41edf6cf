#include <pybind11/pybind11.h>

#include "kvcache/codec.h"

namespace py = pybind11;

void bind_codec(py::module_& m) {
  m.def("active_isa", [] { return std::string(kvcache::codec::active_isa()); });
}
