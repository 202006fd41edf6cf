#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "arrays.h"
#include "kvcache/cache.h"
#include "kvcache/lifetime.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::Cache;
using kvcache::Pin;
using kvcache::bindings::Media;
using kvcache::bindings::media_of;
using kvcache::bindings::own;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::token_span;
using kvcache::bindings::Tokens;
using kvcache::bindings::unwrap;
using Milliseconds = std::optional<std::uint64_t>;

Pin pin(Cache& cache, const Tokens& tokens, const std::string& name, const std::string& adapter,
        const std::string& salt, const Media& media, Milliseconds lease_ms, Milliseconds now_ms) {
  const auto span = token_span(tokens);
  const ReleaseGil nogil;
  return unwrap(cache.pin(span, {name, adapter, salt, media_of(media)}, {lease_ms, now_ms}));
}

}  // namespace

void bind_lifetime(py::module_& m) {
  py::class_<Pin, py::smart_holder>(m, "Pin")
      .def_property_readonly("tokens", &Pin::tokens)
      .def_property_readonly("expires_ms", &Pin::expires_ms)
      .def_property_readonly("is_held",
                             py::cpp_function([](const Pin& pin) { return own(pin).is_held(); },
                                              py::call_guard<ReleaseGil>()))
      .def(
          "renew",
          [](Pin& pin, Milliseconds lease_ms, Milliseconds now_ms) {
            unwrap(pin.renew({lease_ms, now_ms}));
          },
          py::kw_only(), py::arg("lease_ms"), py::arg("now_ms"), py::call_guard<ReleaseGil>())
      .def("release", &Pin::release, py::call_guard<ReleaseGil>());
  m.def("pin", &pin, py::arg("cache"), py::arg("tokens"), py::arg("name"), py::arg("adapter"),
        py::arg("salt"), py::arg("media"), py::kw_only(), py::arg("lease_ms"), py::arg("now_ms"));
}
