// Rows in and out of pages: a warp for each row, a quad of elements at a time for each lane.
// What a thread does is a function of the grid, its block and its place in it, on host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/elements.h"
#include "cuda/fault.h"

namespace kvcache::cuda {

inline constexpr unsigned kLanes = 32;  // of a warp
inline constexpr unsigned kRowsOfBlock = 4;
inline constexpr unsigned kRowThreads = kLanes * kRowsOfBlock;

// REQUIRES: as row_grids.cc sees to: no size overflows, and everything is aligned to its element.
struct RowGrid {
  // The engine's rows [tokens, heads, width]; strides in bytes.
  char* elements = nullptr;
  std::ptrdiff_t token_stride = 0;
  std::ptrdiff_t head_stride = 0;
  std::uint64_t tokens = 0;
  std::uint32_t heads = 0;
  std::uint32_t width = 0;
  bool whole_elements = false;  // quads of them are aligned

  // Stored rows, of page 0.
  char* packed = nullptr;
  char* scales = nullptr;  // INT8 alone
  std::uint64_t row_bytes = 0;
  bool whole_packed = false;

  // By block table; without one all rows are in page 0.
  std::uint64_t pages = 1;
  std::uint64_t page_stride = 0;
  std::uint32_t block_tokens = 0;
  const std::int32_t* tables = nullptr;
  std::uint64_t table_blocks = 0;
  const std::int64_t* first = nullptr;
  const std::int64_t* offsets = nullptr;
  std::uint64_t sequences = 0;
  std::uint64_t* faults = nullptr;

