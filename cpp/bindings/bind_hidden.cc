#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "kvcache/accept_stash.h"
#include "kvcache/hidden_capture.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::AcceptStash;
using kvcache::Cache;
using kvcache::DType;
using kvcache::HiddenBands;
using kvcache::HiddenCapture;
using kvcache::HiddenView;
using kvcache::Sequence;
using kvcache::Status;
using kvcache::bindings::ArrayView;
using kvcache::bindings::own_getter;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::span_of;
using kvcache::bindings::unwrap;

using Indices = py::array_t<std::uint64_t, py::array::c_style>;
using Sequences = std::vector<Sequence*>;

std::vector<const Sequence*> borrowed(const Sequences& sequences) {
  for (const Sequence* sequence : sequences) {
    if (sequence == nullptr) unwrap(Status::invalid_argument("sequences: None is no sequence"));
  }
  return {sequences.begin(), sequences.end()};
}

// Rows [rows, width] of any array type, borrowed without a copy. Made and let go with the GIL held.
class BorrowedRows {
 public:
  explicit BorrowedRows(const py::object& object)
      : array_(object, "hidden", false, ArrayView::kFloats) {
    const auto& shape = array_.shape();
    if (shape.size() != 2) {
      unwrap(Status::invalid_argument("hidden: expected [rows, width], got the shape ",
                                      array_.shape_text()));
    }
    const auto element = static_cast<std::ptrdiff_t>(kvcache::dtype_bytes(array_.dtype()));
    if (array_.elements() > 0 && shape[1] > 1 && array_.strides()[1] != element) {
      unwrap(Status::invalid_argument("hidden: the last axis must be contiguous, is ",
                                      array_.layout_text()));
    }
    view_ = {.data = array_.data(),
             .dtype = array_.dtype(),
             .rows = static_cast<std::uint64_t>(shape[0]),
             .width = static_cast<std::uint64_t>(shape[1]),
             .row_stride = array_.strides()[0],
             .owner = nullptr};
  }
  const HiddenView& view() const { return view_; }

 private:
  ArrayView array_;
  HiddenView view_;
};

py::object rows_array(const HiddenView& view) {
  const auto element = static_cast<py::ssize_t>(kvcache::dtype_bytes(view.dtype));
  return kvcache::bindings::memory_array(
      view.dtype, {static_cast<py::ssize_t>(view.rows), static_cast<py::ssize_t>(view.width)},
      {static_cast<py::ssize_t>(view.row_stride), element}, view.data, view.owner);
}

// The view that `read` gives without the GIL, as an array.
template <typename Read>
py::object array_of(const Read& read) {
  HiddenView view;
  {
    const ReleaseGil nogil;
    view = unwrap(read());
  }
  return rows_array(view);
}

kvcache::HiddenRowsOptions options_of(std::uint64_t rows, std::uint64_t width, DType dtype,
                                      Cache* cache) {
  return {.rows = rows, .width = width, .dtype = dtype, .cache = cache};
}

void store(AcceptStash& stash, const Sequences& sequences, const py::object& hidden,
           const Indices& rows, const Indices& catch_up, const Indices& counts) {
  const auto handles = borrowed(sequences);
  const BorrowedRows given(hidden);
  const auto row_span = span_of(rows, "rows");
  const auto catch_span = span_of(catch_up, "catch_up");
  const auto count_span = span_of(counts, "catch_up");
  const ReleaseGil nogil;
  unwrap(stash.store(handles, given.view(), row_span, catch_span, count_span));
}

void store_bands(HiddenBands& bands, const Sequences& sequences, const py::object& hidden,
                 const Indices& offsets) {
  const auto handles = borrowed(sequences);
  const BorrowedRows given(hidden);
  const auto span = span_of(offsets, "offsets");
  const ReleaseGil nogil;
  unwrap(bands.store(handles, given.view(), span));
}

