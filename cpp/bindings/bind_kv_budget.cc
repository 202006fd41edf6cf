#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kvcache/kv_budget.h"
#include "unwrap.h"

namespace py = pybind11;
using kvcache::bindings::unwrap;

void bind_kv_budget(py::module_& m) {
  using namespace kvcache;
  using Decls = std::vector<StateDecl>;
  py::class_<KvPools>(m, "KvPools")
      .def_readonly("blocks", &KvPools::blocks)
      .def_readonly("draft_blocks", &KvPools::draft_blocks)
      .def_readonly("clamped", &KvPools::clamped);
  m.def(
      "solve_kv_pools",
      [](std::uint64_t available_bytes, std::uint64_t reserved_bytes, std::uint64_t block_bytes,
         std::uint64_t block_tokens, std::uint64_t sequences, std::uint64_t max_tokens,
         bool prefix_cache, std::uint64_t draft_block_bytes, std::uint64_t draft_sequences) {
        return unwrap(
            solve_kv_pools({available_bytes, reserved_bytes, block_bytes, block_tokens, sequences,
                            max_tokens, prefix_cache, draft_block_bytes, draft_sequences}));
      },
      py::kw_only(), py::arg("available_bytes"), py::arg("reserved_bytes"), py::arg("block_bytes"),
      py::arg("block_tokens"), py::arg("sequences"), py::arg("max_tokens"), py::arg("prefix_cache"),
      py::arg("draft_block_bytes"), py::arg("draft_sequences"));
  m.def(
      "block_index_bytes",
      [](const Decls& decls, Section section, std::uint64_t block_tokens) {
        return unwrap(block_index_bytes(decls, section, block_tokens));
      },
      py::arg("decls"), py::arg("section"), py::arg("block_tokens"));
  m.def(
      "demanded_blocks",
      [](std::uint64_t sequences, std::uint64_t tokens, std::uint64_t block_tokens) {
        return unwrap(demanded_blocks(sequences, tokens, block_tokens));
      },
      py::arg("sequences"), py::arg("tokens"), py::arg("block_tokens"));
  m.def("fit_ring_depth", &fit_ring_depth, py::arg("requested"), py::arg("depth_bytes"),
        py::arg("reserved_bytes"), py::arg("headroom_bytes"));
  m.def(
      "best_slots",
      [](std::uint64_t max_tokens, std::uint64_t block_tokens,
         const std::function<std::uint64_t(std::uint64_t)>& blocks) {
        return unwrap(best_slots(max_tokens, block_tokens, blocks));
      },
      py::arg("max_tokens"), py::arg("block_tokens"), py::arg("blocks"));
  m.def(
      "largest_fitting",
      [](std::uint64_t first, std::uint64_t last, const std::function<bool(std::uint64_t)>& fits) {
        return unwrap(largest_fitting(first, last, fits));
      },
      py::arg("first"), py::arg("last"), py::arg("fits"));
  m.def(
      "max_tokens",
      [](const Decls& decls, std::uint64_t sequences, std::uint64_t memory_bytes,
         std::uint64_t block_tokens, std::uint64_t limit) {
        return unwrap(max_tokens(decls, sequences, memory_bytes, block_tokens, limit));
      },
      py::arg("decls"), py::kw_only(), py::arg("sequences"), py::arg("memory_bytes"),
      py::arg("block_tokens"), py::arg("limit"));
  m.def(
      "max_sequences",
      [](const Decls& decls, std::uint64_t tokens, std::uint64_t memory_bytes,
         std::uint64_t block_tokens, std::uint64_t limit) {
        return unwrap(max_sequences(decls, tokens, memory_bytes, block_tokens, limit));
      },
      py::arg("decls"), py::kw_only(), py::arg("tokens"), py::arg("memory_bytes"),
      py::arg("block_tokens"), py::arg("limit"));
  m.def(
      "verify_steps_by_slot",
      [](std::uint64_t sequences, std::uint64_t drafts, bool uniform) {
        return unwrap(verify_steps_by_slot({sequences, drafts, uniform}));
      },
      py::arg("sequences"), py::kw_only(), py::arg("drafts"), py::arg("uniform"));
}
