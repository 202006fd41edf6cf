#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "arrays.h"
#include "kvcache/cache.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::Cache;
using kvcache::CacheOptions;
using kvcache::CacheStats;
using kvcache::EraseFilter;
using kvcache::PrefixSpace;
using kvcache::StatePlan;
using kvcache::bindings::Media;
using kvcache::bindings::media_of;
using kvcache::bindings::own;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::token_span;
using kvcache::bindings::Tokens;
using kvcache::bindings::unwrap;

void bind_stats(py::module_& m) {
  py::class_<CacheStats>(m, "CacheStats")
      .def_readonly("budget_bytes", &CacheStats::budget_bytes)
      .def_readonly("reserved_bytes", &CacheStats::reserved_bytes)
      .def_readonly("committed_bytes", &CacheStats::committed_bytes)
      .def_readonly("peak_bytes", &CacheStats::peak_bytes)
      .def_readonly("used_bytes", &CacheStats::used_bytes)
      .def_readonly("idle_bytes", &CacheStats::idle_bytes)
      .def_readonly("max_bytes", &CacheStats::max_bytes)
      .def_readonly("epoch", &CacheStats::epoch)
      .def_readonly("open_sequences", &CacheStats::open_sequences)
      .def_readonly("pages", &CacheStats::pages)
      .def_readonly("slots", &CacheStats::slots)
      .def_readonly("snapshots", &CacheStats::snapshots)
      .def_readonly("lossy_snapshots", &CacheStats::lossy_snapshots)
      .def_readonly("ring_snapshots", &CacheStats::ring_snapshots)
      .def_readonly("indexed_blocks", &CacheStats::indexed_blocks)
      .def_readonly("indexed_tokens", &CacheStats::indexed_tokens)
      .def_readonly("indexed_snapshots", &CacheStats::indexed_snapshots)
      .def_readonly("evicted_blocks", &CacheStats::evicted_blocks)
      .def_readonly("evicted_snapshots", &CacheStats::evicted_snapshots)
      .def_readonly("expired_blocks", &CacheStats::expired_blocks)
      .def_readonly("pins", &CacheStats::pins)
      .def_readonly("pinned_pages", &CacheStats::pinned_pages)
      .def_readonly("pinned_bytes", &CacheStats::pinned_bytes)
      .def_readonly("lapsed_leases", &CacheStats::lapsed_leases)
      .def_readonly("opens", &CacheStats::opens)
      .def_readonly("hits", &CacheStats::hits)
      .def_readonly("asked_tokens", &CacheStats::asked_tokens)
      .def_readonly("cached_tokens", &CacheStats::cached_tokens)
      .def_readonly("hit_blocks", &CacheStats::hit_blocks)
      .def_readonly("lru_hit_blocks", &CacheStats::lru_hit_blocks)
      .def_readonly("thinned_snapshots", &CacheStats::thinned_snapshots)
      .def_readonly("erased_blocks", &CacheStats::erased_blocks)
      .def_readonly("erased_snapshots", &CacheStats::erased_snapshots)
      .def_readonly("dropped_blocks", &CacheStats::dropped_blocks)
      .def_readonly("dropped_snapshots", &CacheStats::dropped_snapshots)
      .def_readonly("limited_by_none", &CacheStats::limited_by_none)
      .def_readonly("limited_by_tokens", &CacheStats::limited_by_tokens)
      .def_readonly("limited_by_snapshot", &CacheStats::limited_by_snapshot)
      .def_readonly("limited_by_window", &CacheStats::limited_by_window)
      .def_readonly("unknown_tokens", &CacheStats::unknown_tokens)
      .def_readonly("lost_snapshot_tokens", &CacheStats::lost_snapshot_tokens)
      .def_readonly("lost_window_tokens", &CacheStats::lost_window_tokens)
      .def_readonly("waiting_events", &CacheStats::waiting_events)
      .def_readonly("event_losses", &CacheStats::event_losses)
      .def_readonly("group_pages", &CacheStats::group_pages)
      .def_readonly("window_pages_evicted", &CacheStats::window_pages_evicted);
}

// A share of the budget, unless there are bytes.
using Share = std::pair<double, std::optional<std::uint64_t>>;

std::unique_ptr<Cache> create_cache(const StatePlan& plan, const std::string& policy, bool backing,
                                    std::uint64_t capacity_blocks, std::uint64_t max_memory_bytes,
                                    const kvcache::MemoryOptions& memory, double flops_per_token,
                                    double flops_per_token_per_position,
                                    std::uint64_t snapshot_interval,
                                    std::uint32_t snapshots_per_path, const std::string& weights,
                                    std::uint64_t event_capacity, const Share& pin_limit,
                                    std::uint64_t ttl_ms,
                                    const std::optional<kvcache::DiskTierOptions>& disk,
                                    const std::optional<kvcache::RemoteTierOptions>& remote) {
  const ReleaseGil nogil;  // creation may touch all of the memory
  return unwrap(Cache::create(plan, {policy,
                                     backing,
                                     capacity_blocks,
                                     max_memory_bytes,
                                     memory,
                                     {flops_per_token, flops_per_token_per_position},
                                     {snapshot_interval, snapshots_per_path},
                                     weights,
                                     event_capacity,
                                     {pin_limit.first, pin_limit.second},
                                     ttl_ms,
                                     disk.value_or(kvcache::DiskTierOptions()),
                                     remote.value_or(kvcache::RemoteTierOptions())}));
}

