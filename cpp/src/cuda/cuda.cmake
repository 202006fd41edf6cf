# Kernels for NVIDIA devices, or the object that refuses every call in their place.
# Checks and what a fault means are built either way.
target_sources(kvcache_core PRIVATE src/cuda/fault.cc src/cuda/row_grids.cc src/cuda/state_grids.cc)
if(NOT KVCACHE_CUDA)
  target_sources(kvcache_core PRIVATE src/cuda/no_cuda.cc)
  return()
endif()

if(KVCACHE_SANITIZE)
  message(FATAL_ERROR "KVCACHE_CUDA: nvcc takes no sanitizers; leave KVCACHE_SANITIZE empty")
endif()
# Ampere, Hopper and Blackwell servers, and later devices by way of the last one's PTX.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

# Apart from the rest, so that they can be compiled alone.
add_library(kvcache_cuda OBJECT src/cuda/rows.cu src/cuda/state.cu)
target_include_directories(kvcache_cuda PRIVATE include src)
# Bits must be the CPU's: no fused multiply-add, IEEE division, subnormals kept.
target_compile_options(
  kvcache_cuda
  PRIVATE -fmad=false
          -prec-div=true
          -ftz=false
          --expt-relaxed-constexpr # std::bit_cast
          -diag-suppress=2810 # takes an assigned Status for a dropped one
          $<$<BOOL:${KVCACHE_WERROR}>:-Werror=all-warnings>)
target_sources(kvcache_core PRIVATE src/cuda/kernel_calls.cc src/cuda/runtime.cc
                                    $<TARGET_OBJECTS:kvcache_cuda>)
target_link_libraries(kvcache_core PRIVATE CUDA::cudart_static)
# For programs without CMake: libkvcache.a needs the runtime.
set(KVCACHE_CUDA_LIBS " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
