// The CUDA runtime's errors as ours.
#pragma once

#include <cuda_runtime_api.h>

#include "kvcache/cuda.h"

namespace kvcache::cuda {

inline cudaStream_t stream_of(Stream stream) { return static_cast<cudaStream_t>(stream); }

// `call`: what answered `error`, for the message.
Status runtime_status(cudaError_t error, const char* call);

}  // namespace kvcache::cuda