std::uint64_t write_capture(HiddenCapture& capture, std::uint64_t position,
                            const py::object& rows) {
  const BorrowedRows given(rows);
  const ReleaseGil nogil;
  return unwrap(capture.write(position, given.view()));
}

void bind_stash(py::module_& m) {
  py::class_<AcceptStash, py::smart_holder>(m, "AcceptStash")
      .def(py::init([](std::uint64_t rows, std::uint64_t width, DType dtype, std::uint64_t catch_up,
                       Cache* cache) {
             return unwrap(AcceptStash::create({options_of(rows, width, dtype, cache), catch_up}));
           }),
           py::kw_only(), py::arg("rows"), py::arg("width"), py::arg("dtype"), py::arg("catch_up"),
           py::arg("cache"), py::call_guard<ReleaseGil>())
      .def("store", &store, py::arg("sequences"), py::arg("hidden"), py::arg("rows"),
           py::arg("catch_up"), py::arg("counts"))
      .def(
          "rows",
          [](const AcceptStash& s, std::uint64_t n) { return array_of([&] { return s.rows(n); }); },
          py::arg("count"))
      .def(
          "row",
          [](const AcceptStash& s, std::uint64_t i) { return array_of([&] { return s.row(i); }); },
          py::arg("index"))
      .def(
          "catch_up",
          [](const AcceptStash& s, std::uint64_t i) {
            return array_of([&] { return s.catch_up(i); });
          },
          py::arg("index"))
      .def_property_readonly("stored", own_getter(&AcceptStash::stored))
      .def_property_readonly("bytes", own_getter(&AcceptStash::bytes));
}

}  // namespace

void bind_hidden(py::module_& m) {
  using release_gil = py::call_guard<ReleaseGil>;
  bind_stash(m);
  py::class_<HiddenCapture, py::smart_holder>(m, "HiddenCapture")
      .def(py::init([](std::uint64_t rows, std::uint64_t width, DType dtype, Cache* cache) {
             return unwrap(HiddenCapture::create(options_of(rows, width, dtype, cache)));
           }),
           py::kw_only(), py::arg("rows"), py::arg("width"), py::arg("dtype"), py::arg("cache"),
           release_gil())
      .def(
          "begin", [](HiddenCapture& c, const Sequence& s) { unwrap(c.begin(s)); },
          py::arg("sequence"), release_gil())
      .def("write", &write_capture, py::arg("position"), py::arg("rows"))
      .def("rows", [](const HiddenCapture& c) { return array_of([&] { return c.rows(); }); })
      .def(
          "consume", [](HiddenCapture& c) { unwrap(c.consume()); }, release_gil())
      .def(
          "release", [](HiddenCapture& c) { unwrap(c.release()); }, release_gil())
      .def_property_readonly("captured", own_getter(&HiddenCapture::captured))
      .def_property_readonly("position", own_getter(&HiddenCapture::position))
      .def_property_readonly("bytes", own_getter(&HiddenCapture::bytes));
  py::class_<HiddenBands, py::smart_holder>(m, "HiddenBands")
      .def(py::init([](std::uint64_t bands, std::uint64_t rows, std::uint64_t width, DType dtype,
                       Cache* cache) {
             return unwrap(HiddenBands::create(bands, options_of(rows, width, dtype, cache)));
           }),
           py::kw_only(), py::arg("bands"), py::arg("rows"), py::arg("width"), py::arg("dtype"),
           py::arg("cache"), release_gil())
      .def("store", &store_bands, py::arg("sequences"), py::arg("hidden"), py::arg("offsets"))
      .def(
          "accepted",
          [](const HiddenBands& b, std::uint64_t i) {
            return array_of([&] { return b.accepted(i); });
          },
          py::arg("band"))
      .def_property_readonly("stored", own_getter(&HiddenBands::stored))
      .def_property_readonly("bytes", own_getter(&HiddenBands::bytes));
}
