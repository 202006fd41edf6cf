#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>

#include "arrays.h"
#include "kvcache/batch_verify.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::BatchVerifySession;
using kvcache::StateView;
using kvcache::bindings::Components;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::span_of;
using kvcache::bindings::tensor_array;
using kvcache::bindings::Tokens;
using kvcache::bindings::unwrap;
using kvcache::codec::RowsView;
using Counts = py::array_t<std::uint64_t, py::array::c_style>;

template <typename Element>
py::array_t<Element> array_of(const std::vector<Element>& elements) {
  return py::array_t<Element>(static_cast<py::ssize_t>(elements.size()), elements.data());
}

// Signed: numpy makes floats of unsigned numbers that meet signed ones.
py::array_t<std::int64_t> length_array(const std::vector<std::uint64_t>& lengths) {
  py::array_t<std::int64_t> array(static_cast<py::ssize_t>(lengths.size()));
  std::copy(lengths.begin(), lengths.end(), array.mutable_data());
  return array;
}

void write_rows(BatchVerifySession& session, std::int32_t layer,
                const std::vector<py::object>& components) {
  const Components<RowsView> rows(components);
  const ReleaseGil nogil;
  unwrap(session.write(layer, rows.views()));
}

void write_records(BatchVerifySession& session, std::int32_t layer, const std::string& name,
                   const py::object& records) {
  const Components<RowsView> rows({records});
  const ReleaseGil nogil;
  unwrap(session.write_records(layer, name, rows.views()[0]));
}

py::array state_array(BatchVerifySession& session, std::size_t sequence, std::uint64_t row,
                      std::int32_t layer, const std::string& name) {
  StateView view = [&] {
    const ReleaseGil nogil;
    return unwrap(session.state(sequence, row, layer, name));
  }();
  return tensor_array(std::move(view));
}

py::array_t<std::int64_t> commit(BatchVerifySession& session, const Counts& accepted,
                                 bool in_place) {
  const auto counts = span_of(accepted, "accepted");
  return length_array([&] {
    const ReleaseGil nogil;
    return unwrap(session.commit(counts, in_place));
  }());
}

py::array_t<std::int64_t> commit_paths(BatchVerifySession& session, const Tokens& rows,
                                       const Counts& counts, bool in_place) {
  const auto paths = span_of(rows, "paths");
  const auto of = span_of(counts, "counts");
  return length_array([&] {
    const ReleaseGil nogil;
    return unwrap(session.commit_paths(paths, of, in_place));
  }());
}

}  // namespace

void bind_batch_verify(py::module_& m) {
  using release_gil = py::call_guard<ReleaseGil>;
  using Session = BatchVerifySession;
  py::class_<Session, py::smart_holder>(m, "BatchVerifySession")
      .def_property_readonly("rows", &Session::rows)
      .def_property_readonly("strategy", &Session::strategy)
      .def_property_readonly("is_open", py::cpp_function(&Session::is_open, release_gil()))
      .def("tokens", [](const Session& session) { return array_of(session.tokens()); })
      .def("positions", [](const Session& session) { return array_of(session.positions()); })
      .def("offsets", [](const Session& session) { return array_of(session.offsets()); })
      .def("starts", [](const Session& session) { return array_of(session.starts()); })
      .def("write", &write_rows, py::arg("layer"), py::arg("components"))
      .def("write_records", &write_records, py::arg("layer"), py::arg("name"), py::arg("records"))
      .def("state", &state_array, py::arg("sequence"), py::arg("row"), py::arg("layer"),
           py::arg("name"))
      .def("commit", &commit, py::arg("accepted"), py::arg("in_place"))
      .def("commit_paths", &commit_paths, py::arg("rows"), py::arg("counts"), py::arg("in_place"))
      .def("rollback", [](Session& session) { unwrap(session.rollback()); }, release_gil());
}
