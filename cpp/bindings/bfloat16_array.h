// bfloat16 elements that leave by DLPack, since numpy has no such dtype.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <utility>

namespace kvcache::bindings {

class Bfloat16Array {
 public:
  // REQUIRES: elements of 2 bytes; any strides.
  explicit Bfloat16Array(pybind11::array bits) : bits_(std::move(bits)) {}

  pybind11::array bits() const { return bits_; }
  pybind11::capsule dlpack(std::optional<std::pair<int, int>> max_version,
                           std::optional<std::pair<int, int>> dl_device,
                           std::optional<bool> copy) const;

 private:
  pybind11::array bits_;
};

void bind_bfloat16_array(pybind11::module_& m);

}  // namespace kvcache::bindings
