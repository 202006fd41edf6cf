// Helpers of the codec tests: one call of one instruction set's row.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "codec/float_bits.h"
#include "codec/kernels.h"
#include "codec/registry.h"

namespace kvcache::codec::testing {

inline std::vector<const Kernels*> runnable_kernels() {
  std::vector<const Kernels*> out;
  for (const Kernels* kernels : compiled_kernels()) {
    if (kernels->supported()) out.push_back(kernels);
  }
  return out;
}

inline const Kernels& scalar() { return *compiled_kernels().back(); }

inline std::size_t bytes_of(Element element) { return element == kElementF32 ? 4 : 2; }

struct Encoded {
  std::size_t good_rows = 0;
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  bool operator==(const Encoded& other) const {
    return good_rows == other.good_rows && codes == other.codes &&
           std::memcmp(scales.data(), other.scales.data(), 4 * scales.size()) == 0;
  }
};

// Dense rows [rows, width].
inline EncodeJob dense_job(const void* elements, Element element, std::size_t rows,
                           std::size_t width) {
  const auto stride = static_cast<std::ptrdiff_t>(width * bytes_of(element));
  return {.elements = static_cast<const char*>(elements),
          .token_stride = stride,
          .head_stride = stride,
          .heads = 1,
          .rows = rows,
          .width = width,
          .packed = nullptr,
          .scales = nullptr,
          .prefetch = false,
          .stream = false};
}

inline Encoded encode(const Kernels& kernels, Element element, EncodeJob job) {
  Encoded out;
  out.codes.resize(job.rows * job.width, 99);
  out.scales.resize(job.rows, -1.0F);
  job.packed = reinterpret_cast<char*>(out.codes.data());
  job.scales = out.scales.data();
  out.good_rows = kernels.encode_int8[element](job);
  return out;
}

inline std::vector<std::uint16_t> f16_of(const std::vector<float>& values) {
  std::vector<std::uint16_t> out;
  for (float value : values) out.push_back(f16_from_f32(value));
  return out;
}

}  // namespace kvcache::codec::testing
