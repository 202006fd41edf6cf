// What answers in a build without kernels: the same calls, all refused alike.
#include "kvcache/cuda.h"

namespace kvcache::cuda {

Status availability() {
  return Status::unsupported(
      "this build of kvcache has no CUDA kernels; configure it with -DKVCACHE_CUDA=ON, where a "
      "CUDA toolkit with nvcc is installed");
}

Status clear_faults(FaultWord*, Stream) { return availability(); }
Status check_faults(const FaultWord*, Stream) { return availability(); }

Status encode_int8(const codec::RowsView&, std::int8_t*, float*, FaultWord*, Stream) {
  return availability();
}
Status decode_int8(const std::int8_t*, const float*, const codec::MutableRowsView&, Stream) {
  return availability();
}
Status scatter(const codec::RowsView&, const Pages&, const BlockTables&, FaultWord*, Stream) {
  return availability();
}
Status gather(const Pages&, const BlockTables&, const codec::MutableRowsView&, FaultWord*, Stream) {
  return availability();
}
Status copy_items(const Items&, const Items&, std::uint64_t, const ItemPair*, std::size_t,
                  FaultWord*, Stream) {
  return availability();
}
Status move_items(const Items&, const Items&, std::uint64_t, std::span<const ItemPair>, Stream) {
  return availability();
}
Status fold(const codec::FoldState&, const codec::FoldRows&, codec::FoldRounding, const FoldBatch&,
            FaultWord*, Stream) {
  return availability();
}

Result<PinnedMemory> PinnedMemory::create(void*, std::uint64_t, std::shared_ptr<void>) {
  return availability();
}
Result<Event> Event::create() { return availability(); }
Status Event::record(Stream) { return availability(); }
Status Event::block(Stream) const { return availability(); }
Result<bool> Event::is_done() const { return availability(); }
Status Event::wait() const { return availability(); }

}  // namespace kvcache::cuda
