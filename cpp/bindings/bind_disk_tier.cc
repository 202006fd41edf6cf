#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "arrays.h"
#include "kvcache/cache.h"
#include "kvcache/disk_tier.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::Cache;
using kvcache::DiskTierOptions;
using kvcache::DiskTierStats;
using kvcache::Durability;
using kvcache::SegmentReport;
using kvcache::TierAccess;
using kvcache::TierCollection;
using kvcache::TierReport;
using kvcache::TierStats;
using kvcache::bindings::Media;
using kvcache::bindings::media_of;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::token_span;
using kvcache::bindings::Tokens;
using kvcache::bindings::unwrap;

// What the tiers count alike, and what a disk tier counts besides.
void bind_stats(py::module_& m) {
  py::class_<TierStats>(m, "TierStats")
      .def_readonly("queued_bytes", &TierStats::queued_bytes)
      .def_readonly("written_records", &TierStats::written_records)
      .def_readonly("written_bytes", &TierStats::written_bytes)
      .def_readonly("dropped_records", &TierStats::dropped_records)
      .def_readonly("skipped_snapshots", &TierStats::skipped_snapshots)
      .def_readonly("erased_records", &TierStats::erased_records)
      .def_readonly("fetches", &TierStats::fetches)
      .def_readonly("fetched_tokens", &TierStats::fetched_tokens)
      .def_readonly("read_records", &TierStats::read_records)
      .def_readonly("read_bytes", &TierStats::read_bytes)
      .def_readonly("damaged_records", &TierStats::damaged_records)
      .def_readonly("read_errors", &TierStats::read_errors)
      .def_readonly("write_errors", &TierStats::write_errors)
      .def_readonly("no_room", &TierStats::no_room)
      .def_property_readonly("last_error",
                             [](const TierStats& stats) { return py::bytes(stats.last_error); });
  py::class_<DiskTierStats, TierStats>(m, "DiskTierStats")
      .def_readonly("is_writer", &DiskTierStats::is_writer)
      .def_readonly("segments", &DiskTierStats::segments)
      .def_readonly("records", &DiskTierStats::records)
      .def_readonly("bytes", &DiskTierStats::bytes)
      .def_readonly("max_bytes", &DiskTierStats::max_bytes)
      .def_readonly("syncs", &DiskTierStats::syncs)
      .def_readonly("evicted_segments", &DiskTierStats::evicted_segments)
      .def_readonly("kept_records", &DiskTierStats::kept_records)
      .def_readonly("damaged_segments", &DiskTierStats::damaged_segments)
      .def_readonly("torn_segments", &DiskTierStats::torn_segments);
}

void bind_reports(py::module_& m) {
  py::class_<SegmentReport>(m, "SegmentReport")
      .def_readonly("file", &SegmentReport::file)
      .def_readonly("bytes", &SegmentReport::bytes)
      .def_readonly("sealed", &SegmentReport::sealed)
      .def_readonly("runs", &SegmentReport::runs)
      .def_readonly("boundaries", &SegmentReport::boundaries)
      .def_readonly("erased", &SegmentReport::erased)
      .def_readonly("tokens", &SegmentReport::tokens)
      .def_readonly("payload_bytes", &SegmentReport::payload_bytes)
      .def_readonly("unfinished", &SegmentReport::unfinished);
  // Paths are bytes: a directory's name need not be text.
  const auto as_bytes = [](const std::vector<std::string>& texts) {
    return std::vector<py::bytes>(texts.begin(), texts.end());
  };
  py::class_<TierReport>(m, "TierReport")
      .def_readonly("version", &TierReport::version)
      .def_readonly("id", &TierReport::id)
      .def_readonly("has_writer", &TierReport::has_writer)
      .def_readonly("segments", &TierReport::segments)
      .def_property_readonly("problems",
                             [=](const TierReport& report) { return as_bytes(report.problems); })
      .def_property_readonly("others",
                             [=](const TierReport& report) { return as_bytes(report.others); });
  py::class_<TierCollection>(m, "TierCollection")
      .def_readonly("removed_segments", &TierCollection::removed_segments)
      .def_readonly("removed_bytes", &TierCollection::removed_bytes)
      .def_readonly("kept_bytes", &TierCollection::kept_bytes);
  m.def("check_disk_tier", [](const py::bytes& path, bool deep) {
    const std::string where = path;
    const ReleaseGil nogil;
    return unwrap(kvcache::check_disk_tier(where, deep));
  });
  m.def("collect_disk_tier", [](const py::bytes& path, std::optional<std::uint64_t> max_bytes) {
    const std::string where = path;
    const ReleaseGil nogil;
    return unwrap(kvcache::collect_disk_tier(where, max_bytes));
  });
}

void bind_calls(py::module_& m) {
  m.def("prefetch", [](Cache& cache, const Tokens& tokens, const std::string& name,
                       const std::string& adapter, const std::string& salt, const Media& media,
                       std::optional<std::uint64_t> ttl_ms, const std::string& tenant) {
    const auto span = token_span(tokens);
    const ReleaseGil nogil;
    return unwrap(cache.prefetch(span, {name, adapter, salt, media_of(media)}, ttl_ms, tenant));
  });
  m.def("flush_disk", [](Cache& cache, std::optional<std::uint64_t> wait_ms) {
    const ReleaseGil nogil;
    unwrap(cache.flush_disk(wait_ms));
  });
  m.def("disk_stats", [](const Cache& cache) {
    const ReleaseGil nogil;
    return unwrap(cache.disk_stats());
  });
}

}  // namespace

// Before bind_cache(), which takes the options.
void bind_disk_tier_options(py::module_& m) {
  py::native_enum<Durability>(m, "Durability", "enum.IntEnum")
      .value("NONE", Durability::kNone)
      .value("GROUP", Durability::kGroup)
      .value("RECORD", Durability::kRecord)
      .finalize();
  py::native_enum<TierAccess>(m, "TierAccess", "enum.IntEnum")
      .value("WRITE", TierAccess::kWrite)
      .value("READ", TierAccess::kRead)
      .value("WRITE_OR_READ", TierAccess::kWriteOrRead)
      .finalize();
  py::class_<DiskTierOptions>(m, "DiskTierOptions")
      .def(py::init([](const py::bytes& path, std::uint64_t max_bytes, TierAccess access,
                       Durability durability, std::uint64_t group_bytes, std::uint64_t group_ms,
                       std::uint64_t queue_bytes, std::uint64_t wait_ms, std::uint32_t read_threads,
                       bool at_open) {
             return DiskTierOptions{path,     max_bytes,   access,  durability,   group_bytes,
                                    group_ms, queue_bytes, wait_ms, read_threads, at_open};
           }),
           py::kw_only(), py::arg("path"), py::arg("max_bytes"), py::arg("access"),
           py::arg("durability"), py::arg("group_bytes"), py::arg("group_ms"),
           py::arg("queue_bytes"), py::arg("wait_ms"), py::arg("read_threads"), py::arg("at_open"));
}

void bind_disk_tier(py::module_& m) {
  bind_stats(m);
  bind_reports(m);
  bind_calls(m);
}
