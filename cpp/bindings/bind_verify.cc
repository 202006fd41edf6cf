#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "arrays.h"
#include "kvcache/verify.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::Sequence;
using kvcache::StateView;
using kvcache::TokenTree;
using kvcache::VerifySession;
using kvcache::bindings::Components;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::span_of;
using kvcache::bindings::tensor_array;
using kvcache::bindings::token_span;
using kvcache::bindings::Tokens;
using kvcache::bindings::unwrap;

VerifySession begin_verify(Sequence& sequence, const Tokens& drafts, const TokenTree* tree,
                           kvcache::VerifyStrategy strategy) {
  const auto span = token_span(drafts);
  const ReleaseGil nogil;
  return unwrap(sequence.begin_verify(span, tree, strategy));
}

template <typename Element>
py::array_t<Element> array_of(const std::vector<Element>& elements) {
  return py::array_t<Element>(static_cast<py::ssize_t>(elements.size()), elements.data());
}

std::uint64_t commit_path(VerifySession& session, const Tokens& path) {
  const auto rows = span_of(path, "path");
  const ReleaseGil nogil;
  return unwrap(session.commit(rows));
}

void write_rows(VerifySession& session, std::int32_t layer,
                const std::vector<py::object>& components) {
  const Components<kvcache::codec::RowsView> rows(components);
  const ReleaseGil nogil;
  unwrap(session.write(layer, rows.views()));
}

void write_records(VerifySession& session, std::int32_t layer, const std::string& name,
                   const py::object& records) {
  const Components<kvcache::codec::RowsView> rows({records});
  const ReleaseGil nogil;
  unwrap(session.write_records(layer, name, rows.views()[0]));
}

py::array state_array(VerifySession& session, std::uint64_t row, std::int32_t layer,
                      const std::string& name) {
  StateView view = [&] {
    const ReleaseGil nogil;
    return unwrap(session.state(row, layer, name));
  }();
  return tensor_array(std::move(view));
}

}  // namespace

void bind_verify(py::module_& m) {
  using release_gil = py::call_guard<ReleaseGil>;
  py::class_<VerifySession, py::smart_holder>(m, "VerifySession")
      .def_property_readonly("rows", &VerifySession::rows)
      .def_property_readonly("start", &VerifySession::start)
      .def_property_readonly("strategy", &VerifySession::strategy)
      .def_property_readonly("is_open", py::cpp_function(&VerifySession::is_open, release_gil()))
      .def("tokens", [](const VerifySession& session) { return array_of(session.tokens()); })
      .def("positions", [](const VerifySession& session) { return array_of(session.positions()); })
      .def("write", &write_rows, py::arg("layer"), py::arg("components"))
      .def("write_records", &write_records, py::arg("layer"), py::arg("name"), py::arg("records"))
      .def("state", &state_array, py::arg("row"), py::arg("layer"), py::arg("name"))
      .def(
          "commit", [](VerifySession& s, std::uint64_t n) { return unwrap(s.commit(n)); },
          release_gil())
      .def("commit_path", &commit_path)
      .def("rollback", [](VerifySession& s) { unwrap(s.rollback()); }, release_gil());
  m.def("begin_verify", &begin_verify, py::arg("sequence"), py::arg("drafts"),
        py::arg("tree").none(true), py::arg("strategy") = kvcache::VerifyStrategy::kSteps);
}
