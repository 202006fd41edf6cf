#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "arrays.h"
#include "kvcache/page_pool.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::PagePool;
using kvcache::StatePlan;
using kvcache::Status;
using kvcache::bindings::own_getter;
using kvcache::bindings::owner_capsule;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::unwrap;

using Ids = py::array_t<std::int32_t, py::array::c_style>;

std::span<const std::int32_t> id_span(const Ids& ids) {
  return {ids.data(), static_cast<std::size_t>(ids.size())};
}

// Of any integer: what does not fit is no id, as any other that is not live.
std::int32_t as_id(const py::int_& value) {
  int overflow = 0;
  const long id = PyLong_AsLongAndOverflow(value.ptr(), &overflow);
  return overflow != 0 || id < 0 || id > INT32_MAX ? -1 : static_cast<std::int32_t>(id);
}

Ids allocate_many(PagePool& pool, std::uint64_t count) {
  unwrap(pool.allocate_many({}));  // in a child of fork() the reason is not that there are 0
  // An array of that many must not be made before it is known that they are there.
  if (count > pool.blocks()) {
    unwrap(Status::out_of_capacity("allocate_many: asked ", count, " blocks, the pool has ",
                                   pool.blocks()));
  }
  Ids ids(static_cast<py::ssize_t>(count));
  unwrap(pool.allocate_many({ids.mutable_data(), static_cast<std::size_t>(count)}));
  return ids;
}

// The array's base holds a reference to the block, so that it is not handed out anew meanwhile.
py::array view(PagePool& pool, const py::int_& value) {
  std::shared_ptr<std::byte> pin = unwrap(pool.pin(as_id(value)));
  auto* data = reinterpret_cast<std::uint8_t*>(pin.get());
  const auto bytes = static_cast<py::ssize_t>(pool.block_bytes());
  return py::array_t<std::uint8_t>({bytes}, {1}, data, owner_capsule(std::move(pin)));
}

}  // namespace

void bind_page_pool(py::module_& m) {
  py::class_<PagePool, py::smart_holder>(m, "PagePool")
      .def(py::init([](std::uint64_t blocks, std::uint64_t block_bytes, bool backing,
                       const kvcache::MemoryOptions& memory) {
             const ReleaseGil nogil;  // creation may touch all of the memory
             return unwrap(PagePool::create({.blocks = blocks,
                                             .block_bytes = block_bytes,
                                             .backing = backing,
                                             .memory = memory}));
           }),
           py::kw_only(), py::arg("blocks"), py::arg("block_bytes"), py::arg("backing"),
           py::arg("memory"))
      .def_static(
          "for_group",
          [](const StatePlan& plan, std::uint64_t group, bool backing,
             const kvcache::MemoryOptions& memory) {
            const ReleaseGil nogil;
            return unwrap(PagePool::for_group(plan, group, backing, memory));
          },
          py::arg("plan"), py::arg("group"), py::kw_only(), py::arg("backing"), py::arg("memory"))
      .def("allocate", [](PagePool& pool) { return unwrap(pool.allocate()); })
      .def("allocate_many", &allocate_many, py::pos_only())
      .def(
          "retain", [](PagePool& pool, const Ids& ids) { unwrap(pool.retain(id_span(ids))); },
          py::pos_only())
      .def(
          "free", [](PagePool& pool, const Ids& ids) { unwrap(pool.free(id_span(ids))); },
          py::pos_only())
      .def(
          "retain_one",
          [](PagePool& pool, const py::int_& value) {
            const std::int32_t id = as_id(value);
            unwrap(pool.retain({&id, 1}));
          },
          py::pos_only())
      .def(
          "free_one",
          [](PagePool& pool, const py::int_& value) {
            const std::int32_t id = as_id(value);
            unwrap(pool.free({&id, 1}));
          },
          py::pos_only())
      .def(
          "refs",
          [](const PagePool& pool, const py::int_& id) { return unwrap(pool.refs(as_id(id))); },
          py::pos_only())
      .def("view", &view, py::pos_only())
      .def_property_readonly("blocks", own_getter(&PagePool::blocks))
      .def_property_readonly("live_blocks", own_getter(&PagePool::live_blocks))
      .def_property_readonly("free_blocks", own_getter(&PagePool::free_blocks))
      .def_property_readonly("block_bytes", own_getter(&PagePool::block_bytes))
      .def_property_readonly("metadata_bytes", own_getter(&PagePool::metadata_bytes));
}
