#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kvcache/explanation.h"

namespace py = pybind11;

void bind_explanation(py::module_& m) {
  using kvcache::Explanation, kvcache::HitLimit, kvcache::MissReason;
  py::native_enum<HitLimit>(m, "HitLimit", "enum.IntEnum")
      .value("NONE", HitLimit::kNone)
      .value("TOKENS", HitLimit::kTokens)
      .value("SNAPSHOT", HitLimit::kSnapshot)
      .value("WINDOW", HitLimit::kWindow)
      .finalize();
  py::native_enum<MissReason>(m, "MissReason", "enum.IntEnum")
      .value("NONE", MissReason::kNone)
      .value("NEVER_STORED", MissReason::kNeverStored)
      .value("EVICTED", MissReason::kEvicted)
      .value("ERASED", MissReason::kErased)
      .value("WEIGHTS", MissReason::kWeights)
      .value("THINNED", MissReason::kThinned)
      .value("EXPIRED", MissReason::kExpired)
      .value("QUOTA", MissReason::kQuota)
      .finalize();
  py::class_<Explanation>(m, "Explanation")
      .def_readonly("tokens", &Explanation::tokens)
      .def_readonly("matched_tokens", &Explanation::matched_tokens)
      .def_readonly("cached_tokens", &Explanation::cached_tokens)
      .def_readonly("nearest_snapshot", &Explanation::nearest_snapshot)
      .def_readonly("limit", &Explanation::limit)
      .def_readonly("snapshot_format", &Explanation::snapshot_format)
      .def_readonly("position", &Explanation::position)
      .def_readonly("group", &Explanation::group)
      .def_readonly("reason", &Explanation::reason)
      .def_readonly("once_tokens", &Explanation::once_tokens)
      .def_readonly("lost_snapshot", &Explanation::lost_snapshot)
      .def_readonly("quota", &Explanation::quota);
}
