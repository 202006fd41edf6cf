// numpy arrays as the views of the core, and the core's tensors as numpy arrays.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <span>

#include "kvcache/cache.h"
#include "kvcache/codec.h"

namespace kvcache::bindings {

using Tokens = pybind11::array_t<std::int32_t, pybind11::array::c_style>;

// Views of an array that the caller keeps alive; a wrong shape or element throws StatusError.
std::span<const std::int32_t> token_span(const Tokens& tokens);
codec::RowsView rows_view(const pybind11::array& rows);
codec::MutableRowsView mutable_view(pybind11::array& rows);

// A writable array over a tensor; its base keeps the memory from being handed out again.
pybind11::array tensor_array(StateView view);

}  // namespace kvcache::bindings
