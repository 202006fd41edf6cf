#include "layout/snapshot_layout.h"

namespace kvcache {
namespace {

// The tensor without its place.
SnapshotTensor stored_tensor(const FixedComponent& fixed, VerifyRule verify,
                             SnapshotFormat format) {
  SnapshotTensor tensor;
  tensor.stored = fixed.dtype;
  tensor.width = fixed.shape.back();
  tensor.rows = fixed.bytes / dtype_bytes(fixed.dtype) / tensor.width;
  const bool matrix = tensor.width >= kInt8RowMin && verify != VerifyRule::kConvSteps;
  if (format == SnapshotFormat::kF16 && fixed.dtype == DType::kF32) {
    tensor.stored = DType::kF16;
    tensor.exact = false;
  } else if (format == SnapshotFormat::kInt8 && is_float(fixed.dtype) && matrix) {
    tensor.stored = DType::kI8;
    tensor.exact = false;
  }
  return tensor;
}

}  // namespace

SnapshotLayout lay_out_snapshot(const std::vector<FixedComponent>& fixed,
                                const std::vector<StateDecl>& decls, SnapshotFormat format) {
  SnapshotLayout layout;
  for (const FixedComponent& component : fixed) {
    layout.tensors.push_back(stored_tensor(component, decls[component.decl].verify, format));
  }
  // As in a slot, wide elements first: all is aligned without padding. Scales are as wide as f32.
  for (const std::uint64_t width : {8U, 4U, 2U, 1U}) {
    for (SnapshotTensor& tensor : layout.tensors) {
      if (width == sizeof(float) && tensor.has_scales()) {
        tensor.scales_offset = layout.bytes;
        layout.bytes += tensor.rows * sizeof(float);
      }
      if (dtype_bytes(tensor.stored) != width) continue;
      tensor.offset = layout.bytes;
      layout.bytes += tensor.rows * tensor.width * width;
    }
  }
  return layout;
}

}  // namespace kvcache
