#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "array_view.h"
#include "bfloat16_array.h"
#include "kvcache/codec.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::DType;
using kvcache::Status;
using kvcache::bindings::ArrayView;
using kvcache::bindings::Bfloat16Array;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::unwrap;
namespace codec = kvcache::codec;

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) unwrap(Status::invalid_argument(parts...));
}

// The rows of an array of any rank as pieces [tokens, heads, width] of two strides.
struct Pieces {
  struct Axis {
    std::size_t size = 1;
    std::ptrdiff_t stride = 0;
  };
  std::vector<Axis> outer;  // every combination is a piece, in row order
  Axis tokens;
  Axis heads;
  std::size_t width = 0;

  std::size_t rows() const { return tokens.size * heads.size; }

  explicit Pieces(const ArrayView& array) {
    const std::size_t rank = array.shape().size();
    width = static_cast<std::size_t>(array.shape()[rank - 1]);
    std::vector<Axis> axes;  // innermost first; neighbours of one stride joined
    for (std::size_t i = rank - 1; i-- > 0;) {
      const auto size = static_cast<std::size_t>(array.shape()[i]);
      const std::ptrdiff_t stride = array.strides()[i];
      if (size == 1) continue;
      if (!axes.empty() &&
          stride == static_cast<std::ptrdiff_t>(axes.back().size) * axes.back().stride) {
        axes.back().size *= size;
      } else {
        axes.push_back({size, stride});
      }
    }
    if (axes.size() == 1) {
      tokens = axes[0];
    } else if (axes.size() > 1) {
      heads = axes[0];
      tokens = axes[1];
    }
    if (axes.size() > 2) outer.assign(axes.rbegin(), axes.rend() - 2);
  }

  // Calls body(byte offset of the piece, its first row) until one fails.
  template <typename Body>
  Status for_each(const Body& body) const {
    std::vector<std::size_t> at(outer.size(), 0);
    for (std::size_t row = 0;; row += rows()) {
      std::ptrdiff_t offset = 0;
      for (std::size_t i = 0; i < outer.size(); ++i) {
        offset += static_cast<std::ptrdiff_t>(at[i]) * outer[i].stride;
      }
      if (Status status = body(offset, row); !status) return status;
      std::size_t axis = outer.size();
      while (axis > 0 && ++at[axis - 1] == outer[axis - 1].size) at[--axis] = 0;
      if (axis == 0) return Status::ok();
    }
  }

  template <typename View, typename Data>
  View view(Data* data, std::ptrdiff_t offset, DType dtype) const {
    return {
        .data = static_cast<std::conditional_t<std::is_const_v<Data>, const char, char>*>(data) +
                offset,
        .dtype = dtype,
        .tokens = tokens.size,
        .heads = heads.size,
        .width = width,
        .token_stride = tokens.stride,
        .head_stride = heads.stride};
  }
};

void check_rows(const ArrayView& array) {
  require(!array.shape().empty(), array.name(), ": no axes; rows are [..., head_dim]");
  const std::ptrdiff_t width = array.shape().back();
  require(width > 0, array.name(), ": head_dim is 0 in shape ", array.shape_text());
  require(width == 1 || array.elements() == 0 ||
              array.strides().back() ==
                  static_cast<std::ptrdiff_t>(kvcache::dtype_bytes(array.dtype())),
          array.name(), ": the last axis must be contiguous; its stride is ",
          array.strides().back(), " bytes");
}

// Shape `like`, without its last axis when `per_row`.
void check_packed(const ArrayView& array, DType dtype, const ArrayView& like, bool per_row) {
  std::vector<std::ptrdiff_t> shape = like.shape();
  if (per_row) shape.pop_back();
  require(array.dtype() == dtype, array.name(), ": dtype must be ", kvcache::dtype_name(dtype),
          ", is ", kvcache::dtype_name(array.dtype()));
  require(array.shape() == shape, array.name(), ": shape ", array.shape_text(), " does not fit ",
          like.name(), " of shape ", like.shape_text());
  require(array.is_contiguous(), array.name(), ": must be contiguous in row-major order, is ",
          array.layout_text());
  require(array.elements() == 0 || dtype != DType::kF32 ||
              reinterpret_cast<std::uintptr_t>(array.data()) % alignof(float) == 0,
          array.name(), ": its address is not a multiple of 4");
}

void check_apart(const ArrayView& a, const ArrayView& b) {
  const auto x = a.extent();
  const auto y = b.extent();
  require(x.end <= y.begin || y.end <= x.begin, a.name(), " and ", b.name(), " overlap in memory");
}

