// From the arguments of kvcache/cuda.h to grids: everything that can be refused before a launch is
// refused here. Needs no CUDA. A grid without blocks has nothing to do.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/copy_grid.h"
#include "cuda/fold_grid.h"
#include "cuda/row_grid.h"
#include "kvcache/cuda.h"

namespace kvcache::cuda {

// All fail as the calls that they are for.
Result<RowGrid> encode_grid(const codec::RowsView& in, std::int8_t* codes, float* scales,
                            FaultWord* faults);
Result<RowGrid> decode_grid(const std::int8_t* codes, const float* scales,
                            const codec::MutableRowsView& out);
Result<RowGrid> scatter_grid(const codec::RowsView& in, const Pages& to, const BlockTables& at,
                             FaultWord* faults);
Result<RowGrid> gather_grid(const Pages& from, const BlockTables& at,
                            const codec::MutableRowsView& out, FaultWord* faults);
Result<CopyGrid> copy_grid(const Items& from, const Items& to, std::uint64_t bytes,
                           const ItemPair* pairs, std::size_t count, FaultWord* faults);
Result<FoldGrid> fold_grid(const codec::FoldState& state, const codec::FoldRows& rows,
                           const FoldBatch& batch, FaultWord* faults);
Status check_move(const Items& from, const Items& to, std::uint64_t bytes,
                  std::span<const ItemPair> pairs);
// How many of the pairs, from the first on, one strided copy may move: neighbours on both sides
// that lie apart from their targets, for such a copy has no order. REQUIRES: check_move().
std::size_t run_of_moves(const Items& from, const Items& to, std::uint64_t bytes,
                         std::span<const ItemPair> pairs);

// All fit a launch. A fold has as many for each of its sequences.
std::uint32_t blocks_of(const RowGrid& grid);
std::uint32_t blocks_of(const CopyGrid& grid);
std::uint32_t blocks_of(const FoldGrid& grid);

}  // namespace kvcache::cuda
