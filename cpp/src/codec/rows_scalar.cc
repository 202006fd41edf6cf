// The reference row: the definition of the format, one element at a time. Every other row must give
// the same bytes.
#include <cstring>

#include "codec/float_bits.h"
#include "codec/kernels.h"
#include "codec/row_cursor.h"

namespace kvcache::codec {
namespace {

template <Element kElement>
constexpr std::size_t kBytes = kElement == kElementF32 ? 4 : 2;

template <Element kElement>
float load(const char* element) {
  if constexpr (kElement == kElementF32) {
    float value;
    std::memcpy(&value, element, 4);
    return value;
  } else {
    std::uint16_t bits;
    std::memcpy(&bits, element, 2);
    return kElement == kElementF16 ? f32_from_f16(bits) : f32_from_bf16(bits);
  }
}

template <Element kElement>
void store(char* element, float value) {
  if constexpr (kElement == kElementF32) {
    std::memcpy(element, &value, 4);
  } else {
    const std::uint16_t bits = kElement == kElementF16 ? f16_from_f32(value) : bf16_from_f32(value);
    std::memcpy(element, &bits, 2);
  }
}

// The element as the F16 format would have stored it.
template <Element kElement>
float load_h(const char* element) {
  return f32_from_f16(f16_from_f32(load<kElement>(element)));
}

// Ties to even, for |value| < 2^22: beyond 2^23 a float has no fraction bits left.
std::int8_t round_half_even(float value) {
  constexpr float kShift = 0x1.8p23F;
  return static_cast<std::int8_t>((value + kShift) - kShift);
}

template <Element kElement>
std::size_t encode_int8(const EncodeJob& job) {
  RowCursor<const char> cursor(job.elements, job.token_stride, job.head_stride, job.heads);
  for (std::size_t row = 0; row < job.rows; ++row) {
    const char* source = cursor.next();
    std::uint32_t largest = 0;  // magnitudes order like their bits, and NaN comes last
    for (std::size_t i = 0; i < job.width; ++i) {
      const float h = load_h<kElement>(source + i * kBytes<kElement>);
      const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(h) & 0x7fffffffU;
      if (magnitude > largest) largest = magnitude;
    }
    if (largest >= 0x7f800000U) return row;
    const float scale = largest == 0 ? 1.0F : std::bit_cast<float>(largest) / 127.0F;
    job.scales[row] = scale;
    auto* codes = reinterpret_cast<std::int8_t*>(job.packed) + row * job.width;
    for (std::size_t i = 0; i < job.width; ++i) {
      codes[i] = round_half_even(load_h<kElement>(source + i * kBytes<kElement>) / scale);
    }
  }
  return job.rows;
}

template <Element kElement>
void decode_int8(const DecodeJob& job) {
  for (const DecodeRun* run = job.runs; run != job.runs + job.run_count; ++run) {
    RowCursor<char> cursor(run->elements, job.token_stride, job.head_stride, job.heads);
    for (std::size_t row = 0; row < job.rows; ++row) {
      const auto* codes = reinterpret_cast<const std::int8_t*>(run->packed) + row * job.width;
      char* target = cursor.next();
      for (std::size_t i = 0; i < job.width; ++i) {
        store<kElement>(target + i * kBytes<kElement>,
                        static_cast<float>(codes[i]) * run->scales[row]);
      }
    }
  }
}

template <Element kFrom, Element kTo>
void convert(const char* from, std::size_t width, char* to) {
  for (std::size_t i = 0; i < width; ++i) {
    store<kTo>(to + i * kBytes<kTo>, load<kFrom>(from + i * kBytes<kFrom>));
  }
}

template <Element kStored, Element kElement>
void encode_plain(const EncodeJob& job) {
  RowCursor<const char> cursor(job.elements, job.token_stride, job.head_stride, job.heads);
  for (std::size_t row = 0; row < job.rows; ++row) {
    char* target = job.packed + row * job.width * kBytes<kStored>;
    convert<kElement, kStored>(cursor.next(), job.width, target);
  }
}

template <Element kStored, Element kElement>
void decode_plain(const DecodeJob& job) {
  for (const DecodeRun* run = job.runs; run != job.runs + job.run_count; ++run) {
    RowCursor<char> cursor(run->elements, job.token_stride, job.head_stride, job.heads);
    for (std::size_t row = 0; row < job.rows; ++row) {
      const char* source = run->packed + row * job.width * kBytes<kStored>;
      convert<kStored, kElement>(source, job.width, cursor.next());
    }
  }
}

template <Element kStored, FoldGate kGate, bool kOnce>
void fold(const FoldJob& job) {
  for (std::size_t line = job.first; line < job.first + job.count; ++line) {
    const std::size_t head = line / job.lines;
    const float* gates = job.gate + (kGate == kGateHead      ? head
                                     : kGate == kGateChannel ? line
                                                             : line * job.columns);
    const float* lefts = job.left + head / job.left_group * job.lines + line % job.lines;
    const float* rights = job.right + head / job.right_group * job.columns;
    for (std::size_t column = 0; column < job.columns; ++column) {
      char* element = job.state + (line * job.columns + column) * kBytes<kStored>;
      float value = load<kStored>(element);
      for (std::size_t row = 0; row < job.rows; ++row) {
        const float gate = gates[row * job.gate_stride + (kGate == kGateElement ? column : 0)];
        const float added = lefts[row * job.left_stride] * rights[row * job.right_stride + column];
        value = gate * value + added;  // two roundings: built without contraction
        if constexpr (kOnce) continue;
        store<kStored>(element, value);
        value = load<kStored>(element);
      }
      store<kStored>(element, value);
    }
  }
}

constexpr Element kF32 = kElementF32;
constexpr Element kF16 = kElementF16;
constexpr Element kBf16 = kElementBf16;

}  // namespace

extern const Kernels kKernelsScalar;
const Kernels kKernelsScalar{
    .name = "scalar",
    .supported = [] { return true; },
    .encode_int8 = {encode_int8<kF32>, encode_int8<kF16>, encode_int8<kBf16>},
    .decode_int8 = {decode_int8<kF32>, decode_int8<kF16>, decode_int8<kBf16>},
    .encode_plain = {{nullptr, encode_plain<kF32, kF16>, encode_plain<kF32, kBf16>},
                     {encode_plain<kF16, kF32>, nullptr, encode_plain<kF16, kBf16>},
                     {encode_plain<kBf16, kF32>, encode_plain<kBf16, kF16>, nullptr}},
    .decode_plain = {{nullptr, decode_plain<kF32, kF16>, decode_plain<kF32, kBf16>},
                     {decode_plain<kF16, kF32>, nullptr, decode_plain<kF16, kBf16>},
                     {decode_plain<kBf16, kF32>, decode_plain<kBf16, kF16>, nullptr}},
    .fold = {{{fold<kF32, kGateHead, false>, fold<kF32, kGateHead, true>},
              {fold<kF32, kGateChannel, false>, fold<kF32, kGateChannel, true>},
              {fold<kF32, kGateElement, false>, fold<kF32, kGateElement, true>}},
             {{fold<kF16, kGateHead, false>, fold<kF16, kGateHead, true>},
              {fold<kF16, kGateChannel, false>, fold<kF16, kGateChannel, true>},
              {fold<kF16, kGateElement, false>, fold<kF16, kGateElement, true>}},
             {{fold<kBf16, kGateHead, false>, fold<kBf16, kGateHead, true>},
              {fold<kBf16, kGateChannel, false>, fold<kBf16, kGateChannel, true>},
              {fold<kBf16, kGateElement, false>, fold<kBf16, kGateElement, true>}}},
};

}  // namespace kvcache::codec
