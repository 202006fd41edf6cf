#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>
#include <vector>

#include "array_view.h"
#include "kvcache/fold.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::DType;
using kvcache::Gate;
using kvcache::Status;
using kvcache::bindings::ArrayView;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::unwrap;
namespace codec = kvcache::codec;

using Shape = std::vector<std::ptrdiff_t>;

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) unwrap(Status::invalid_argument(parts...));
}

std::string text(const Shape& shape) {
  std::string joined;
  for (const std::ptrdiff_t size : shape) {
    joined += (joined.empty() ? "" : ", ") + std::to_string(size);
  }
  return "[" + joined + "]";
}

void check_apart(const ArrayView& input, const ArrayView& state) {
  const auto a = input.extent();
  const auto b = state.extent();
  require(a.end <= b.begin || b.end <= a.begin, input.name(), " and ", state.name(),
          " overlap in memory");
}

// Rows of float32, contiguous but for the first axis.
class InputRows {
 public:
  InputRows(const py::object& array, const char* name, const ArrayView& state)
      : view_(array, name, false, "float32") {
    require(view_.dtype() == DType::kF32, name, ": dtype must be f32, is ",
            kvcache::dtype_name(view_.dtype()));
    require(!view_.shape().empty(), name, ": no axes; the first one is that of the rows");
    std::ptrdiff_t stride = sizeof(float);
    for (std::size_t axis = view_.shape().size() - 1; axis > 0; --axis) {
      require(view_.shape()[axis] == 1 || view_.strides()[axis] == stride || empty(), name,
              ": a row must be contiguous, is ", view_.layout_text());
      stride *= view_.shape()[axis];
    }
    const std::ptrdiff_t row = rows() > 1 && !empty() ? view_.strides()[0] : stride;
    require(row >= 0 && row % static_cast<std::ptrdiff_t>(sizeof(float)) == 0 &&
                (empty() || reinterpret_cast<std::uintptr_t>(view_.data()) % alignof(float) == 0),
            name, ": rows must lie at ascending addresses that are multiples of 4");
    stride_ = static_cast<std::size_t>(row) / sizeof(float);
    check_apart(view_, state);
  }

  std::ptrdiff_t rows() const { return view_.shape()[0]; }
  bool empty() const { return view_.elements() == 0; }
  Shape row_shape() const { return {view_.shape().begin() + 1, view_.shape().end()}; }
  const float* data() const { return static_cast<const float*>(view_.data()); }
  std::size_t stride() const { return stride_; }

 private:
  ArrayView view_;
  std::size_t stride_ = 0;
};

codec::FoldState state_of(const ArrayView& array) {
  const Shape& shape = array.shape();
  require(!shape.empty() && shape.size() <= 3, "state: expected [heads, i, j], [i, j] or [j], got ",
          array.shape_text());
  require(array.is_contiguous(), "state: must be contiguous in row-major order, is ",
          array.layout_text());
  const auto axis = [&](std::size_t from_last) {
    return shape.size() < from_last ? 1 : static_cast<std::size_t>(shape[shape.size() - from_last]);
  };
  return {array.data(), array.dtype(), axis(3), axis(2), axis(1)};
}

// By how many of the state's leading axes a gate has.
Gate gate_axis(const Shape& state, const Shape& gate) {
  const std::size_t shared = state.size() - std::min(gate.size(), state.size());
  require(shared <= 2 && gate.size() <= state.size() &&
              std::equal(gate.begin(), gate.end(), state.begin()),
          "gate: a row of shape ", text(gate), " does not fit a state of shape ", text(state),
          "; it has the first axes of the state: one gate for each head, channel or element");
  if (shared == 0) return Gate::kElement;
  return shared == 1 ? Gate::kChannel : Gate::kHead;
}

// The heads of an input whose rows are [heads, width], or [width] where the state has no heads.
std::size_t shared_heads(const InputRows& input, const char* name, const ArrayView& state,
                         std::ptrdiff_t width) {
  const Shape row = input.row_shape();
  const bool has_heads = state.shape().size() == 3;
  require(row.size() == (has_heads ? 2 : 1) && row.back() == width, name, ": a row of shape ",
          text(row), " does not fit a state of shape ", text(state.shape()), "; expected ",
          has_heads ? "[heads, " : "[", width, "]");
  return has_heads ? static_cast<std::size_t>(row[0]) : 1;
}

void fold(const py::object& state_array, const py::object& gate_array, const py::object& left_array,
          const py::object& right_array, bool once, unsigned threads) {
  const ArrayView array(state_array, "state", true);
  const codec::FoldState state = state_of(array);
  const InputRows gate(gate_array, "gate", array);
  const InputRows right(right_array, "right", array);
  codec::FoldRows rows;
  rows.rows = static_cast<std::size_t>(right.rows());
  require(gate.rows() == right.rows(), "gate has ", gate.rows(), " rows, right has ", right.rows());
  rows.gate_of = gate_axis(array.shape(), gate.row_shape());
  rows.gate = gate.data();
  rows.gate_stride = gate.stride();
  rows.right = right.data();
  rows.right_stride = right.stride();
  rows.right_heads =
      shared_heads(right, "right", array, static_cast<std::ptrdiff_t>(state.columns));
  std::vector<float> ones;
  const auto run = [&] {
    const ReleaseGil nogil;
    unwrap(codec::fold(state, rows,
                       once ? codec::FoldRounding::kOnce : codec::FoldRounding::kEachRow, threads));
  };
  if (left_array.is_none()) {
    ones.assign(state.lines, 1.0F);
    rows.left = ones.data();
    return run();
  }
  const InputRows left(left_array, "left", array);
  require(left.rows() == right.rows(), "left has ", left.rows(), " rows, right has ", right.rows());
  require(array.shape().size() > 1, "left: a state of one axis has none; pass None");
  rows.left = left.data();
  rows.left_stride = left.stride();
  rows.left_heads = shared_heads(left, "left", array, static_cast<std::ptrdiff_t>(state.lines));
  run();
}

void append_rows(const py::object& window_array, const py::object& rows_array) {
  const ArrayView window(window_array, "window", true);
  const ArrayView rows(rows_array, "rows", false);
  const Shape& shape = window.shape();
  require(!shape.empty(), "window: no axes; the first one is that of the rows");
  require(
      !rows.shape().empty() &&
          std::equal(rows.shape().begin() + 1, rows.shape().end(), shape.begin() + 1, shape.end()),
      "rows of shape ", rows.shape_text(), " do not fit a window of shape ", window.shape_text());
  require(rows.dtype() == window.dtype(), "rows: dtype must be ",
          kvcache::dtype_name(window.dtype()), ", is ", kvcache::dtype_name(rows.dtype()));
  require(window.is_contiguous(), "window: must be contiguous in row-major order, is ",
          window.layout_text());
  require(rows.is_contiguous(), "rows: must be contiguous in row-major order, is ",
          rows.layout_text());
  check_apart(rows, window);
  if (window.elements() == 0) return;
  const auto width = static_cast<std::size_t>(shape[0]);
  const std::size_t row_bytes = window.elements() / width * kvcache::dtype_bytes(window.dtype());
  const ReleaseGil nogil;
  codec::append_rows(window.data(), width, row_bytes, rows.data(),
                     static_cast<std::size_t>(rows.shape()[0]));
}

}  // namespace

void bind_fold(py::module_& m) {
  m.def("fold", &fold, py::arg("state"), py::arg("gate"), py::arg("left"), py::arg("right"),
        py::arg("once"), py::arg("threads"));
  m.def("append_rows", &append_rows, py::arg("window"), py::arg("rows"));
}
