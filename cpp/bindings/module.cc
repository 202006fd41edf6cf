// The Python module kvcache._core: forward declarations only, one bind_*.cc per public header.
#include <pybind11/pybind11.h>

#include "kvcache/version.h"

namespace py = pybind11;

void bind_status(py::module_& m);
void bind_codec(py::module_& m);
void bind_fold(py::module_& m);
void bind_cache(py::module_& m);
void bind_disk_tier_options(py::module_& m);
void bind_disk_tier(py::module_& m);
void bind_remote_tier_options(py::module_& m);
void bind_remote_tier(py::module_& m);
void bind_prompt_cache(py::module_& m);
void bind_events(py::module_& m);
void bind_explanation(py::module_& m);
void bind_lifetime(py::module_& m);
void bind_memory_options(py::module_& m);
void bind_page_pool(py::module_& m);
void bind_sequence(py::module_& m);
void bind_pages(py::module_& m);
void bind_batch(py::module_& m);
void bind_batch_verify(py::module_& m);
void bind_snapshot(py::module_& m);
void bind_state_plan(py::module_& m);
void bind_stash(py::module_& m);
void bind_carry_table(py::module_& m);
void bind_token_tree(py::module_& m);
void bind_prompt_lookup(py::module_& m);
void bind_tenants(py::module_& m);
void bind_verify(py::module_& m);
void bind_verify_table(py::module_& m);
void bind_reservation(py::module_& m);
void bind_hidden(py::module_& m);
void bind_draft_tokens(py::module_& m);
void bind_engine_layout(py::module_& m);
void bind_state_terms(py::module_& m);
void bind_kv_budget(py::module_& m);
void bind_runtime_estimate(py::module_& m);

PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
  m.doc() = "Compiled core of kvcache; private, use the package's own classes.";
  m.attr("__version__") = KVCACHE_VERSION;
  bind_status(m);
  bind_codec(m);
  bind_fold(m);
  bind_snapshot(m);
  bind_state_plan(m);
  bind_state_terms(m);
  bind_kv_budget(m);
  bind_runtime_estimate(m);
  bind_sequence(m);
  bind_memory_options(m);
  bind_explanation(m);
  bind_disk_tier_options(m);
  bind_remote_tier_options(m);
  bind_cache(m);
  bind_disk_tier(m);
  bind_remote_tier(m);
  bind_prompt_cache(m);
  bind_events(m);
  bind_lifetime(m);
  bind_tenants(m);
  bind_pages(m);
  bind_page_pool(m);
  bind_verify_table(m);
  bind_batch_verify(m);
  bind_carry_table(m);
  bind_batch(m);
  bind_token_tree(m);
  bind_verify(m);
  bind_prompt_lookup(m);
  bind_reservation(m);
  bind_hidden(m);
  bind_draft_tokens(m);
  bind_stash(m);
  bind_engine_layout(m);
}
