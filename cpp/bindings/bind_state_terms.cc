#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kvcache/cache_terms.h"
#include "kvcache/state_terms.h"
#include "unwrap.h"

namespace py = pybind11;
using kvcache::bindings::unwrap;

namespace {

using Pair = std::pair<std::uint64_t, std::uint64_t>;

std::optional<kvcache::BlockPool> pool(const std::optional<Pair>& pair) {
  if (!pair) return std::nullopt;
  return kvcache::BlockPool{pair->first, pair->second};
}

}  // namespace

void bind_state_terms(py::module_& m) {
  using namespace kvcache;
  py::native_enum<Holding>(m, "Holding", "enum.IntEnum")
      .value("LIVE", Holding::kLive)
      .value("STEPS", Holding::kSteps)
      .value("CHECKPOINT", Holding::kCheckpoint)
      .value("BLOCKS", Holding::kBlocks)
      .finalize();
  py::class_<StateTerm>(m, "StateTerm")
      .def_readonly("decl", &StateTerm::decl)
      .def_readonly("holding", &StateTerm::holding)
      .def_readonly("units", &StateTerm::units)
      .def_readonly("bytes", &StateTerm::bytes);
  py::class_<CacheTerm>(m, "CacheTerm")
      .def_readonly("decl", &CacheTerm::decl)
      .def_readonly("units", &CacheTerm::units)
      .def_readonly("bytes", &CacheTerm::bytes)
      .def_readonly("host", &CacheTerm::host);
  m.def(
      "state_terms",
      [](const std::vector<StateDecl>& decls, std::uint64_t slots,
         std::optional<std::pair<std::vector<std::uint64_t>, std::uint64_t>> verify,
         std::optional<Pair> kv, std::optional<Pair> draft_kv) {
        StateInputs inputs{slots, std::nullopt, pool(kv), pool(draft_kv)};
        if (verify) inputs.verify = VerifyCounts{std::move(verify->first), verify->second};
        return unwrap(state_terms(decls, inputs));
      },
      py::arg("decls"), py::kw_only(), py::arg("slots"), py::arg("verify"), py::arg("kv"),
      py::arg("draft_kv"));
  m.def(
      "cache_terms",
      [](const std::vector<StateDecl>& decls, std::uint64_t prefix_snapshot_slots, Pair ring,
         Pair carry, std::uint64_t verify_table_rows, std::uint64_t capture_rows,
         std::optional<Pair> lookup, std::optional<Pair> tree, std::optional<Pair> drafts) {
        CacheInputs inputs;
        inputs.prefix_snapshot_slots = prefix_snapshot_slots;
        inputs.ring = {ring.first, ring.second};
        inputs.carry = {carry.first, carry.second};
        inputs.verify_table_rows = verify_table_rows;
        inputs.capture_rows = capture_rows;
        if (lookup) inputs.lookup = CacheInputs::Lookup{lookup->first, lookup->second};
        if (tree) inputs.tree = CacheInputs::Tree{tree->first, tree->second};
        if (drafts) inputs.drafts = CacheInputs::Drafts{drafts->first, drafts->second};
        return unwrap(cache_terms(decls, inputs));
      },
      py::arg("decls"), py::kw_only(), py::arg("prefix_snapshot_slots"), py::arg("ring"),
      py::arg("carry"), py::arg("verify_table_rows"), py::arg("capture_rows"), py::arg("lookup"),
      py::arg("tree"), py::arg("drafts"));
  m.def(
      "retained_units",
      [](const StateDecl& decl, std::uint64_t tokens, std::uint64_t block_tokens) {
        return unwrap(retained_units(decl, tokens, block_tokens));
      },
      py::arg("decl"), py::arg("tokens"), py::arg("block_tokens"));
  m.def(
      "retained_bytes",
      [](const std::vector<StateDecl>& decls, std::uint64_t tokens, std::uint64_t block_tokens) {
        return unwrap(retained_bytes(decls, tokens, block_tokens));
      },
      py::arg("decls"), py::arg("tokens"), py::arg("block_tokens"));
  m.def(
      "hash_table_bytes",
      [](std::uint64_t entries, std::uint64_t entry_bytes) {
        return unwrap(hash_table_bytes(entries, entry_bytes));
      },
      py::arg("entries"), py::arg("entry_bytes"));
}
