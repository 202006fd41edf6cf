#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "arrays.h"
#include "kvcache/draft_tokens.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::DraftTokens;
using kvcache::Sequence;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::span_of;
using kvcache::bindings::token_span;
using kvcache::bindings::Tokens;
using kvcache::bindings::unwrap;

using Floats = py::array_t<float, py::array::c_style>;

void put(DraftTokens& drafts, const Sequence& sequence, const Tokens& tokens,
         const Floats& confidences) {
  const auto ids = token_span(tokens);
  const auto sure = span_of(confidences, "confidences");
  const ReleaseGil nogil;
  unwrap(drafts.put(sequence, ids, sure));
}

// (ids, confidences); no confidences where none were put.
py::tuple take(DraftTokens& drafts, const Sequence& sequence) {
  const DraftTokens::Drafts taken = [&] {
    const ReleaseGil nogil;
    return unwrap(drafts.take(sequence));
  }();
  const auto size = static_cast<py::ssize_t>(taken.tokens.size());
  const auto sure = static_cast<py::ssize_t>(taken.confidences.size());
  return py::make_tuple(py::array_t<std::int32_t>(size, taken.tokens.data()),
                        Floats(sure, taken.confidences.data()));
}

}  // namespace

void bind_draft_tokens(py::module_& m) {
  using release_gil = py::call_guard<ReleaseGil>;
  py::class_<DraftTokens, py::smart_holder>(m, "DraftTokens")
      .def(py::init([](std::uint64_t slots, std::uint64_t positions) {
             return unwrap(DraftTokens::create(slots, positions));
           }),
           py::kw_only(), py::arg("slots"), py::arg("positions"))
      .def("put", &put, py::arg("sequence"), py::arg("tokens"), py::arg("confidences"))
      .def("take", &take, py::arg("sequence"))
      .def(
          "put_back", [](DraftTokens& d, const Sequence& s) { unwrap(d.put_back(s)); },
          py::arg("sequence"), release_gil())
      .def(
          "clear", [](DraftTokens& d, const Sequence& s) { return unwrap(d.clear(s)); },
          py::arg("sequence"), release_gil())
      .def(
          "pending", [](const DraftTokens& d, const Sequence& s) { return unwrap(d.pending(s)); },
          py::arg("sequence"), release_gil())
      .def_property_readonly("bytes", kvcache::bindings::own_getter(&DraftTokens::bytes));
}
