#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "kvcache/batch_verify.h"
#include "kvcache/verify.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::BatchVerifySession;
using kvcache::DType;
using kvcache::PendingRows;
using kvcache::StashInputs;
using kvcache::StashRow;
using kvcache::StateView;
using kvcache::Status;
using kvcache::VerifySession;
using kvcache::bindings::ArrayView;
using kvcache::bindings::memory_array;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::tensor_array;
using kvcache::bindings::unwrap;

// An array [rows, ...] as [rows, heads, width], borrowed: the last axis is the width, those between
// are heads. Empty for None.
class Rows {
 public:
  Rows(const py::object& object, const char* name, const char* dtypes = ArrayView::kFloats) {
    if (object.is_none()) return;
    array_ = std::make_unique<ArrayView>(object, name, false, dtypes);
    const auto& shape = array_->shape();
    const auto& strides = array_->strides();
    const std::size_t axes = shape.size();
    if (axes < 2 || axes > 4) {
      unwrap(Status::invalid_argument(name, ": expected [rows, ...] of 2 to 4 axes, got the shape ",
                                      array_->shape_text()));
    }
    const auto element = static_cast<std::ptrdiff_t>(kvcache::dtype_bytes(array_->dtype()));
    const bool empty = array_->elements() == 0;
    if (!empty && shape[axes - 1] > 1 && strides[axes - 1] != element) {
      unwrap(Status::invalid_argument(name, ": the last axis must be contiguous, is ",
                                      array_->layout_text()));
    }
    std::ptrdiff_t heads = 1;
    for (std::size_t axis = 1; axis + 1 < axes; ++axis) heads *= shape[axis];
    if (!empty && axes == 4 && shape[1] > 1 && strides[1] != shape[2] * strides[2]) {
      unwrap(Status::invalid_argument(name, ": the axes between must be evenly spaced, is ",
                                      array_->layout_text()));
    }
    view_ = kvcache::codec::RowsView{
        .data = array_->data(),
        .dtype = array_->dtype(),
        .tokens = static_cast<std::size_t>(shape[0]),
        .heads = static_cast<std::size_t>(heads),
        .width = static_cast<std::size_t>(shape[axes - 1]),
        .token_stride = strides[0],
        .head_stride = axes > 2 ? strides[axes - 2] : shape[axes - 1] * element};
  }

  const std::optional<kvcache::codec::RowsView>& view() const { return view_; }

 private:
  std::unique_ptr<ArrayView> array_;
  std::optional<kvcache::codec::RowsView> view_;
};

// Session: of a sequence or of a batch.
template <typename Session>
void stash(Session& session, std::int32_t layer, const std::string& name, const py::object& gate,
           const py::object& left, const py::object& right, const py::object& rows) {
  const Rows gates(gate, "gate");
  const Rows lefts(left, "left");
  const Rows rights(right, "right");
  const Rows windows(rows, "rows", ArrayView::kAnyDtype);
  const ReleaseGil nogil;
  unwrap(session.stash(layer, name,
                       StashInputs{gates.view(), lefts.view(), rights.view(), windows.view()}));
}

py::array read_only(StateView view) {
  py::array array = tensor_array(std::move(view));
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

// (rows, gate, left, right); gate and left are None for a window, left for a state of one axis.
py::tuple pending_arrays(const PendingRows& found) {
  const std::vector<std::uint64_t>& shape = found.component->shape;
  const bool window = found.row.kind != StashRow::Kind::kMatrix;
  static const float kNothing = 0;
  const auto rows = [&](DType dtype, std::vector<std::uint64_t> row, const std::byte* data) {
    row.insert(row.begin(), found.rows);
    const std::vector<py::ssize_t> axes(row.begin(), row.end());
    std::vector<py::ssize_t> strides(axes.size());
    auto stride = static_cast<py::ssize_t>(kvcache::dtype_bytes(dtype));
    for (std::size_t axis = axes.size(); axis-- > 0; stride *= axes[axis]) strides[axis] = stride;
    const void* at = data == nullptr ? static_cast<const void*>(&kNothing) : data;
    return memory_array(dtype, axes, strides, at, found.pin);
  };
  if (window) {
    return py::make_tuple(
        found.rows, py::none(), py::none(),
        rows(found.component->dtype, {shape.begin() + 1, shape.end()}, found.right));
  }
  const std::size_t shared = found.row.gate_of == kvcache::Gate::kHead      ? 2
                             : found.row.gate_of == kvcache::Gate::kChannel ? 1
                                                                            : 0;
  const std::size_t gate_axes = shape.size() - std::min(shared, shape.size());
  std::vector<std::uint64_t> left(shape.begin(), shape.end() - 1);
  std::vector<std::uint64_t> right = shape;
  if (shape.size() > 1) right.erase(right.end() - 2);
  const std::vector<std::uint64_t> gate(shape.begin(),
                                        shape.begin() + static_cast<std::ptrdiff_t>(gate_axes));
  return py::make_tuple(
      found.rows, rows(DType::kF32, gate, found.gate),
      shape.size() == 1 ? py::object(py::none()) : rows(DType::kF32, left, found.left),
      rows(DType::kF32, right, found.right));
}

// Which: nothing, or the place of a sequence in a batch.
template <typename Session, typename... Which>
py::array live(Session& session, Which... which, std::int32_t layer, const std::string& name) {
  StateView view = [&] {
    const ReleaseGil nogil;
    return unwrap(session.live(which..., layer, name));
  }();
  return read_only(std::move(view));
}

template <typename Session, typename... Which>
py::tuple pending(Session& session, Which... which, std::int32_t layer, const std::string& name) {
  const PendingRows found = [&] {
    const ReleaseGil nogil;
    return unwrap(session.pending(which..., layer, name));
  }();
  return pending_arrays(found);
}

}  // namespace

void bind_stash(py::module_& m) {
  const auto layer = py::arg("layer");
  const auto name = py::arg("name");
  m.def("verify_stash", &stash<VerifySession>, py::arg("session"), layer, name, py::arg("gate"),
        py::arg("left"), py::arg("right"), py::arg("rows"));
  m.def("verify_live", &live<VerifySession>, py::arg("session"), layer, name);
  m.def("verify_pending", &pending<VerifySession>, py::arg("session"), layer, name);
  m.def("batch_verify_stash", &stash<BatchVerifySession>, py::arg("session"), layer, name,
        py::arg("gate"), py::arg("left"), py::arg("right"), py::arg("rows"));
  m.def("batch_verify_live", &live<BatchVerifySession, std::size_t>, py::arg("session"),
        py::arg("sequence"), layer, name);
  m.def("batch_verify_pending", &pending<BatchVerifySession, std::size_t>, py::arg("session"),
        py::arg("sequence"), layer, name);
}
