#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kvcache/cache.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::Cache;
using kvcache::CacheEvent;
using kvcache::EventKind;
using kvcache::MediaSpan;
using kvcache::PrefixSpace;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::unwrap;

// A field of the space of what is stored.
py::bytes field(const CacheEvent& event, std::string PrefixSpace::* name) {
  return event.space == nullptr ? py::bytes() : py::bytes((*event.space).*name);
}

py::tuple media_tuple(const MediaSpan& span) {
  return py::make_tuple(span.start, span.length, py::bytes(span.digest));
}

}  // namespace

void bind_events(py::module_& m) {
  py::native_enum<EventKind>(m, "EventKind", "enum.IntEnum")
      .value("STORED", EventKind::kStored)
      .value("REMOVED", EventKind::kRemoved)
      .value("CLEARED", EventKind::kCleared)
      .finalize();
  py::class_<CacheEvent>(m, "CacheEvent")
      .def_readonly("kind", &CacheEvent::kind)
      .def_readonly("group", &CacheEvent::group)
      .def_readonly("hashes", &CacheEvent::hashes)
      .def_readonly("parent", &CacheEvent::parent)
      .def_readonly("start", &CacheEvent::start)
      .def_readonly("block_tokens", &CacheEvent::block_tokens)
      .def_readonly("tokens", &CacheEvent::tokens)
      .def_property_readonly("name",
                             [](const CacheEvent& e) { return field(e, &PrefixSpace::name); })
      .def_property_readonly("adapter",
                             [](const CacheEvent& e) { return field(e, &PrefixSpace::adapter); })
      .def_property_readonly("salt",
                             [](const CacheEvent& e) { return field(e, &PrefixSpace::salt); })
      .def_property_readonly("media", [](const CacheEvent& e) {
        py::list media;
        for (const MediaSpan& span : e.media) media.append(media_tuple(span));
        return media;
      });
  m.def(
      "take_events",
      [](Cache& cache) {
        const ReleaseGil nogil;
        return unwrap(cache.take_events());
      },
      py::arg("cache"));
  m.def(
      "events_snapshot",
      [](Cache& cache) {
        const ReleaseGil nogil;
        return unwrap(cache.events_snapshot());
      },
      py::arg("cache"));
  m.def("lose_events", [](Cache& cache) { unwrap(cache.lose_events()); }, py::arg("cache"));
}
