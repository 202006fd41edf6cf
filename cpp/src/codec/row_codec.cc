#include "codec/row_codec.h"

#include "base/check.h"
#include "codec/registry.h"
#include "codec/row_copy.h"

namespace kvcache::codec {

Element element_of(DType dtype) {
  KVCACHE_CHECK(is_float(dtype));
  if (dtype == DType::kF32) return kElementF32;
  return dtype == DType::kF16 ? kElementF16 : kElementBf16;
}

const Kernels& kernels_or_scalar() {
  const auto& active = active_kernels();
  return active ? *active.value() : *compiled_kernels().back();
}

RowCodec row_codec(DType stored, DType element) {
  if (stored == element) return {nullptr, copy_rows_in, copy_rows_out};
  const Kernels& kernels = kernels_or_scalar();
  const Element outside = element_of(element);
  if (stored == DType::kI8) {
    return {kernels.encode_int8[outside], nullptr, kernels.decode_int8[outside]};
  }
  const Element inside = element_of(stored);
  return {nullptr, kernels.encode_plain[inside][outside], kernels.decode_plain[inside][outside]};
}

}  // namespace kvcache::codec
