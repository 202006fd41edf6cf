// Transposes small matrices of 2- and 4-byte elements: 8 x 8 or 4 x 4 at a time in registers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache::codec {

// Rows of `from` are `from_stride` bytes apart and become columns of `to`, whose rows are
// `to_stride` bytes apart; elements of a row follow each other on both sides. T: std::uint16_t or
// std::uint32_t.
template <typename T>
void transpose(const char* from, std::ptrdiff_t from_stride, char* to, std::ptrdiff_t to_stride,
               std::size_t rows, std::size_t columns);

}  // namespace kvcache::codec
