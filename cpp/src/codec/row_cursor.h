// Walks rows [tokens, heads] that lie at two strides. Included by files with special flags: all in
// an anonymous namespace, so that no instruction set's code can stand in for another's.
#pragma once

#include <cstddef>

namespace kvcache::codec {
namespace {

template <typename Byte>  // char or const char
class RowCursor {
 public:
  RowCursor() = default;
  RowCursor(Byte* data, std::ptrdiff_t token_stride, std::ptrdiff_t head_stride, std::size_t heads)
      : token_(data),
        row_(data),
        token_stride_(token_stride),
        head_stride_(head_stride),
        heads_(heads) {}

  Byte* next() {
    Byte* row = row_;
    if (++head_ == heads_) {
      head_ = 0;
      token_ += token_stride_;
      row_ = token_;
    } else {
      row_ += head_stride_;
    }
    return row;
  }

  // The next `count` rows.
  void fill(Byte** rows, std::size_t count) {
    if (heads_ != 1) {
      for (std::size_t i = 0; i < count; ++i) rows[i] = next();
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      rows[i] = row_;
      row_ += token_stride_;
    }
    token_ = row_;
  }

 private:
  Byte* token_ = nullptr;
  Byte* row_ = nullptr;
  std::ptrdiff_t token_stride_ = 0;
  std::ptrdiff_t head_stride_ = 0;
  std::size_t heads_ = 0;
  std::size_t head_ = 0;
};

}  // namespace
}  // namespace kvcache::codec
