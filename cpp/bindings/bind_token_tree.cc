#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "arrays.h"
#include "kvcache/token_tree.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::TokenTree;
using kvcache::bindings::span_of;
using kvcache::bindings::Tokens;
using kvcache::bindings::unwrap;

template <typename Element>
py::array_t<Element> array_of(const std::vector<Element>& elements) {
  return py::array_t<Element>(static_cast<py::ssize_t>(elements.size()), elements.data());
}

// A new [nodes, columns] array, filled by `fill`.
template <typename Element>
py::array_t<Element> mask_array(const TokenTree& tree, std::uint64_t prefix, std::uint64_t columns,
                                kvcache::Status (TokenTree::*fill)(std::uint64_t,
                                                                   std::span<Element>) const) {
  py::array_t<Element> mask(
      {static_cast<py::ssize_t>(tree.nodes()), static_cast<py::ssize_t>(columns)});
  unwrap((tree.*fill)(prefix, {mask.mutable_data(), static_cast<std::size_t>(mask.size())}));
  return mask;
}

py::array_t<std::int32_t> retrieval_array(const TokenTree& tree) {
  const std::vector<std::int32_t> rows = tree.retrieval_indices();
  return py::array_t<std::int32_t>(
      {static_cast<py::ssize_t>(tree.leaves()), static_cast<py::ssize_t>(tree.depth() + 1)},
      rows.data());
}

py::tuple accept(const TokenTree& tree, const Tokens& tokens, const Tokens& picks) {
  const auto accepted = unwrap(tree.accept(span_of(tokens, "tokens"), span_of(picks, "picks")));
  return py::make_tuple(array_of(accepted.rows), accepted.bonus);
}

}  // namespace

void bind_token_tree(py::module_& m) {
  py::class_<TokenTree>(m, "TokenTree")
      .def(py::init([](const Tokens& parents) {
             return unwrap(TokenTree::create(span_of(parents, "parents")));
           }),
           py::arg("parents"))
      .def_static("linear", [](std::uint64_t nodes) { return unwrap(TokenTree::linear(nodes)); })
      .def_property_readonly("nodes", &TokenTree::nodes)
      .def_property_readonly("leaves", &TokenTree::leaves)
      .def_property_readonly("depth", &TokenTree::depth)
      .def("parents", [](const TokenTree& tree) { return array_of(tree.parents()); })
      .def("depths", [](const TokenTree& tree) { return array_of(tree.depths()); })
      .def("first_child", [](const TokenTree& tree) { return array_of(tree.first_child()); })
      .def("next_sibling", [](const TokenTree& tree) { return array_of(tree.next_sibling()); })
      .def("path", [](const TokenTree& tree,
                      std::uint64_t node) { return array_of(unwrap(tree.path(node))); })
      .def("retrieval_indices", &retrieval_array)
      .def("positions", [](const TokenTree& tree,
                           std::uint64_t start) { return array_of(unwrap(tree.positions(start))); })
      .def("mask",
           [](const TokenTree& tree, std::uint64_t prefix) {
             const std::uint64_t columns = unwrap(tree.mask_columns(prefix, 1));
             return mask_array(tree, prefix, columns, &TokenTree::fill_mask);
           })
      .def("bias",
           [](const TokenTree& tree, std::uint64_t prefix) {
             const std::uint64_t columns = unwrap(tree.mask_columns(prefix, sizeof(float)));
             return mask_array(tree, prefix, columns, &TokenTree::fill_bias);
           })
      .def("packed_mask",
           [](const TokenTree& tree, std::uint64_t prefix) {
             const std::uint64_t words = unwrap(tree.packed_words(prefix));
             return mask_array(tree, prefix, words, &TokenTree::fill_packed_mask);
           })
      .def("accept", &accept, py::arg("tokens"), py::arg("picks"));
}
