// How rows go in and out of one storage, chosen by the stored element and the caller's.
#pragma once

#include <cstddef>

#include "codec/kernels.h"
#include "kvcache/types.h"

namespace kvcache::codec {

struct RowCodec {
  EncodeInt8 encode_int8;
  EncodePlain encode_plain;
  Decode decode;

  // Returns the first row that is not finite, or job.rows.
  std::size_t encode(const EncodeJob& job) const {
    if (encode_int8 != nullptr) return encode_int8(job);
    encode_plain(job);
    return job.rows;
  }
};

// REQUIRES: is_float(dtype).
Element element_of(DType dtype);

// The active kernels, or the scalar ones where the choice of KVCACHE_ISA failed.
const Kernels& kernels_or_scalar();

// Equal types are copied as bytes, whatever they mean: the width of a job is then in bytes.
// REQUIRES: converts(stored, element).
RowCodec row_codec(DType stored, DType element);

}  // namespace kvcache::codec
