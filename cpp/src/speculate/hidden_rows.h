// Memory for rows of hidden state, and copies into it. Rows that were never stored are not zeroed:
// whoever gives them out knows which were.
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>

#include "kvcache/hidden_rows.h"
#include "kvcache/status.h"

namespace kvcache::speculate {

class HiddenRows {
 public:
  // `name` begins every error. kInvalidArgument: no rows, no width, no floating element, or more
  // than 2^46 bytes. kOutOfCapacity: no memory.
  static Result<HiddenRows> create(std::string_view name, std::uint64_t rows, std::uint64_t width,
                                   DType dtype);

  std::uint64_t rows() const { return rows_; }
  std::uint64_t bytes() const { return rows_ * row_bytes(); }
  std::uint64_t row_bytes() const { return width_ * dtype_bytes(dtype_); }

  // Lets `kept` live as long as the memory, which is as long as any view().
  void keep(std::shared_ptr<void> kept);

  // kInvalidArgument: another element or width.
  Status check(std::string_view call, const HiddenView& view) const;
  // Copies rows of `view` to rows from `first` on. REQUIRES: check() is ok, they are within both.
  void put(std::uint64_t first, const HiddenView& view, std::uint64_t begin, std::uint64_t count);
  // Rows where they lie. REQUIRES: within rows().
  HiddenView view(std::uint64_t first, std::uint64_t count) const;

 private:
  HiddenRows(std::shared_ptr<std::byte> memory, std::uint64_t rows, std::uint64_t width,
             DType dtype)
      : memory_(std::move(memory)), rows_(rows), width_(width), dtype_(dtype) {}

  std::shared_ptr<std::byte> memory_;
  std::uint64_t rows_;
  std::uint64_t width_;
  DType dtype_;
};

}  // namespace kvcache::speculate
