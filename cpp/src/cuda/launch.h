// The kernels, by their grids. REQUIRES: the grid has blocks.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/grids.h"

namespace kvcache::cuda {

// All answer what cudaGetLastError() does.
cudaError_t launch_encode(const RowGrid& grid, DType stored, DType element, cudaStream_t stream);
cudaError_t launch_decode(const RowGrid& grid, DType stored, DType element, cudaStream_t stream);
cudaError_t launch_copy(const CopyGrid& grid, cudaStream_t stream);
cudaError_t launch_fold(const FoldGrid& grid, DType stored, Gate gate, bool once,
                        cudaStream_t stream);

}  // namespace kvcache::cuda
