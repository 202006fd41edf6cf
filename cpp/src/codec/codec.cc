#include "kvcache/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/float_bits.h"

namespace kvcache::codec {
namespace {

float load(const void* row, DType dtype, std::size_t i) {
  const auto* bytes = static_cast<const unsigned char*>(row);
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, bytes + 4 * i, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, bytes + 2 * i, 2);
  return dtype == DType::kF16 ? f32_from_f16(bits) : f32_from_bf16(bits);
}

void store(void* row, DType dtype, std::size_t i, float value) {
  auto* bytes = static_cast<unsigned char*>(row);
  if (dtype == DType::kF32) {
    std::memcpy(bytes + 4 * i, &value, 4);
    return;
  }
  const std::uint16_t bits = dtype == DType::kF16 ? f16_from_f32(value) : bf16_from_f32(value);
  std::memcpy(bytes + 2 * i, &bits, 2);
}

}  // namespace

Status encode_int8(const RowsView& in, std::int8_t* codes, float* scales) {
  for (std::size_t token = 0; token < in.tokens; ++token) {
    for (std::size_t head = 0; head < in.heads; ++head) {
      const std::size_t row = token * in.heads + head;
      const char* source = static_cast<const char*>(in.data) +
                           static_cast<std::ptrdiff_t>(token) * in.token_stride +
                           static_cast<std::ptrdiff_t>(head) * in.head_stride;
      float largest = 0;
      bool finite = true;
      for (std::size_t i = 0; i < in.width; ++i) {
        const float h = f32_from_f16(f16_from_f32(load(source, in.dtype, i)));
        finite = finite && std::isfinite(h);
        largest = std::max(largest, std::fabs(h));
      }
      if (!finite) {
        return Status::non_finite("row ", row, ": an element is not finite after F16 rounding");
      }
      const float scale = largest == 0 ? 1.0F : largest / 127.0F;
      scales[row] = scale;
      for (std::size_t i = 0; i < in.width; ++i) {
        const float h = f32_from_f16(f16_from_f32(load(source, in.dtype, i)));
        codes[row * in.width + i] = static_cast<std::int8_t>(std::nearbyint(h / scale));
      }
    }
  }
  return Status::ok();
}

void decode_int8(const std::int8_t* codes, const float* scales, const MutableRowsView& out) {
  for (std::size_t token = 0; token < out.tokens; ++token) {
    for (std::size_t head = 0; head < out.heads; ++head) {
      const std::size_t row = token * out.heads + head;
      char* target = static_cast<char*>(out.data) +
                     static_cast<std::ptrdiff_t>(token) * out.token_stride +
                     static_cast<std::ptrdiff_t>(head) * out.head_stride;
      for (std::size_t i = 0; i < out.width; ++i) {
        store(target, out.dtype, i, static_cast<float>(codes[row * out.width + i]) * scales[row]);
      }
    }
  }
}

void encode_f16(const RowsView& in, std::uint16_t* out) {
  for (std::size_t token = 0; token < in.tokens; ++token) {
    for (std::size_t head = 0; head < in.heads; ++head) {
      const char* source = static_cast<const char*>(in.data) +
                           static_cast<std::ptrdiff_t>(token) * in.token_stride +
                           static_cast<std::ptrdiff_t>(head) * in.head_stride;
      std::uint16_t* target = out + (token * in.heads + head) * in.width;
      if (in.dtype == DType::kF16) {
        std::memcpy(target, source, 2 * in.width);
        continue;
      }
      for (std::size_t i = 0; i < in.width; ++i) {
        target[i] = f16_from_f32(load(source, in.dtype, i));
      }
    }
  }
}

void decode_f16(const std::uint16_t* in, const MutableRowsView& out) {
  for (std::size_t token = 0; token < out.tokens; ++token) {
    for (std::size_t head = 0; head < out.heads; ++head) {
      const std::uint16_t* source = in + (token * out.heads + head) * out.width;
      char* target = static_cast<char*>(out.data) +
                     static_cast<std::ptrdiff_t>(token) * out.token_stride +
                     static_cast<std::ptrdiff_t>(head) * out.head_stride;
      if (out.dtype == DType::kF16) {
        std::memcpy(target, source, 2 * out.width);
        continue;
      }
      for (std::size_t i = 0; i < out.width; ++i) {
        store(target, out.dtype, i, f32_from_f16(source[i]));
      }
    }
  }
}

std::string_view active_isa() { return "scalar"; }

}  // namespace kvcache::codec
