#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kvcache/runtime_estimate.h"
#include "unwrap.h"

namespace py = pybind11;
using kvcache::bindings::unwrap;

void bind_runtime_estimate(py::module_& m) {
  using namespace kvcache;
  py::native_enum<AxisKind>(m, "AxisKind", "enum.IntEnum")
      .value("BATCH", AxisKind::kBatch)
      .value("PREFIX_TOKENS", AxisKind::kPrefixTokens)
      .value("PREFIX_TOKENS_DIV", AxisKind::kPrefixTokensDiv)
      .value("PREFIX_TOKENS_REM", AxisKind::kPrefixTokensRem)
      .value("FIXED", AxisKind::kFixed)
      .value("SCALAR", AxisKind::kScalar)
      .finalize();
  py::native_enum<Presence>(m, "Presence", "enum.IntEnum")
      .value("REQUIRED", Presence::kRequired)
      .value("OPTIONAL", Presence::kOptional)
      .value("PREFIX_REMAINDER_NON_ZERO", Presence::kPrefixRemainderNonZero)
      .value("PREFIX_AT_LEAST", Presence::kPrefixAtLeast)
      .value("CHARGED_ELSEWHERE", Presence::kChargedElsewhere)
      .finalize();
  py::class_<EstimateComponent>(m, "EstimateComponent")
      .def(py::init([](std::string name,
                       const std::vector<std::pair<AxisKind, std::uint64_t>>& shape,
                       std::uint64_t element_bytes, Presence presence, std::uint64_t presence_value,
                       bool attention) {
             std::vector<Axis> axes;
             for (const auto& [kind, value] : shape) axes.push_back({kind, value});
             return EstimateComponent{std::move(name), std::move(axes), element_bytes,
                                      presence,        presence_value,  attention};
           }),
           py::kw_only(), py::arg("name"), py::arg("shape"), py::arg("element_bytes"),
           py::arg("presence"), py::arg("presence_value"), py::arg("attention"));
  py::class_<EstimateLayer>(m, "EstimateLayer")
      .def(py::init([](std::uint64_t prefix_lag, std::uint32_t window,
                       std::vector<EstimateComponent> components) {
             return EstimateLayer{prefix_lag, window, std::move(components)};
           }),
           py::kw_only(), py::arg("prefix_lag"), py::arg("window"), py::arg("components"));
  py::class_<RuntimeEstimate>(m, "RuntimeEstimate")
      .def_readonly("fixed_bytes", &RuntimeEstimate::fixed_bytes)
      .def_readonly("context_bytes", &RuntimeEstimate::context_bytes)
      .def_readonly("growth_bytes", &RuntimeEstimate::growth_bytes)
      .def_readonly("embedding_bytes", &RuntimeEstimate::embedding_bytes)
      .def_readonly("workspace_bytes", &RuntimeEstimate::workspace_bytes)
      .def_readonly("requested_bytes", &RuntimeEstimate::requested_bytes)
      .def_readonly("window_bounds", &RuntimeEstimate::window_bounds);
  m.def(
      "estimate_runtime_state",
      [](const std::vector<EstimateLayer>& layers, std::uint64_t positions, std::uint64_t batch,
         std::uint64_t floating_bytes, std::uint64_t granularity, std::uint64_t media_positions,
         std::uint64_t hidden_size, std::uint64_t media_workspace_bytes) {
        return unwrap(
            estimate_runtime_state(layers, {positions, batch, floating_bytes, granularity,
                                            media_positions, hidden_size, media_workspace_bytes}));
      },
      py::arg("layers"), py::kw_only(), py::arg("positions"), py::arg("batch"),
      py::arg("floating_bytes"), py::arg("granularity"), py::arg("media_positions"),
      py::arg("hidden_size"), py::arg("media_workspace_bytes"));
}
