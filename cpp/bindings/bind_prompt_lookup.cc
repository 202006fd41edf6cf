#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "arrays.h"
#include "kvcache/prompt_lookup.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::Occurrence;
using kvcache::PromptLookupCache;
using kvcache::PromptLookupIndex;
using kvcache::PromptLookupScope;
using kvcache::Status;
using kvcache::bindings::own_getter;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::span_of;
using kvcache::bindings::token_span;
using kvcache::bindings::Tokens;
using kvcache::bindings::unwrap;

using Drafts = py::array_t<std::int32_t>;

// What `look` puts into room for `most` tokens, looking without the GIL.
template <typename Look>
Drafts drafts_of(std::uint64_t most, const Look& look) {
  std::vector<std::int32_t> drafts(most);
  std::uint64_t count = 0;
  {
    const ReleaseGil nogil;
    count = unwrap(look(std::span<std::int32_t>(drafts)));
  }
  return Drafts(static_cast<py::ssize_t>(count), drafts.data());
}

void observe(PromptLookupIndex& index, const Tokens& history) {
  const auto span = token_span(history);
  const ReleaseGil nogil;
  unwrap(index.observe(span));
}

Drafts find(const PromptLookupIndex& index, const Tokens& history, std::uint64_t max_drafts) {
  const auto span = token_span(history);
  return drafts_of(std::min<std::uint64_t>(max_drafts, span.size()),
                   [&](std::span<std::int32_t> drafts) { return index.find(span, drafts); });
}

using Indexes = std::vector<PromptLookupIndex*>;
using Counts = py::array_t<std::uint64_t, py::array::c_style>;

// Drafts that Python cannot be given, for want of memory, are not in flight.
template <typename Give>
auto given_or_abandoned(const Indexes& indexes, const Give& give) {
  try {
    return give();
  } catch (...) {
    for (PromptLookupIndex* index : indexes) static_cast<void>(index->abandon());
    throw;
  }
}

Drafts propose(PromptLookupIndex& index, const Tokens& history, std::uint64_t max_drafts,
               const PromptLookupScope* shared) {
  const auto span = token_span(history);
  std::vector<std::int32_t> drafts(std::min(max_drafts, index.options().max_drafts));
  std::uint64_t count = 0;
  {
    const ReleaseGil nogil;
    count = unwrap(index.propose(span, drafts, shared));
  }
  return given_or_abandoned({&index},
                            [&] { return Drafts(static_cast<py::ssize_t>(count), drafts.data()); });
}

py::tuple propose_batch(const Indexes& indexes, const std::vector<Tokens>& histories,
                        const Counts& max_drafts) {
  std::vector<std::span<const std::int32_t>> texts;
  for (const Tokens& history : histories) texts.push_back(token_span(history));
  const auto most = span_of(max_drafts, "max_drafts");
  std::vector<std::int32_t> drafts;
  std::vector<std::uint64_t> counts(indexes.size());
  {
    const ReleaseGil nogil;
    unwrap(PromptLookupIndex::propose_batch(indexes, texts, most, drafts, counts));
  }
  return given_or_abandoned(indexes, [&] {
    return py::make_tuple(Drafts(static_cast<py::ssize_t>(drafts.size()), drafts.data()),
                          Counts(static_cast<py::ssize_t>(counts.size()), counts.data()));
  });
}

void settle_batch(const Indexes& indexes, const Counts& accepted) {
  const auto counts = span_of(accepted, "accepted");
  const ReleaseGil nogil;
  unwrap(PromptLookupIndex::settle_batch(indexes, counts));
}

void insert(PromptLookupScope& scope, const Tokens& tokens) {
  const auto span = token_span(tokens);
  const ReleaseGil nogil;
  unwrap(scope.insert(span));
}

Drafts find_shared(const PromptLookupScope& scope, const Tokens& history,
                   std::uint64_t max_drafts) {
  const auto span = token_span(history);
  return drafts_of(max_drafts,
                   [&](std::span<std::int32_t> drafts) { return scope.find(span, drafts); });
}