  KVCACHE_HOST_DEVICE std::uint64_t rows() const { return tokens * heads; }
};

// Where the row of a thread's warp lies; without an address it has none.
struct RowPlace {
  std::uint64_t row = 0;
  char* elements = nullptr;
  char* packed = nullptr;
  float* scale = nullptr;
};

// The last sequence that begins at or before a token.
KVCACHE_HOST_DEVICE inline std::uint64_t sequence_of(const RowGrid& grid, std::uint64_t token) {
  std::uint64_t low = 0;
  std::uint64_t high = grid.sequences;
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (static_cast<std::uint64_t>(grid.offsets[middle]) <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Page and offset of a token, whatever the tables hold. False: it is padding, or a fault.
KVCACHE_HOST_DEVICE inline bool find_page(const RowGrid& grid, std::uint64_t token,
                                          std::uint64_t row, bool raises, std::uint64_t& page,
                                          std::uint64_t& offset) {
  page = 0;
  offset = token;
  if (grid.tables == nullptr) return true;
  if (token >= static_cast<std::uint64_t>(grid.offsets[grid.sequences])) return false;
  const std::uint64_t sequence = sequence_of(grid, token);
  const std::uint64_t position = static_cast<std::uint64_t>(grid.first[sequence]) + token -
                                 static_cast<std::uint64_t>(grid.offsets[sequence]);
  const std::uint64_t block = position / grid.block_tokens;
  std::int32_t id = -1;
  if (block < grid.table_blocks) id = grid.tables[sequence * grid.table_blocks + block];
  if (id < 0 || static_cast<std::uint64_t>(id) >= grid.pages) {
    if (raises) raise_fault(grid.faults, row, Fault::kNoPage);
    return false;
  }
  page = static_cast<std::uint64_t>(id);
  offset = position % grid.block_tokens;
  return true;
}

KVCACHE_HOST_DEVICE inline RowPlace row_place(const RowGrid& grid, std::uint64_t block,
                                              unsigned thread) {
  RowPlace place;
  place.row = block * kRowsOfBlock + thread / kLanes;
  if (place.row >= grid.rows()) return place;
  const std::uint64_t token = place.row / grid.heads;
  const std::uint64_t head = place.row - token * grid.heads;
  std::uint64_t page = 0;
  std::uint64_t offset = 0;
  const bool raises = thread % kLanes == 0;
  if (!find_page(grid, token, place.row, raises, page, offset)) return place;
  const std::uint64_t row = offset * grid.heads + head;  // of the page
  place.elements = grid.elements + static_cast<std::ptrdiff_t>(token) * grid.token_stride +
                   static_cast<std::ptrdiff_t>(head) * grid.head_stride;
  place.packed = grid.packed + page * grid.page_stride + row * grid.row_bytes;
  if (grid.scales != nullptr) {
    place.scale = reinterpret_cast<float*>(grid.scales + page * grid.page_stride) + row;
  }
  return place;
}

// Calls body(column, count, whole) for each quad of the row that the lane has.
template <typename Body>
KVCACHE_HOST_DEVICE void for_each_quad(const RowGrid& grid, unsigned thread, const Body& body) {
  for (std::uint32_t column = thread % kLanes * kQuad; column < grid.width;
       column += kLanes * kQuad) {
    const std::uint32_t left = grid.width - column;
    body(column, left < kQuad ? left : kQuad, left >= kQuad);
  }
}

// The element as the F16 format would have stored it.
template <DType kElement>
KVCACHE_HOST_DEVICE float half_rounded(Raw<kElement> bits) {
  if constexpr (kElement == DType::kF16) {
    return codec::f32_from_f16(bits);
  } else {
    return codec::f32_from_f16(codec::f16_from_f32(widened<kElement>(bits)));
  }
}

// ---- INT8, first step: the largest magnitude among the lane's elements, by its bits ------------
// Magnitudes order like their bits, and NaN comes last; a row's is the largest of its warp's.

template <DType kElement>
KVCACHE_HOST_DEVICE std::uint32_t lane_magnitude(const RowGrid& grid, const RowPlace& place,
                                                 unsigned thread) {
  std::uint32_t largest = 0;
  if (place.elements == nullptr) return largest;
  for_each_quad(grid, thread, [&](std::uint32_t column, std::uint32_t count, bool whole) {
    using T = Raw<kElement>;
    const Quad<T> quad = load_quad<T>(place.elements + std::size_t{column} * sizeof(T), count,
                                      whole && grid.whole_elements);
    for (std::uint32_t i = 0; i < kQuad; ++i) {  // what is not there is 0
      const float h = half_rounded<kElement>(quad.at[i]);
      const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(h) & 0x7fffffffU;
      if (magnitude > largest) largest = magnitude;
    }
  });
  return largest;
}

// ---- INT8, second step: the codes of the lane, and the scale by lane 0 -------------------------

// Ties to even, for |value| < 2^22: beyond 2^23 a float has no fraction bits left.
KVCACHE_HOST_DEVICE inline std::int8_t round_half_even(float value) {
  constexpr float kShift = 0x1.8p23F;
  return static_cast<std::int8_t>(sum(sum(value, kShift), -kShift));
}

template <DType kElement>
KVCACHE_HOST_DEVICE void encode_int8_lane(const RowGrid& grid, const RowPlace& place,
                                          unsigned thread, std::uint32_t largest) {
  if (place.elements == nullptr) return;
  const bool first = thread % kLanes == 0;
  if (largest >= 0x7f800000U) {
    if (first) raise_fault(grid.faults, place.row, Fault::kNonFinite);
    return;
  }
  const float scale = largest == 0 ? 1.0F : quotient(std::bit_cast<float>(largest), 127.0F);
  if (first) *place.scale = scale;
  for_each_quad(grid, thread, [&](std::uint32_t column, std::uint32_t count, bool whole) {
    using T = Raw<kElement>;
    const Quad<T> quad = load_quad<T>(place.elements + std::size_t{column} * sizeof(T), count,
                                      whole && grid.whole_elements);
    Quad<std::int8_t> codes;
    for (std::uint32_t i = 0; i < kQuad; ++i) {
      codes.at[i] = round_half_even(quotient(half_rounded<kElement>(quad.at[i]), scale));
    }
    store_quad(place.packed + column, codes, count, whole && grid.whole_packed);
  });
}

// ---- Plain rows in, and all rows out ----------------------------------------------------------

template <DType kStored, DType kElement>
KVCACHE_HOST_DEVICE void encode_plain_lane(const RowGrid& grid, const RowPlace& place,
                                           unsigned thread) {
  if (place.elements == nullptr) return;
  for_each_quad(grid, thread, [&](std::uint32_t column, std::uint32_t count, bool whole) {
    using From = Raw<kElement>;
    using To = Raw<kStored>;
    const Quad<From> quad = load_quad<From>(place.elements + std::size_t{column} * sizeof(From),
                                            count, whole && grid.whole_elements);
    Quad<To> out;
    for (std::uint32_t i = 0; i < kQuad; ++i) out.at[i] = converted<kElement, kStored>(quad.at[i]);
    store_quad(place.packed + std::size_t{column} * sizeof(To), out, count,
               whole && grid.whole_packed);
  });
}

template <DType kStored, DType kElement>
KVCACHE_HOST_DEVICE void decode_lane(const RowGrid& grid, const RowPlace& place, unsigned thread) {
  if (place.elements == nullptr) return;
  const float scale = kStored == DType::kI8 ? *place.scale : 1.0F;
  for_each_quad(grid, thread, [&](std::uint32_t column, std::uint32_t count, bool whole) {
    using From = Raw<kStored>;
    using To = Raw<kElement>;
    const Quad<From> quad = load_quad<From>(place.packed + std::size_t{column} * sizeof(From),
                                            count, whole && grid.whole_packed);
    Quad<To> out;
    for (std::uint32_t i = 0; i < kQuad; ++i) {
      if constexpr (kStored == DType::kI8) {
        out.at[i] = narrowed<kElement>(product(static_cast<float>(quad.at[i]), scale));
      } else {
        out.at[i] = converted<kStored, kElement>(quad.at[i]);
      }
    }
    store_quad(place.elements + std::size_t{column} * sizeof(To), out, count,
               whole && grid.whole_elements);
  });
}

}  // namespace kvcache::cuda
