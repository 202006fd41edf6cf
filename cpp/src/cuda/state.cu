// Kernels over copy_grid.h and fold_grid.h.
#include "cuda/launch.h"

namespace kvcache::cuda {
namespace {

__global__ void __launch_bounds__(kCopyThreads) copy_pairs(const CopyGrid grid) {
  copy_thread(grid, blockIdx.x, threadIdx.x);
}

template <DType kStored, Gate kGate, bool kOnce>
__global__ void __launch_bounds__(kFoldThreads) fold_states(const FoldGrid grid) {
  fold_thread<kStored, kGate, kOnce>(grid, blockIdx.x, blockIdx.y, threadIdx.x);
}

using FoldKernel = void (*)(FoldGrid);

template <DType kStored, Gate kGate>
FoldKernel kernel_of(bool once) {
  return once ? fold_states<kStored, kGate, true> : fold_states<kStored, kGate, false>;
}

template <DType kStored>
FoldKernel kernel_of(Gate gate, bool once) {
  if (gate == Gate::kHead) return kernel_of<kStored, Gate::kHead>(once);
  if (gate == Gate::kChannel) return kernel_of<kStored, Gate::kChannel>(once);
  return kernel_of<kStored, Gate::kElement>(once);
}

FoldKernel kernel_of(DType stored, Gate gate, bool once) {
  if (stored == DType::kF32) return kernel_of<DType::kF32>(gate, once);
  if (stored == DType::kF16) return kernel_of<DType::kF16>(gate, once);
  return kernel_of<DType::kBf16>(gate, once);
}

}  // namespace

cudaError_t launch_copy(const CopyGrid& grid, cudaStream_t stream) {
  copy_pairs<<<blocks_of(grid), kCopyThreads, 0, stream>>>(grid);
  return cudaGetLastError();
}

cudaError_t launch_fold(const FoldGrid& grid, DType stored, Gate gate, bool once,
                        cudaStream_t stream) {
  const dim3 blocks(blocks_of(grid), static_cast<unsigned>(grid.sequences));
  kernel_of(stored, gate, once)<<<blocks, kFoldThreads, 0, stream>>>(grid);
  return cudaGetLastError();
}

}  // namespace kvcache::cuda
