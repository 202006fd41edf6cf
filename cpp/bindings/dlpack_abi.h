// The structs that DLPack 1.0 exchanges through Python capsules, as its specification lays them
// out: https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

namespace kvcache::bindings::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCudaHost = 3 };
enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4 };

struct Device {
  std::int32_t device_type;
  std::int32_t device_id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major
  std::uint64_t byte_offset;
};

// Before version 1; capsule "dltensor".
struct ManagedTensor {
  static constexpr const char* kName = "dltensor";
  static constexpr const char* kUsedName = "used_dltensor";
  Tensor tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor* self);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

// Capsule "dltensor_versioned".
struct ManagedTensorVersioned {
  static constexpr const char* kName = "dltensor_versioned";
  static constexpr const char* kUsedName = "used_dltensor_versioned";
  static constexpr std::uint64_t kReadOnly = 1;
  Version version;
  void* manager_context;
  void (*deleter)(ManagedTensorVersioned* self);
  std::uint64_t flags;
  Tensor tensor;
};

}  // namespace kvcache::bindings::dlpack
