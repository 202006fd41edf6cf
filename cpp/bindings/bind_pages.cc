#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>

#include "arrays.h"
#include "kvcache/cache.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::Cache;
using kvcache::DType;
using kvcache::dtype_bytes;
using kvcache::PagedComponent;
using kvcache::PageMemory;
using kvcache::PageView;
using kvcache::Sequence;
using kvcache::bindings::memory_array;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::unwrap;
using Shape = std::vector<py::ssize_t>;

// Rows [leading..., heads, width] that are `strides` apart in the leading axes.
py::object rows_array(const PagedComponent& part, Shape shape, Shape strides, const std::byte* data,
                      const std::shared_ptr<const void>& owner) {
  const auto element = static_cast<py::ssize_t>(dtype_bytes(part.dtype));
  const auto width = static_cast<py::ssize_t>(part.width);
  shape.insert(shape.end(), {static_cast<py::ssize_t>(part.heads), width});
  strides.insert(strides.end(), {width * element, element});
  return memory_array(part.dtype, shape, strides, data, owner);
}

// Scales [leading..., heads], or None; of a size that is no number of ours, as bytes.
py::object scales_array(const PagedComponent& part, Shape shape, Shape strides,
                        const std::byte* data, const std::shared_ptr<const void>& owner) {
  if (data == nullptr) return py::none();
  const auto bytes = static_cast<py::ssize_t>(part.row_scale_bytes);
  shape.push_back(part.heads);
  strides.push_back(bytes);
  if (bytes == 4) return memory_array(DType::kF32, shape, strides, data, owner);
  if (bytes == 2) return memory_array(DType::kF16, shape, strides, data, owner);
  shape.push_back(bytes);
  strides.push_back(1);
  return memory_array(DType::kU8, shape, strides, data, owner);
}

py::ssize_t row_bytes(const PagedComponent& part) {
  return static_cast<py::ssize_t>(part.row_bytes());
}

py::ssize_t scale_bytes(const PagedComponent& part) {
  return static_cast<py::ssize_t>(part.scale_bytes());
}

py::tuple view_tuple(const PageView& view) {
  const PagedComponent& part = *view.component;
  const Shape shape = {static_cast<py::ssize_t>(view.positions)};
  return py::make_tuple(view.page, view.start,
                        rows_array(part, shape, {row_bytes(part)}, view.rows, view.pin),
                        scales_array(part, shape, {scale_bytes(part)}, view.scales, view.pin));
}

py::list page_views(const Sequence& sequence, std::int32_t layer, std::uint64_t start,
                    std::uint64_t stop) {
  const auto components = [&] {
    const ReleaseGil nogil;
    return unwrap(sequence.views(layer, start, stop));
  }();
  py::list result;
  for (const std::vector<PageView>& pages : components) {
    py::list views;
    for (const PageView& view : pages) views.append(view_tuple(view));
    result.append(std::move(views));
  }
  return result;
}

py::tuple page_memory(const Cache& cache, std::int32_t layer, const std::string& component) {
  const PageMemory memory = unwrap(cache.pages(layer, component));
  const PagedComponent& part = *memory.component;
  const Shape shape = {static_cast<py::ssize_t>(memory.pages),
                       static_cast<py::ssize_t>(memory.block_tokens)};
  const auto stride = static_cast<py::ssize_t>(memory.page_stride);
  return py::make_tuple(
      memory.group, rows_array(part, shape, {stride, row_bytes(part)}, memory.rows, memory.owner),
      scales_array(part, shape, {stride, scale_bytes(part)}, memory.scales, memory.owner));
}

std::vector<std::tuple<std::int32_t, std::uint32_t, std::uint32_t>> page_refs(const Cache& cache,
                                                                              std::size_t group) {
  std::vector<std::tuple<std::int32_t, std::uint32_t, std::uint32_t>> live;
  const ReleaseGil nogil;
  for (const auto& [page, refs, indexed] : unwrap(cache.page_refs(group))) {
    live.emplace_back(page, refs, indexed);
  }
  return live;
}

py::object block_table(const Sequence& sequence, std::size_t group) {
  auto pages = [&] {
    const ReleaseGil nogil;
    return std::make_shared<std::vector<std::int32_t>>(unwrap(sequence.block_table(group)));
  }();
  const std::int32_t* data = pages->data();
  const auto blocks = static_cast<py::ssize_t>(pages->size());
  return memory_array(DType::kI32, {blocks}, {sizeof(std::int32_t)}, data, std::move(pages));
}

}  // namespace

void bind_pages(py::module_& m) {
  m.def("page_views", &page_views, py::arg("sequence"), py::arg("layer"), py::arg("start"),
        py::arg("stop"));
  m.def("page_memory", &page_memory, py::arg("cache"), py::arg("layer"), py::arg("component"));
  m.def("page_refs", &page_refs, py::arg("cache"), py::arg("group"));
  m.def("block_table", &block_table, py::arg("sequence"), py::arg("group"));
}