kvcache::Sequence open_sequence(Cache& cache, const Tokens& tokens, const std::string& name,
                                const std::string& adapter, const std::string& salt,
                                const Media& media, const std::string& tenant,
                                const std::string& kind, std::optional<double> expected_reuse,
                                std::optional<std::uint64_t> now_ms,
                                std::optional<std::uint64_t> ttl_ms) {
  const auto span = token_span(tokens);
  const kvcache::OpenOptions options{{tenant, kind, expected_reuse}, now_ms, ttl_ms};
  const ReleaseGil nogil;
  return unwrap(cache.open(span, {name, adapter, salt, media_of(media)}, options));
}

using CacheClass = py::class_<Cache, py::smart_holder>;

void bind_dropping(CacheClass& cache) {
  cache
      .def(
          "erase",
          [](Cache& cache, const std::optional<std::string>& name,
             const std::optional<std::string>& adapter, const std::optional<std::string>& salt,
             const Media& media, const Tokens& tokens, const std::optional<std::string>& tenant) {
            const auto span = token_span(tokens);
            const ReleaseGil nogil;
            return unwrap(cache.erase(
                {name, adapter, salt, media_of(media), {span.begin(), span.end()}, tenant}));
          },
          py::arg("name"), py::arg("adapter"), py::arg("salt"), py::arg("media"), py::arg("tokens"),
          py::arg("tenant"))
      .def(
          "clear", [](Cache& c) { own(c).clear(); }, py::call_guard<ReleaseGil>())
      .def(
          "drop_expired", [](Cache& c) { return own(c).drop_expired(); },
          py::call_guard<ReleaseGil>())
      .def(
          "bump_epoch", [](Cache& c, const std::string& weights) { own(c).bump_epoch(weights); },
          py::arg("weights"), py::call_guard<ReleaseGil>());
}

}  // namespace

void bind_cache(py::module_& m) {
  bind_stats(m);
  m.def("policy_names", &kvcache::policy_names);
  CacheClass cache(m, "Cache");
  bind_dropping(cache);
  cache
      .def(py::init(&create_cache), py::arg("plan"), py::kw_only(), py::arg("policy"),
           py::arg("backing"), py::arg("capacity_blocks"), py::arg("max_memory_bytes"),
           py::arg("memory"), py::arg("flops_per_token") = 1.0,
           py::arg("flops_per_token_per_position") = 0.0, py::arg("snapshot_interval"),
           py::arg("snapshots_per_path"), py::arg("weights"), py::arg("event_capacity") = 0,
           py::arg("pin_limit"), py::arg("ttl_ms"), py::arg("disk") = py::none(),
           py::arg("remote") = py::none())
      .def("open", &open_sequence, py::arg("tokens"), py::arg("name"), py::arg("adapter"),
           py::arg("salt"), py::arg("media"), py::kw_only(), py::arg("tenant") = "",
           py::arg("kind") = "", py::arg("expected_reuse") = py::none(),
           py::arg("now_ms") = py::none(), py::arg("ttl_ms") = py::none())
      .def("explain",
           [](const Cache& cache, const Tokens& tokens, const std::string& name,
              const std::string& adapter, const std::string& salt, const Media& media) {
             const auto span = token_span(tokens);
             const ReleaseGil nogil;
             return unwrap(own(cache).explain(span, {name, adapter, salt, media_of(media)}));
           })
      .def(
          "save",
          [](Cache& cache, const py::bytes& path, const Tokens& tokens, const std::string& name,
             const std::string& adapter, const std::string& salt, const Media& media, bool replace,
             bool durable) {
            const auto span = token_span(tokens);
            const std::string where = path;
            const ReleaseGil nogil;
            return unwrap(cache.save(where, span, {name, adapter, salt, media_of(media)},
                                     {replace, durable}));
          },
          py::arg("path"), py::arg("tokens"), py::arg("name"), py::arg("adapter"), py::arg("salt"),
          py::arg("media"), py::kw_only(), py::arg("replace"), py::arg("durable"))
      .def("load",
           [](Cache& cache, const py::bytes& path, const std::string& name,
              const std::string& adapter, const std::string& salt, const Media& media,
              std::optional<std::uint64_t> ttl_ms, const std::string& tenant, bool convert,
              std::uint32_t read_threads) {
             const std::string where = path;
             const ReleaseGil nogil;
             return unwrap(cache.load(where, {name, adapter, salt, media_of(media)},
                                      {ttl_ms, tenant, convert, read_threads}));
           })
      .def(
          "stats", [](const Cache& c) { return own(c).stats(); }, py::call_guard<ReleaseGil>())
      .def(
          "resize",
          [](Cache& cache, std::uint64_t memory_bytes) {
            const ReleaseGil nogil;
            unwrap(cache.resize(memory_bytes));
          },
          py::pos_only())
      .def_property_readonly("policy", &Cache::policy);
}