// No element of an output may be written twice: each stride passes all that smaller ones reach.
void check_no_self_overlap(const ArrayView& array) {
  if (array.elements() == 0) return;
  std::vector<std::pair<std::ptrdiff_t, std::ptrdiff_t>> axes;  // |stride|, size
  for (std::size_t i = 0; i < array.shape().size(); ++i) {
    if (array.shape()[i] > 1) axes.emplace_back(std::abs(array.strides()[i]), array.shape()[i]);
  }
  std::sort(axes.begin(), axes.end());
  auto reach = static_cast<std::ptrdiff_t>(kvcache::dtype_bytes(array.dtype()));
  for (const auto& [stride, size] : axes) {
    require(stride >= reach, array.name(), ": elements overlap each other in memory");
    reach += (size - 1) * stride;
  }
}

std::vector<py::ssize_t> shape_of(const ArrayView& array, bool per_row) {
  std::vector<py::ssize_t> shape(array.shape().begin(), array.shape().end());
  if (per_row) shape.pop_back();
  return shape;
}

void encode_int8(const py::object& x, const py::object& codes, const py::object& scales,
                 unsigned threads) {
  unwrap(codec::check_isa());
  const ArrayView in(x, "x", false);
  require(kvcache::is_float(in.dtype()), "x: dtype ", kvcache::dtype_name(in.dtype()),
          " is not float32, float16 or bfloat16");
  check_rows(in);
  const ArrayView out(codes, "codes", true);
  const ArrayView row_scales(scales, "scales", true);
  check_packed(out, DType::kI8, in, false);
  check_packed(row_scales, DType::kF32, in, true);
  check_apart(out, in);
  check_apart(row_scales, in);
  check_apart(out, row_scales);
  if (in.elements() == 0) return;
  const Pieces pieces(in);
  Status status;
  {
    const ReleaseGil nogil;
    status = pieces.for_each([&](std::ptrdiff_t offset, std::size_t row) {
      return codec::encode_int8(
          pieces.view<codec::RowsView>(static_cast<const void*>(in.data()), offset, in.dtype()),
          static_cast<std::int8_t*>(out.data()) + row * pieces.width,
          static_cast<float*>(row_scales.data()) + row, threads, row);
    });
  }
  unwrap(std::move(status));
}

void decode_int8(const py::object& codes, const py::object& scales, const py::object& out,
                 unsigned threads) {
  unwrap(codec::check_isa());
  const ArrayView in(codes, "codes", false);
  check_rows(in);
  const ArrayView row_scales(scales, "scales", false);
  check_packed(in, DType::kI8, in, false);
  check_packed(row_scales, DType::kF32, in, true);
  const ArrayView elements(out, "out", true);
  require(kvcache::is_float(elements.dtype()), "out: dtype ", kvcache::dtype_name(elements.dtype()),
          " is not float32, float16 or bfloat16");
  require(elements.shape() == in.shape(), "out: shape ", elements.shape_text(),
          " does not fit codes of shape ", in.shape_text());
  check_rows(elements);
  check_no_self_overlap(elements);
  check_apart(elements, in);
  check_apart(elements, row_scales);
  if (in.elements() == 0) return;
  const Pieces pieces(elements);
  const ReleaseGil nogil;
  unwrap(pieces.for_each([&](std::ptrdiff_t offset, std::size_t row) {
    codec::decode_int8(
        static_cast<const std::int8_t*>(in.data()) + row * pieces.width,
        static_cast<const float*>(row_scales.data()) + row,
        pieces.view<codec::MutableRowsView>(elements.data(), offset, elements.dtype()), threads);
    return Status::ok();
  }));
}

// (shape, "f32" and so on) of anything that the codec can read.
py::tuple describe_array(const py::object& array, const std::string& name) {
  const ArrayView view(array, name, false);
  check_rows(view);
  return py::make_tuple(py::tuple(py::cast(shape_of(view, false))),
                        std::string(kvcache::dtype_name(view.dtype())));
}

}  // namespace

void bind_codec(py::module_& m) {
  m.def("active_isa", [] {
    unwrap(codec::check_isa());
    return std::string(codec::active_isa());
  });
  m.def("encode_int8", &encode_int8, py::arg("x"), py::arg("codes"), py::arg("scales"),
        py::arg("threads"));
  m.def("decode_int8", &decode_int8, py::arg("codes"), py::arg("scales"), py::arg("out"),
        py::arg("threads"));
  m.def("describe_array", &describe_array, py::arg("array"), py::arg("name"));
  kvcache::bindings::bind_bfloat16_array(m);
}
