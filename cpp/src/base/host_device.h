// Marks functions that run on the host and, where a CUDA compiler reads them, on a device as well.
#pragma once

#if defined(__CUDACC__)
#define KVCACHE_HOST_DEVICE __host__ __device__
#else
#define KVCACHE_HOST_DEVICE
#endif
