// numpy arrays as the views of the core, and the core's tensors as numpy arrays.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "array_view.h"
#include "kvcache/cache.h"
#include "kvcache/codec.h"
#include "unwrap.h"

namespace kvcache::bindings {

using Tokens = pybind11::array_t<std::int32_t, pybind11::array::c_style>;

// (start, length, digest) of each media item.
using Media = std::vector<std::tuple<std::uint64_t, std::uint64_t, std::string>>;
std::vector<MediaSpan> media_of(const Media& media);

// A view of an array that the caller keeps alive; more than one axis throws StatusError.
template <typename Array>
auto span_of(const Array& array, const char* name) {
  using Element = typename Array::value_type;
  if (array.ndim() != 1) unwrap(Status::invalid_argument(name, " must have one axis"));
  return std::span<const Element>(array.data(), static_cast<std::size_t>(array.size()));
}
inline std::span<const std::int32_t> token_span(const Tokens& tokens) {
  return span_of(tokens, "tokens");
}

// Keeps `owner` for as long as the capsule lives, as the base of an array.
pybind11::capsule owner_capsule(std::shared_ptr<const void> owner);

// The components of one layer, [tokens, heads, width] each, borrowed from any array type without a
// copy. Made and let go with the GIL held. View: codec::RowsView, or MutableRowsView to write to.
// Another rank, an element type that no row has, or a last axis with gaps throws StatusError.
template <typename View>
class Components {
 public:
  explicit Components(const std::vector<pybind11::object>& arrays);
  std::span<const View> views() const { return views_; }

 private:
  std::vector<std::unique_ptr<ArrayView>> borrowed_;
  std::vector<View> views_;
};

// A writable array over a tensor; its base keeps the memory from being handed out again.
// kUnsupported: more axes than numpy has.
pybind11::array tensor_array(StateView view);

// A read-only array over memory that `owner` keeps, strides in bytes; for bfloat16, which numpy
// lacks, a Bfloat16Array.
pybind11::object memory_array(DType dtype, const std::vector<pybind11::ssize_t>& shape,
                              const std::vector<pybind11::ssize_t>& strides, const void* data,
                              std::shared_ptr<const void> owner);

}  // namespace kvcache::bindings
