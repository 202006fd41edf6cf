#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "arrays.h"
#include "kvcache/sequence.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::MarkKind;
using kvcache::Sequence;
using kvcache::StateView;
using kvcache::bindings::Components;
using kvcache::bindings::Media;
using kvcache::bindings::media_of;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::tensor_array;
using kvcache::bindings::token_span;
using kvcache::bindings::Tokens;
using kvcache::bindings::unwrap;
using kvcache::codec::MutableRowsView;
using kvcache::codec::RowsView;

void write_rows(Sequence& sequence, std::int32_t layer, std::uint64_t start,
                const std::vector<py::object>& components) {
  const Components<RowsView> rows(components);
  const ReleaseGil nogil;
  unwrap(sequence.write(layer, start, rows.views()));
}

void read_rows(const Sequence& sequence, std::int32_t layer, std::uint64_t start,
               const std::vector<py::object>& components) {
  const Components<MutableRowsView> rows(components);
  const ReleaseGil nogil;
  unwrap(sequence.read(layer, start, rows.views()));
}

void write_records(Sequence& sequence, std::int32_t layer, const std::string& name,
                   std::uint64_t first, const py::object& records) {
  const Components<RowsView> rows({records});
  const ReleaseGil nogil;
  unwrap(sequence.write_records(layer, name, first, rows.views()[0]));
}

void read_records(const Sequence& sequence, std::int32_t layer, const std::string& name,
                  std::uint64_t first, const py::object& records) {
  const Components<MutableRowsView> rows({records});
  const ReleaseGil nogil;
  unwrap(sequence.read_records(layer, name, first, rows.views()[0]));
}

py::array state_array(const Sequence& sequence, std::int32_t layer, const std::string& name) {
  StateView view = [&] {
    const ReleaseGil nogil;
    return unwrap(sequence.state(layer, name));
  }();
  return tensor_array(std::move(view));
}

// What `get` says of an open sequence. What is closed stays so: read first, it was right.
template <auto get>
auto of_open(const Sequence& sequence) {
  auto value = (sequence.*get)();
  unwrap(sequence.check_open());
  return value;
}

py::array_t<std::int32_t> token_array(const Sequence& sequence) {
  const std::vector<std::int32_t> tokens = [&] {
    const ReleaseGil nogil;
    return of_open<&Sequence::tokens>(sequence);
  }();
  return py::array_t<std::int32_t>(static_cast<py::ssize_t>(tokens.size()), tokens.data());
}

void bind_marks(py::module_& m) {
  py::native_enum<MarkKind>(m, "MarkKind", "enum.IntEnum")
      .value("OTHER", MarkKind::kOther)
      .value("TURN", MarkKind::kTurn)
      .value("TOOLS", MarkKind::kTools)
      .value("SYSTEM", MarkKind::kSystem)
      .finalize();
}

using SequenceClass = py::class_<Sequence, py::smart_holder>;

void bind_rows(SequenceClass& sequence) {
  sequence.def("write", &write_rows, py::arg("layer"), py::arg("start"), py::arg("components"))
      .def("read", &read_rows, py::arg("layer"), py::arg("start"), py::arg("components"))
      .def("write_records", &write_records, py::arg("layer"), py::arg("name"), py::arg("first"),
           py::arg("records"))
      .def("read_records", &read_records, py::arg("layer"), py::arg("name"), py::arg("first"),
           py::arg("records"))
      .def(
          "written_records",
          [](const Sequence& s, std::int32_t layer, const std::string& name) {
            return unwrap(s.written_records(layer, name));
          },
          py::arg("layer"), py::arg("name"), py::call_guard<ReleaseGil>());
}

}  // namespace

void bind_sequence(py::module_& m) {
  bind_marks(m);
  using release_gil = py::call_guard<ReleaseGil>;
  SequenceClass sequence(m, "Sequence");
  bind_rows(sequence);
  sequence.def_property_readonly("cached_tokens", &Sequence::cached_tokens)
      .def_property_readonly("matched_tokens", &Sequence::matched_tokens)
      .def_property_readonly("length", py::cpp_function(&of_open<&Sequence::length>, release_gil()))
      .def_property_readonly("is_open", py::cpp_function(&Sequence::is_open, release_gil()))
      .def(
          "written", [](const Sequence& s, std::int32_t layer) { return unwrap(s.written(layer)); },
          release_gil())
      .def("tokens", &token_array)
      .def("extend",
           [](Sequence& sequence, const Tokens& tokens, const Media& media) {
             const auto span = token_span(tokens);
             const auto items = media_of(media);
             const ReleaseGil nogil;
             unwrap(sequence.extend(span, items));
           })
      .def("state", &state_array, py::arg("layer"), py::arg("name"))
      .def(
          "advance", [](Sequence& s, std::uint64_t n) { unwrap(s.advance(n)); }, release_gil())
      .def(
          "snapshot",
          [](Sequence& s, kvcache::SnapshotFormat format) {
            std::vector<kvcache::SnapshotError> errors;
            const std::uint64_t position = unwrap(s.snapshot(format, &errors));
            return std::pair(position, std::move(errors));
          },
          py::arg("format"), release_gil())
      .def(
          "mark",
          [](Sequence& s, std::uint64_t position, MarkKind kind) {
            unwrap(s.mark(position, kind));
          },
          py::arg("position"), py::arg("kind"), release_gil())
      .def("prefill_stops", &of_open<&Sequence::prefill_stops>, release_gil())
      .def(
          "publish", [](Sequence& s) { unwrap(s.publish()); }, release_gil())
      .def(
          "fork", [](Sequence& s) { return unwrap(s.fork()); }, release_gil())
      .def(
          "truncate", [](Sequence& s, std::uint64_t n) { unwrap(s.truncate(n)); }, release_gil())
      .def(
          "record", [](Sequence& s) { return unwrap(s.record()); }, release_gil())
      .def(
          "rollback", [](Sequence& s, std::uint64_t n) { unwrap(s.rollback(n)); }, release_gil())
      .def_property_readonly("recorded",
                             py::cpp_function(&of_open<&Sequence::recorded>, release_gil()))
      .def(
          "close",
          [](Sequence& sequence, std::optional<std::uint64_t> output_tokens, bool session_closed,
             std::optional<std::uint64_t> now_ms) {
            sequence.close({output_tokens, session_closed, now_ms});
          },
          py::kw_only(), py::arg("output_tokens") = py::none(), py::arg("session_closed") = false,
          py::arg("now_ms") = py::none(), release_gil());
}
