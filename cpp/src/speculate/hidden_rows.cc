#include "speculate/hidden_rows.h"

#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/malloced.h"

namespace kvcache::speculate {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;
constexpr std::uint64_t kAlignment = 64;  // a cache line, and a ZMM register

}  // namespace

Result<HiddenRows> HiddenRows::create(std::string_view name, std::uint64_t rows,
                                      std::uint64_t width, DType dtype) {
  if (!is_float(dtype)) {
    return Status::invalid_argument(name, ": hidden rows are bf16, f16 or f32, got ",
                                    dtype_name(dtype));
  }
  if (rows == 0 || width == 0) {
    return Status::invalid_argument(name, ": rows and width must not be 0, got ", rows, " and ",
                                    width);
  }
  const auto row = checked_mul(width, dtype_bytes(dtype));
  const auto bytes = row ? checked_mul(rows, *row) : std::nullopt;
  if (!bytes || *bytes > kMostBytes) {
    return Status::invalid_argument(name, ": ", rows, " rows of ", width, " ", dtype_name(dtype),
                                    " take more than 2^46 bytes");
  }
  // Pages that are never touched take no memory.
  void* memory = std::aligned_alloc(kAlignment, round_up(*bytes, kAlignment));
  if (memory == nullptr) {
    return Status::out_of_capacity(name, ": the system has no ", *bytes, " bytes");
  }
  return HiddenRows({static_cast<std::byte*>(memory), FreeMemory()}, rows, width, dtype);
}

void HiddenRows::keep(std::shared_ptr<void> kept) {
  // Members go in reverse: the memory, then what was kept for it.
  struct Held {
    std::shared_ptr<void> kept;
    std::shared_ptr<std::byte> memory;
  };
  auto held = std::make_shared<Held>(Held{std::move(kept), std::move(memory_)});
  std::byte* const memory = held->memory.get();
  memory_ = {std::move(held), memory};
}

Status HiddenRows::check(std::string_view call, const HiddenView& view) const {
  if (view.dtype == dtype_ && view.width == width_) return Status::ok();
  return Status::invalid_argument(call, ": expected rows of ", width_, " ", dtype_name(dtype_),
                                  ", got ", view.width, " ", dtype_name(view.dtype));
}

void HiddenRows::put(std::uint64_t first, const HiddenView& view, std::uint64_t begin,
                     std::uint64_t count) {
  const auto* from = static_cast<const std::byte*>(view.data);
  for (std::uint64_t row = 0; row < count; ++row) {
    const auto index = static_cast<std::ptrdiff_t>(begin + row);
    std::memmove(memory_.get() + (first + row) * row_bytes(), from + index * view.row_stride,
                 row_bytes());
  }
}

HiddenView HiddenRows::view(std::uint64_t first, std::uint64_t count) const {
  return {.data = memory_.get() + first * row_bytes(),
          .dtype = dtype_,
          .rows = count,
          .width = width_,
          .row_stride = static_cast<std::ptrdiff_t>(row_bytes()),
          .owner = memory_};
}

}  // namespace kvcache::speculate
