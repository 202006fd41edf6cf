#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>
#include <utility>
#include <vector>

#include "kvcache/cache.h"
#include "kvcache/remote_tier.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::Cache;
using kvcache::RemoteAddress;
using kvcache::RemoteTierOptions;
using kvcache::RemoteTierStats;
using kvcache::RemoteTlsOptions;
using kvcache::RemoteTopology;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::unwrap;

}  // namespace

// Before bind_cache(), which takes the options.
void bind_remote_tier_options(py::module_& m) {
  py::class_<RemoteTlsOptions>(m, "RemoteTlsOptions")
      .def(py::init([](const py::bytes& ca_file, const py::bytes& certificate, const py::bytes& key,
                       bool verify) {
             return RemoteTlsOptions{true, ca_file, certificate, key, verify};
           }),
           py::kw_only(), py::arg("ca_file"), py::arg("certificate"), py::arg("key"),
           py::arg("verify"));
  py::native_enum<RemoteTopology>(m, "RemoteTopology", "enum.IntEnum")
      .value("SERVER", RemoteTopology::kServer)
      .value("CLUSTER", RemoteTopology::kCluster)
      .value("SENTINELS", RemoteTopology::kSentinels)
      .finalize();
  using Addresses = std::vector<std::tuple<std::string, std::uint16_t, std::string>>;
  py::class_<RemoteTierOptions>(m, "RemoteTierOptions")
      .def(
          py::init([](const Addresses& addresses, RemoteTopology topology,
                      const std::string& service, const std::string& user,
                      const std::string& password, const std::string& sentinel_user,
                      const std::string& sentinel_password, std::uint32_t database,
                      const std::string& key_prefix, std::uint64_t ttl_ms,
                      std::uint64_t deadline_ms, std::uint64_t queue_bytes, std::uint64_t wait_ms,
                      std::uint32_t read_threads, bool at_open,
                      const std::optional<RemoteTlsOptions>& tls) {
            std::vector<RemoteAddress> all;
            for (const auto& [host, port, socket] : addresses) {
              all.push_back({host, port, socket});
            }
            return RemoteTierOptions{
                std::move(all), topology,      service,           user,
                password,       sentinel_user, sentinel_password, database,
                key_prefix,     ttl_ms,        deadline_ms,       queue_bytes,
                wait_ms,        read_threads,  at_open,           tls.value_or(RemoteTlsOptions())};
          }),
          py::kw_only(), py::arg("addresses"), py::arg("topology"), py::arg("service"),
          py::arg("user"), py::arg("password"), py::arg("sentinel_user"),
          py::arg("sentinel_password"), py::arg("database"), py::arg("key_prefix"),
          py::arg("ttl_ms"), py::arg("deadline_ms"), py::arg("queue_bytes"), py::arg("wait_ms"),
          py::arg("read_threads"), py::arg("at_open"), py::arg("tls"));
}

// After bind_disk_tier(), which binds what the tiers count alike.
void bind_remote_tier(py::module_& m) {
  py::class_<RemoteTierStats, kvcache::TierStats>(m, "RemoteTierStats")
      .def_readonly("is_suspended", &RemoteTierStats::is_suspended)
      .def_readonly("servers", &RemoteTierStats::servers)
      .def_readonly("connects", &RemoteTierStats::connects)
      .def_readonly("redirections", &RemoteTierStats::redirections)
      .def_readonly("lookups", &RemoteTierStats::lookups)
      .def_readonly("round_trips", &RemoteTierStats::round_trips)
      .def_readonly("present_records", &RemoteTierStats::present_records)
      .def_readonly("missing_records", &RemoteTierStats::missing_records)
      .def_readonly("failures", &RemoteTierStats::failures)
      .def_readonly("timeouts", &RemoteTierStats::timeouts)
      .def_readonly("refused_operations", &RemoteTierStats::refused_operations);
  m.def("flush_remote", [](Cache& cache, std::optional<std::uint64_t> wait_ms) {
    const ReleaseGil nogil;
    unwrap(cache.flush_remote(wait_ms));
  });
  m.def("remote_stats", [](const Cache& cache) {
    const ReleaseGil nogil;
    return unwrap(cache.remote_stats());
  });
}
