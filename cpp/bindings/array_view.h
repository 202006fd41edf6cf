// Borrows an array that Python owns, without a copy: the buffer protocol, DLPack (CPU) or
// __array_interface__, whichever the object has first.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/types.h"

namespace kvcache::bindings {

// Released, with the GIL held, when the view goes. `name` begins every error about it.
class ArrayView {
 public:
  static constexpr const char* kAnyDtype =
      "float32, float16, bfloat16, int8, uint8, int32, uint32 or uint64";
  static constexpr const char* kFloats = "float32, float16 or bfloat16";

  // `dtypes` are those that an error names, where the caller takes no others.
  ArrayView(const pybind11::object& object, std::string name, bool writable,
            const char* dtypes = kAnyDtype);
  ArrayView(const ArrayView&) = delete;
  ArrayView& operator=(const ArrayView&) = delete;

  const std::string& name() const { return name_; }
  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const std::vector<std::ptrdiff_t>& shape() const { return shape_; }
  const std::vector<std::ptrdiff_t>& strides() const { return strides_; }  // bytes

  std::size_t elements() const;
  bool is_contiguous() const;  // row-major, without gaps
  std::string shape_text() const;
  std::string layout_text() const;  // shape and strides
  // The bytes from the first to one past the last; {0, 0} when there is no element.
  struct Extent {
    std::uintptr_t begin;
    std::uintptr_t end;
  };
  Extent extent() const;

 private:
  bool take_buffer(const pybind11::object& object, bool writable);
  bool take_dlpack(const pybind11::object& object, bool writable);
  bool take_array_interface(const pybind11::object& object, bool writable);
  template <typename Managed>
  void take_capsule(const pybind11::capsule& capsule, bool writable);
  void set_row_major_strides();
  void check_description() const;
  [[noreturn]] void fail_dtype(const std::string& dtype) const;

  std::string name_;
  const char* dtypes_;
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  std::vector<std::ptrdiff_t> shape_;
  std::vector<std::ptrdiff_t> strides_;
  std::shared_ptr<void> owner_;
};

}  // namespace kvcache::bindings
