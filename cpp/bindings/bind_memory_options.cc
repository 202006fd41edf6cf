#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>

#include "kvcache/memory_options.h"

namespace py = pybind11;

void bind_memory_options(py::module_& m) {
  using kvcache::HugePages;
  using kvcache::MemoryOptions;
  py::native_enum<HugePages>(m, "HugePages", "enum.IntEnum")
      .value("OFF", HugePages::kOff)
      .value("ADVISE", HugePages::kAdvise)
      .value("SYSTEM", HugePages::kSystem)
      .finalize();
  py::class_<MemoryOptions>(m, "MemoryOptions")
      .def(py::init([](HugePages huge_pages, std::int32_t numa_node, bool lock,
                       std::uint32_t prefault_threads) {
             return MemoryOptions{huge_pages, numa_node, lock, prefault_threads};
           }),
           py::kw_only(), py::arg("huge_pages"), py::arg("numa_node"), py::arg("lock"),
           py::arg("prefault_threads"));
}
