#include <pybind11/native_enum.h>
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
using kvcache::Explanation;
using kvcache::HitLimit;
using kvcache::PrefixSpace;
using kvcache::Sequence;
using kvcache::StatePlan;
using kvcache::StateView;
using kvcache::bindings::Components;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::tensor_array;
using kvcache::bindings::token_span;
using kvcache::bindings::Tokens;
using kvcache::bindings::unwrap;
using kvcache::codec::MutableRowsView;
using kvcache::codec::RowsView;

void write(Sequence& sequence, std::int32_t layer, std::uint64_t start,
           const std::vector<py::object>& components) {
  const Components<RowsView> rows(components);
  const ReleaseGil nogil;
  unwrap(sequence.write(layer, start, rows.views()));
}

void read(const Sequence& sequence, std::int32_t layer, std::uint64_t start,
          const std::vector<py::object>& components) {
  const Components<MutableRowsView> rows(components);
  const ReleaseGil nogil;
  unwrap(sequence.read(layer, start, rows.views()));
}

py::array state_array(const Sequence& sequence, std::int32_t layer, const std::string& name) {
  StateView view = [&] {
    const ReleaseGil nogil;
    return unwrap(sequence.state(layer, name));
  }();
  return tensor_array(std::move(view));
}

py::array_t<std::int32_t> token_array(const Sequence& sequence) {
  const std::vector<std::int32_t> tokens = sequence.tokens();
  return py::array_t<std::int32_t>(static_cast<py::ssize_t>(tokens.size()), tokens.data());
}

void bind_values(py::module_& m) {
  py::native_enum<HitLimit>(m, "HitLimit", "enum.IntEnum")
      .value("NONE", HitLimit::kNone)
      .value("TOKENS", HitLimit::kTokens)
      .value("SNAPSHOT", HitLimit::kSnapshot)
      .value("WINDOW", HitLimit::kWindow)
      .finalize();
  py::class_<Explanation>(m, "Explanation")
      .def_readonly("tokens", &Explanation::tokens)
      .def_readonly("matched_tokens", &Explanation::matched_tokens)
      .def_readonly("cached_tokens", &Explanation::cached_tokens)
      .def_readonly("nearest_snapshot", &Explanation::nearest_snapshot)
      .def_readonly("limit", &Explanation::limit);
  py::class_<CacheStats>(m, "CacheStats")
      .def_readonly("budget_bytes", &CacheStats::budget_bytes)
      .def_readonly("committed_bytes", &CacheStats::committed_bytes)
      .def_readonly("peak_bytes", &CacheStats::peak_bytes)
      .def_readonly("used_bytes", &CacheStats::used_bytes)
      .def_readonly("open_sequences", &CacheStats::open_sequences)
      .def_readonly("pages", &CacheStats::pages)
      .def_readonly("slots", &CacheStats::slots)
      .def_readonly("snapshots", &CacheStats::snapshots)
      .def_readonly("indexed_blocks", &CacheStats::indexed_blocks)
      .def_readonly("indexed_tokens", &CacheStats::indexed_tokens)
      .def_readonly("indexed_snapshots", &CacheStats::indexed_snapshots)
      .def_readonly("evicted_blocks", &CacheStats::evicted_blocks)
      .def_readonly("evicted_snapshots", &CacheStats::evicted_snapshots)
      .def_readonly("opens", &CacheStats::opens)
      .def_readonly("hits", &CacheStats::hits)
      .def_readonly("asked_tokens", &CacheStats::asked_tokens)
      .def_readonly("cached_tokens", &CacheStats::cached_tokens);
}

void bind_sequence(py::module_& m) {
  using release_gil = py::call_guard<ReleaseGil>;
  py::class_<Sequence, py::smart_holder>(m, "Sequence")
      .def_property_readonly("cached_tokens", &Sequence::cached_tokens)
      .def_property_readonly("matched_tokens", &Sequence::matched_tokens)
      .def_property_readonly("length", py::cpp_function(&Sequence::length, release_gil()))
      .def_property_readonly("is_open", py::cpp_function(&Sequence::is_open, release_gil()))
      .def(
          "written", [](const Sequence& s, std::int32_t layer) { return unwrap(s.written(layer)); },
          release_gil())
      .def("tokens", &token_array)
      .def("extend",
           [](Sequence& sequence, const Tokens& tokens) {
             const auto span = token_span(tokens);
             const ReleaseGil nogil;
             unwrap(sequence.extend(span));
           })
      .def("write", &write, py::arg("layer"), py::arg("start"), py::arg("components"))
      .def("read", &read, py::arg("layer"), py::arg("start"), py::arg("components"))
      .def("state", &state_array, py::arg("layer"), py::arg("name"))
      .def(
          "advance", [](Sequence& s, std::uint64_t n) { unwrap(s.advance(n)); }, release_gil())
      .def(
          "snapshot", [](Sequence& s) { return unwrap(s.snapshot()); }, release_gil())
      .def("prefill_stops", &Sequence::prefill_stops, release_gil())
      .def(
          "publish", [](Sequence& s) { unwrap(s.publish()); }, release_gil())
      .def(
          "fork", [](Sequence& s) { return unwrap(s.fork()); }, release_gil())
      .def(
          "truncate", [](Sequence& s, std::uint64_t n) { unwrap(s.truncate(n)); }, release_gil())
      .def("close", &Sequence::close, release_gil());
}

}  // namespace

void bind_cache(py::module_& m) {
  bind_values(m);
  bind_sequence(m);
  py::class_<Cache, py::smart_holder>(m, "Cache")
      .def(py::init([](const StatePlan& plan, const std::string& policy, bool backing,
                       std::uint64_t capacity_blocks) {
             return unwrap(Cache::create(plan, {policy, backing, capacity_blocks}));
           }),
           py::arg("plan"), py::kw_only(), py::arg("policy"), py::arg("backing"),
           py::arg("capacity_blocks"))
      .def("open",
           [](Cache& cache, const Tokens& tokens, const std::string& name,
              const std::string& adapter, const std::string& salt) {
             const auto span = token_span(tokens);
             const ReleaseGil nogil;
             return unwrap(cache.open(span, {name, adapter, salt}));
           })
      .def("explain",
           [](const Cache& cache, const Tokens& tokens, const std::string& name,
              const std::string& adapter, const std::string& salt) {
             const auto span = token_span(tokens);
             const ReleaseGil nogil;
             return cache.explain(span, {name, adapter, salt});
           })
      .def(
          "save",
          [](Cache& cache, const py::bytes& path, const Tokens& tokens, const std::string& name,
             const std::string& adapter, const std::string& salt, bool replace) {
            const auto span = token_span(tokens);
            const std::string where = path;
            const ReleaseGil nogil;
            return unwrap(cache.save(where, span, {name, adapter, salt}, {.replace = replace}));
          },
          py::arg("path"), py::arg("tokens"), py::arg("name"), py::arg("adapter"), py::arg("salt"),
          py::kw_only(), py::arg("replace"))
      .def("load",
           [](Cache& cache, const py::bytes& path, const std::string& name,
              const std::string& adapter, const std::string& salt) {
             const std::string where = path;
             const ReleaseGil nogil;
             return unwrap(cache.load(where, {name, adapter, salt}));
           })
      .def("stats", &Cache::stats, py::call_guard<ReleaseGil>())
      .def("clear", &Cache::clear, py::call_guard<ReleaseGil>())
      .def_property_readonly("policy", &Cache::policy);
}
