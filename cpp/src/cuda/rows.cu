// Kernels over row_grid.h.
#include "cuda/launch.h"

namespace kvcache::cuda {
namespace {

template <DType kElement>
__global__ void __launch_bounds__(kRowThreads) encode_int8_rows(const RowGrid grid) {
  const RowPlace place = row_place(grid, blockIdx.x, threadIdx.x);
  const std::uint32_t largest =
      __reduce_max_sync(0xffffffffU, lane_magnitude<kElement>(grid, place, threadIdx.x));
  encode_int8_lane<kElement>(grid, place, threadIdx.x, largest);
}

template <DType kStored, DType kElement>
__global__ void __launch_bounds__(kRowThreads) encode_plain_rows(const RowGrid grid) {
  const RowPlace place = row_place(grid, blockIdx.x, threadIdx.x);
  encode_plain_lane<kStored, kElement>(grid, place, threadIdx.x);
}

template <DType kStored, DType kElement>
__global__ void __launch_bounds__(kRowThreads) decode_rows(const RowGrid grid) {
  const RowPlace place = row_place(grid, blockIdx.x, threadIdx.x);
  decode_lane<kStored, kElement>(grid, place, threadIdx.x);
}

using RowKernel = void (*)(RowGrid);

template <DType kStored, DType kElement>
RowKernel encode_kernel() {
  if constexpr (kStored == DType::kI8) {
    return encode_int8_rows<kElement>;
  } else {
    return encode_plain_rows<kStored, kElement>;
  }
}

template <DType kStored>
RowKernel kernel_of(DType element, bool encodes) {
  constexpr DType kF32 = DType::kF32;
  constexpr DType kF16 = DType::kF16;
  constexpr DType kBf16 = DType::kBf16;
  if (element == kF32) {
    return encodes ? encode_kernel<kStored, kF32>() : decode_rows<kStored, kF32>;
  }
  if (element == kF16) {
    return encodes ? encode_kernel<kStored, kF16>() : decode_rows<kStored, kF16>;
  }
  return encodes ? encode_kernel<kStored, kBf16>() : decode_rows<kStored, kBf16>;
}

RowKernel kernel_of(DType stored, DType element, bool encodes) {
  if (stored == DType::kI8) return kernel_of<DType::kI8>(element, encodes);
  if (stored == DType::kF32) return kernel_of<DType::kF32>(element, encodes);
  if (stored == DType::kF16) return kernel_of<DType::kF16>(element, encodes);
  return kernel_of<DType::kBf16>(element, encodes);
}

}  // namespace

cudaError_t launch_encode(const RowGrid& grid, DType stored, DType element, cudaStream_t stream) {
  kernel_of(stored, element, true)<<<blocks_of(grid), kRowThreads, 0, stream>>>(grid);
  return cudaGetLastError();
}

cudaError_t launch_decode(const RowGrid& grid, DType stored, DType element, cudaStream_t stream) {
  kernel_of(stored, element, false)<<<blocks_of(grid), kRowThreads, 0, stream>>>(grid);
  return cudaGetLastError();
}

}  // namespace kvcache::cuda
