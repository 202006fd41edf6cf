#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kvcache/prompt_cache.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

void bind_prompt_cache(py::module_& m) {
  using kvcache::PromptCacheReport;
  using kvcache::PromptPrefix;
  using kvcache::ShardReport;
  py::class_<ShardReport>(m, "ShardReport")
      .def_readonly("file", &ShardReport::file)
      .def_readonly("bytes", &ShardReport::bytes);
  py::class_<PromptCacheReport>(m, "PromptCacheReport")
      .def_readonly("version", &PromptCacheReport::version)
      .def_property_readonly("generation",
                             [](const PromptCacheReport& r) { return py::bytes(r.generation); })
      .def_readonly("fingerprint", &PromptCacheReport::fingerprint)
      .def_readonly("space", &PromptCacheReport::space)
      .def_readonly("tokens", &PromptCacheReport::tokens)
      .def_readonly("snapshots", &PromptCacheReport::snapshots)
      .def_readonly("shards", &PromptCacheReport::shards)
      .def_property_readonly("problems", [](const PromptCacheReport& r) {
        return std::vector<py::bytes>(r.problems.begin(), r.problems.end());
      });
  m.def("check_prompt_cache", [](const py::bytes& path, bool deep) {
    const std::string where = path;
    const kvcache::bindings::ReleaseGil nogil;
    return kvcache::bindings::unwrap(kvcache::check_prompt_cache(where, deep));
  });
  py::class_<PromptPrefix>(m, "PromptPrefix")
      .def_readonly("fingerprint", &PromptPrefix::fingerprint)
      .def_readonly("space", &PromptPrefix::space)
      .def_readonly("snapshots", &PromptPrefix::snapshots)
      .def_property_readonly("tokens", [](const PromptPrefix& prefix) {
        return py::array_t<std::int32_t>(static_cast<py::ssize_t>(prefix.tokens.size()),
                                         prefix.tokens.data());
      });
  m.def("read_prompt_prefix", [](const py::bytes& path) {
    const std::string where = path;
    const kvcache::bindings::ReleaseGil nogil;
    return kvcache::bindings::unwrap(kvcache::read_prompt_prefix(where));
  });
}