void bind_index(py::module_& m) {
  using release_gil = py::call_guard<ReleaseGil>;
  const auto property = [](auto getter) {
    return py::cpp_function(own_getter(getter), release_gil());
  };
  py::class_<PromptLookupIndex, py::smart_holder>(m, "PromptLookupIndex")
      .def(py::init([](std::uint64_t min_match, std::uint64_t max_match, std::uint64_t max_drafts,
                       std::uint64_t max_pause, std::uint64_t history_tokens, bool reserve,
                       Occurrence occurrence) {
             return unwrap(PromptLookupIndex::create({min_match, max_match, max_drafts, max_pause,
                                                      history_tokens, reserve, occurrence}));
           }),
           py::kw_only(), py::arg("min_match"), py::arg("max_match"), py::arg("max_drafts"),
           py::arg("max_pause"), py::arg("history_tokens"), py::arg("reserve"),
           py::arg("occurrence"))
      .def("observe", &observe, py::arg("history"))
      .def(
          "truncate", [](PromptLookupIndex& i, std::uint64_t n) { unwrap(i.truncate(n)); },
          py::arg("length"), release_gil())
      .def("find", &find, py::arg("history"), py::arg("max_drafts"))
      .def("propose", &propose, py::arg("history"), py::arg("max_drafts"), py::arg("shared"))
      .def(
          "settle", [](PromptLookupIndex& i, std::uint64_t n) { unwrap(i.settle(n)); },
          py::arg("accepted"), release_gil())
      .def(
          "abandon", [](PromptLookupIndex& i) { unwrap(i.abandon()); }, release_gil())
      .def_property_readonly("observed", property(&PromptLookupIndex::observed))
      .def_property_readonly("window", property(&PromptLookupIndex::window))
      .def_property_readonly("pause", property(&PromptLookupIndex::pause))
      .def_property_readonly("in_flight", property(&PromptLookupIndex::in_flight))
      .def_property_readonly("entries", property(&PromptLookupIndex::entries))
      .def_property_readonly("bytes", property(&PromptLookupIndex::bytes));
}

}  // namespace

void bind_prompt_lookup(py::module_& m) {
  using release_gil = py::call_guard<ReleaseGil>;
  py::native_enum<Occurrence>(m, "Occurrence", "enum.IntEnum")
      .value("LATEST", Occurrence::kLatest)
      .value("EARLIEST", Occurrence::kEarliest)
      .value("REPEATING", Occurrence::kRepeating)
      .finalize();
  py::class_<PromptLookupScope>(m, "PromptLookupScope")
      .def("insert", &insert, py::arg("tokens"))
      .def("find", &find_shared, py::arg("history"), py::arg("max_drafts"))
      .def_property_readonly(
          "tokens", py::cpp_function(own_getter(&PromptLookupScope::tokens), release_gil()));
  py::class_<PromptLookupCache, py::smart_holder>(m, "PromptLookupCache")
      .def(py::init([](std::uint64_t memory_bytes, std::uint64_t scope_bytes, std::uint64_t match) {
             return unwrap(PromptLookupCache::create({memory_bytes, scope_bytes, match}));
           }),
           py::kw_only(), py::arg("memory_bytes"), py::arg("scope_bytes"), py::arg("match"))
      .def(
          "scope",
          [](const PromptLookupCache& cache, const py::bytes& model, const py::bytes& tokenizer,
             const py::bytes& adapter,
             const py::bytes& tenant) { return cache.scope({model, tokenizer, adapter, tenant}); },
          py::arg("model"), py::arg("tokenizer"), py::arg("adapter"), py::arg("tenant"))
      .def(
          "drop",
          [](PromptLookupCache& cache, const py::bytes& model, const py::bytes& tokenizer,
             const py::bytes& adapter, const py::bytes& tenant) {
            const kvcache::PromptLookupScopeKey key{model, tokenizer, adapter, tenant};
            const ReleaseGil nogil;
            return unwrap(cache.drop(key));
          },
          py::arg("model"), py::arg("tokenizer"), py::arg("adapter"), py::arg("tenant"))
      .def_property_readonly(
          "scopes", py::cpp_function(own_getter(&PromptLookupCache::scopes), release_gil()))
      .def_property_readonly(
          "bytes", py::cpp_function(own_getter(&PromptLookupCache::bytes), release_gil()));
  bind_index(m);
  m.def("propose_batch", &propose_batch, py::arg("indexes"), py::arg("histories"),
        py::arg("max_drafts"));
  m.def("settle_batch", &settle_batch, py::arg("indexes"), py::arg("accepted"));
}
