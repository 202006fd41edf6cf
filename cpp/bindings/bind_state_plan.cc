#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kvcache/state_plan.h"
#include "unwrap.h"

namespace py = pybind11;
using kvcache::bindings::unwrap;

namespace kvcache {
namespace {

void bind_enums(py::module_& m) {
  py::native_enum<DType>(m, "DType", "enum.IntEnum")
      .value("F32", DType::kF32)
      .value("U32", DType::kU32)
      .value("I32", DType::kI32)
      .value("F16", DType::kF16)
      .value("BF16", DType::kBf16)
      .value("U64", DType::kU64)
      .value("U8", DType::kU8)
      .value("FP8", DType::kFp8)
      .value("I8", DType::kI8)
      .finalize();
  py::native_enum<StateKind>(m, "StateKind", "enum.IntEnum")
      .value("RECURRENT", StateKind::kRecurrent)
      .value("PAGED_KV", StateKind::kPagedKv)
      .value("PREFIX_SNAPSHOT", StateKind::kPrefixSnapshot)
      .value("RING_SNAPSHOT", StateKind::kRingSnapshot)
      .value("CARRY_STASH", StateKind::kCarryStash)
      .value("CARRY_TABLE", StateKind::kCarryTable)
      .value("VERIFY_TABLE", StateKind::kVerifyTable)
      .value("ACCEPT_STASH", StateKind::kAcceptStash)
      .value("HIDDEN_CAPTURE", StateKind::kHiddenCapture)
      .value("PROMPT_LOOKUP_INDEX", StateKind::kPromptLookupIndex)
      .value("TOKEN_TREE_MASK", StateKind::kTokenTreeMask)
      .value("DRAFT_TOKENS", StateKind::kDraftTokens)
      .finalize();
  py::native_enum<Section>(m, "Section", "enum.IntEnum")
      .value("MAIN", Section::kMain)
      .value("DRAFT", Section::kDraft)
      .finalize();
  py::native_enum<VerifyRule>(m, "VerifyRule", "enum.IntEnum")
      .value("NONE", VerifyRule::kNone)
      .value("H_STEPS", VerifyRule::kHSteps)
      .value("CONV_STEPS", VerifyRule::kConvSteps)
      .finalize();
  py::native_enum<VerifyStrategy>(m, "VerifyStrategy", "enum.IntEnum")
      .value("STEPS", VerifyStrategy::kSteps)
      .value("REPLAY", VerifyStrategy::kReplay)
      .value("CARRY", VerifyStrategy::kCarry)
      .finalize();
  py::native_enum<Gate>(m, "Gate", "enum.IntEnum")
      .value("HEAD", Gate::kHead)
      .value("CHANNEL", Gate::kChannel)
      .value("ELEMENT", Gate::kElement)
      .finalize();
}

void bind_decl(py::module_& m) {
  py::class_<StateDecl>(m, "StateDecl")
      .def(py::init([](std::string id, std::int32_t layer, std::string component, StateKind kind,
                       Section section, DType dtype, std::vector<std::uint64_t> shape,
                       std::uint32_t row_scale_bytes, std::uint32_t window, VerifyRule verify,
                       std::uint32_t record_tokens, bool chunked, std::uint32_t sinks, Gate gate) {
             return StateDecl{std::move(id), layer,  std::move(component), kind,
                              section,       dtype,  std::move(shape),     row_scale_bytes,
                              window,        verify, record_tokens,        chunked,
                              sinks,         gate};
           }),
           py::kw_only(), py::arg("id"), py::arg("layer"), py::arg("component"), py::arg("kind"),
           py::arg("section"), py::arg("dtype"), py::arg("shape"), py::arg("row_scale_bytes"),
           py::arg("window"), py::arg("verify"), py::arg("record_tokens") = 1,
           py::arg("chunked") = false, py::arg("sinks") = 0, py::arg("gate") = Gate::kHead)
      .def_readonly("id", &StateDecl::id)
      .def_readonly("layer", &StateDecl::layer)
      .def_readonly("component", &StateDecl::component)
      .def_readonly("kind", &StateDecl::kind)
      .def_readonly("section", &StateDecl::section)
      .def_readonly("dtype", &StateDecl::dtype)
      .def_readonly("shape", &StateDecl::shape)
      .def_readonly("row_scale_bytes", &StateDecl::row_scale_bytes)
      .def_readonly("window", &StateDecl::window)
      .def_readonly("verify", &StateDecl::verify)
      .def_readonly("record_tokens", &StateDecl::record_tokens)
      .def_readonly("chunked", &StateDecl::chunked)
      .def_readonly("sinks", &StateDecl::sinks)
      .def_readonly("gate", &StateDecl::gate);
  m.def("stash_row_elements",
        [](const StateDecl& decl) { return unwrap(stash_row(decl)).elements(); });
  m.def("unit_bytes", [](const StateDecl& decl) { return unwrap(unit_bytes(decl)); });
}

void bind_layout(py::module_& m) {
  py::class_<PagedComponent>(m, "PagedComponent")
      .def_readonly("decl", &PagedComponent::decl)
      .def_readonly("layer", &PagedComponent::layer)
      .def_readonly("dtype", &PagedComponent::dtype)
      .def_readonly("heads", &PagedComponent::heads)
      .def_readonly("width", &PagedComponent::width)
      .def_readonly("rows_offset", &PagedComponent::rows_offset)
      .def_readonly("scales_offset", &PagedComponent::scales_offset);
  py::class_<Group>(m, "Group")
      .def_readonly("window", &Group::window)
      .def_readonly("chunked", &Group::chunked)
      .def_readonly("sinks", &Group::sinks)
      .def_readonly("record_tokens", &Group::record_tokens)
      .def("live_start", &Group::live_start, py::arg("end"))
      .def("sink_end", &Group::sink_end, py::arg("end"))
      .def_readonly("components", &Group::components)
      .def_readonly("token_bytes", &Group::token_bytes)
      .def_readonly("page_bytes", &Group::page_bytes);
  py::class_<FixedComponent>(m, "FixedComponent")
      .def_readonly("decl", &FixedComponent::decl)
      .def_readonly("layer", &FixedComponent::layer)
      .def_readonly("name", &FixedComponent::name)
      .def_readonly("dtype", &FixedComponent::dtype)
      .def_readonly("shape", &FixedComponent::shape)
      .def_readonly("offset", &FixedComponent::offset)
      .def_readonly("bytes", &FixedComponent::bytes);
}

void bind_plan(py::module_& m) {
  py::class_<StatePlan>(m, "StatePlan")
      .def(py::init([](std::vector<StateDecl> decls, std::uint64_t memory_bytes,
                       std::uint32_t block_tokens, std::uint32_t sequences,
                       std::uint32_t ring_depth, bool rotated_keys, std::uint32_t stash_rows) {
             return unwrap(StatePlan::create(
                 std::move(decls),
                 {memory_bytes, block_tokens, sequences, ring_depth, rotated_keys, stash_rows}));
           }),
           py::arg("decls"), py::kw_only(), py::arg("memory_bytes"), py::arg("block_tokens"),
           py::arg("sequences"), py::arg("ring_depth") = 0, py::arg("rotated_keys") = true,
           py::arg("stash_rows") = 0)
      .def_property_readonly("decls", &StatePlan::decls)
      .def_property_readonly("groups", &StatePlan::groups)
      .def_property_readonly("fixed", &StatePlan::fixed)
      .def_property_readonly("slot_bytes", &StatePlan::slot_bytes)
      .def_property_readonly("block_bytes", &StatePlan::block_bytes)
      .def_property_readonly("ring_bytes", &StatePlan::ring_bytes)
      .def_property_readonly("stash_bytes",
                             [](const StatePlan& plan) { return plan.stash().bytes; })
      .def(
          "snapshot_bytes",
          [](const StatePlan& plan, SnapshotFormat format) {
            return plan.snapshot_layout(format).bytes;
          },
          py::arg("format"))
      .def_property_readonly("fingerprint", &StatePlan::fingerprint)
      .def(
          "sequence_bytes",
          [](const StatePlan& plan, std::uint64_t tokens, std::uint64_t chunk_tokens) {
            return unwrap(plan.sequence_bytes(tokens, chunk_tokens));
          },
          py::arg("tokens"), py::arg("chunk_tokens"))
      .def(
          "hit_bytes",
          [](const StatePlan& plan, std::uint64_t tokens) {
            return unwrap(plan.hit_bytes(tokens));
          },
          py::arg("tokens"));
}

}  // namespace
}  // namespace kvcache

void bind_state_plan(py::module_& m) {
  kvcache::bind_enums(m);
  kvcache::bind_decl(m);
  kvcache::bind_layout(m);
  kvcache::bind_plan(m);
}
