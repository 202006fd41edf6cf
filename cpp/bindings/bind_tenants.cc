#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kvcache/cache.h"
#include "kvcache/tenants.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::Cache;
using kvcache::TenantUsage;
using kvcache::bindings::own;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::unwrap;

// A share of the budget, unless there are bytes; none: no quota.
using Share = std::optional<std::pair<double, std::optional<std::uint64_t>>>;

}  // namespace

void bind_tenants(py::module_& m) {
  py::class_<TenantUsage>(m, "TenantUsage")
      .def_readonly("name", &TenantUsage::name)
      .def_readonly("bytes", &TenantUsage::bytes)
      .def_readonly("blocks", &TenantUsage::blocks)
      .def_readonly("snapshots", &TenantUsage::snapshots)
      .def_readonly("quota_bytes", &TenantUsage::quota_bytes)
      .def_readonly("evicted_blocks", &TenantUsage::evicted_blocks)
      .def_readonly("evicted_snapshots", &TenantUsage::evicted_snapshots)
      .def_readonly("refused_blocks", &TenantUsage::refused_blocks);
  m.def(
      "set_quota",
      [](Cache& cache, const std::string& tenant, const Share& quota) {
        std::optional<kvcache::MemoryShare> share;
        if (quota) share = {quota->first, quota->second};
        unwrap(cache.set_quota(tenant, share));
      },
      py::arg("cache"), py::arg("tenant"), py::arg("quota"), py::call_guard<ReleaseGil>());
  m.def(
      "tenants", [](const Cache& cache) { return own(cache).tenants(); }, py::arg("cache"),
      py::call_guard<ReleaseGil>());
}
