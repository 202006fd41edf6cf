// The calls of kvcache/cuda.h that need the CUDA runtime but no kernel.
#include "cuda/runtime.h"

#include <utility>

#include "cuda/grids.h"

namespace kvcache::cuda {

Status runtime_status(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return Status::ok();
  const char* name = cudaGetErrorName(error);
  const char* text = cudaGetErrorString(error);
  switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return Status::unsupported("CUDA cannot run ", call, ": ", text, " (", name, ")");
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorHostMemoryAlreadyRegistered:
      return Status::invalid_argument("CUDA refused ", call, ": ", text, " (", name, ")");
    case cudaErrorMemoryAllocation:
      return Status::out_of_capacity("CUDA has no memory for ", call, ": ", text, " (", name, ")");
    default:
      return Status::io_error("CUDA failed in ", call, " or in work before it: ", text, " (", name,
                              ")");
  }
}

Status availability() {
  int devices = 0;
  return runtime_status(cudaGetDeviceCount(&devices), "on this machine");
}

// ---- Faults -----------------------------------------------------------------------------------

Status clear_faults(FaultWord* word, Stream stream) {
  static_assert(kNoFault == ~FaultWord{0}, "every byte is 0xff");
  return runtime_status(cudaMemsetAsync(word, 0xff, sizeof *word, stream_of(stream)),
                        "clear_faults");
}

Status check_faults(const FaultWord* word, Stream stream) {
  FaultWord found = kNoFault;
  const cudaStream_t order = stream_of(stream);
  const auto copied = cudaMemcpyAsync(&found, word, sizeof found, cudaMemcpyDefault, order);
  if (Status status = runtime_status(copied, "check_faults"); !status) return status;
  if (Status status = runtime_status(cudaStreamSynchronize(order), "check_faults"); !status) {
    return status;
  }
  return fault_status(found);
}

// ---- Moves ------------------------------------------------------------------------------------

Status move_items(const Items& from, const Items& to, std::uint64_t bytes,
                  std::span<const ItemPair> pairs, Stream stream) {
  if (Status status = check_move(from, to, bytes, pairs); !status) return status;
  if (bytes == 0) return Status::ok();
  const auto* source = static_cast<const char*>(from.data);
  auto* target = static_cast<char*>(to.data);
  for (std::size_t i = 0; i < pairs.size();) {
    const std::size_t length = run_of_moves(from, to, bytes, pairs.subspan(i));
    const char* first = source + static_cast<std::uint64_t>(pairs[i].from) * from.stride;
    char* place = target + static_cast<std::uint64_t>(pairs[i].to) * to.stride;
    const cudaError_t error =
        length == 1 ? cudaMemcpyAsync(place, first, bytes, cudaMemcpyDefault, stream_of(stream))
                    : cudaMemcpy2DAsync(place, to.stride, first, from.stride, bytes, length,
                                        cudaMemcpyDefault, stream_of(stream));
    if (error != cudaSuccess) return runtime_status(error, "move_items");
    i += length;
  }
  return Status::ok();
}

// ---- Host memory ------------------------------------------------------------------------------

Result<PinnedMemory> PinnedMemory::create(void* data, std::uint64_t bytes,
                                          std::shared_ptr<void> owner) {
  if (data == nullptr || bytes == 0) {
    return Status::invalid_argument("pinned memory: ", bytes, " bytes at ", data);
  }
  const auto flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  const auto status = runtime_status(cudaHostRegister(data, bytes, flags), "cudaHostRegister");
  if (!status) return status;
  return PinnedMemory(std::shared_ptr<void>(data, [owner = std::move(owner)](void* at) {
    static_cast<void>(cudaHostUnregister(at));  // and then the owner goes
  }));
}

// ---- Events -----------------------------------------------------------------------------------

namespace {

cudaEvent_t event_of(const std::shared_ptr<void>& event) {
  return static_cast<cudaEvent_t>(event.get());
}

}  // namespace

Result<Event> Event::create() {
  cudaEvent_t event = nullptr;
  const auto error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error != cudaSuccess) return runtime_status(error, "cudaEventCreate");
  return Event(std::shared_ptr<void>(
      event, [](void* at) { static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(at))); }));
}

Status Event::record(Stream stream) {
  return runtime_status(cudaEventRecord(event_of(event_), stream_of(stream)), "Event::record");
}

Status Event::block(Stream stream) const {
  return runtime_status(cudaStreamWaitEvent(stream_of(stream), event_of(event_), 0),
                        "Event::block");
}

Result<bool> Event::is_done() const {
  const cudaError_t error = cudaEventQuery(event_of(event_));
  if (error == cudaErrorNotReady) return false;
  if (error != cudaSuccess) return runtime_status(error, "Event::is_done");
  return true;
}

Status Event::wait() const {
  return runtime_status(cudaEventSynchronize(event_of(event_)), "Event::wait");
}

}  // namespace kvcache::cuda
