// The calls of kvcache/cuda.h that launch kernels: from arguments to a grid, and off it goes.
#include "cuda/grids.h"
#include "cuda/launch.h"
#include "cuda/runtime.h"

namespace kvcache::cuda {

Status encode_int8(const codec::RowsView& in, std::int8_t* codes, float* scales, FaultWord* faults,
                   Stream stream) {
  const Result<RowGrid> grid = encode_grid(in, codes, scales, faults);
  if (!grid || blocks_of(*grid) == 0) return grid.status();
  return runtime_status(launch_encode(*grid, DType::kI8, in.dtype, stream_of(stream)),
                        "encode_int8");
}

Status decode_int8(const std::int8_t* codes, const float* scales, const codec::MutableRowsView& out,
                   Stream stream) {
  const Result<RowGrid> grid = decode_grid(codes, scales, out);
  if (!grid || blocks_of(*grid) == 0) return grid.status();
  return runtime_status(launch_decode(*grid, DType::kI8, out.dtype, stream_of(stream)),
                        "decode_int8");
}

Status scatter(const codec::RowsView& in, const Pages& to, const BlockTables& at, FaultWord* faults,
               Stream stream) {
  const Result<RowGrid> grid = scatter_grid(in, to, at, faults);
  if (!grid || blocks_of(*grid) == 0) return grid.status();
  return runtime_status(launch_encode(*grid, to.stored, in.dtype, stream_of(stream)), "scatter");
}

Status gather(const Pages& from, const BlockTables& at, const codec::MutableRowsView& out,
              FaultWord* faults, Stream stream) {
  const Result<RowGrid> grid = gather_grid(from, at, out, faults);
  if (!grid || blocks_of(*grid) == 0) return grid.status();
  return runtime_status(launch_decode(*grid, from.stored, out.dtype, stream_of(stream)), "gather");
}

Status copy_items(const Items& from, const Items& to, std::uint64_t bytes, const ItemPair* pairs,
                  std::size_t count, FaultWord* faults, Stream stream) {
  const Result<CopyGrid> grid = copy_grid(from, to, bytes, pairs, count, faults);
  if (!grid || blocks_of(*grid) == 0) return grid.status();
  return runtime_status(launch_copy(*grid, stream_of(stream)), "copy_items");
}

Status fold(const codec::FoldState& state, const codec::FoldRows& rows,
            codec::FoldRounding rounding, const FoldBatch& batch, FaultWord* faults,
            Stream stream) {
  const Result<FoldGrid> grid = fold_grid(state, rows, batch, faults);
  if (!grid || blocks_of(*grid) == 0) return grid.status();
  const bool once = rounding == codec::FoldRounding::kOnce;
  return runtime_status(launch_fold(*grid, state.dtype, rows.gate_of, once, stream_of(stream)),
                        "fold");
}

}  // namespace kvcache::cuda
