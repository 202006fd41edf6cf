// The kernels on a simulated grid: what each thread does is the very function that a device runs.
#include <algorithm>
#include <new>

#include "cuda/grids.h"
#include "cuda_row_cases.h"
#include "cuda_state_cases.h"

namespace kvcache::cuda::testing {
namespace {

// Calls body with a DType as a constant.
template <typename Body>
void with_element(DType dtype, const Body& body) {
  if (dtype == DType::kF32) return body.template operator()<DType::kF32>();
  if (dtype == DType::kF16) return body.template operator()<DType::kF16>();
  ASSERT_EQ(dtype, DType::kBf16);
  body.template operator()<DType::kBf16>();
}

template <typename Body>
void with_stored(DType dtype, const Body& body) {
  if (dtype == DType::kI8) return body.template operator()<DType::kI8>();
  with_element(dtype, body);
}

// One block of rows.cu after the other, the last one first: order must not matter.
template <typename Warp>
void for_each_warp(const RowGrid& grid, const Warp& warp) {
  for (std::uint64_t block = blocks_of(grid); block-- > 0;) {
    for (unsigned first = 0; first < kRowThreads; first += kLanes) warp(block, first);
  }
}

void run_encode(const RowGrid& grid, DType stored, DType element) {
  with_element(element, [&]<DType kElement> {
    for_each_warp(grid, [&](std::uint64_t block, unsigned first) {
      if (stored == DType::kI8) {
        std::uint32_t largest = 0;  // as __reduce_max_sync() finds it
        for (unsigned i = first; i < first + kLanes; ++i) {
          const RowPlace place = row_place(grid, block, i);
          largest = std::max(largest, lane_magnitude<kElement>(grid, place, i));
        }
        for (unsigned i = first; i < first + kLanes; ++i) {
          encode_int8_lane<kElement>(grid, row_place(grid, block, i), i, largest);
        }
        return;
      }
      with_element(stored, [&]<DType kStored> {
        for (unsigned i = first; i < first + kLanes; ++i) {
          encode_plain_lane<kStored, kElement>(grid, row_place(grid, block, i), i);
        }
      });
    });
  });
}

void run_decode(const RowGrid& grid, DType stored, DType element) {
  with_stored(stored, [&]<DType kStored> {
    with_element(element, [&]<DType kElement> {
      for_each_warp(grid, [&](std::uint64_t block, unsigned first) {
        for (unsigned i = first; i < first + kLanes; ++i) {
          decode_lane<kStored, kElement>(grid, row_place(grid, block, i), i);
        }
      });
    });
  });
}

template <DType kStored, Gate kGate, bool kOnce>
void run_fold(const FoldGrid& grid) {
  for (std::uint64_t sequence = grid.sequences; sequence-- > 0;) {
    for (std::uint64_t block = blocks_of(grid); block-- > 0;) {
      for (unsigned i = 0; i < kFoldThreads; ++i) {
        fold_thread<kStored, kGate, kOnce>(grid, block, sequence, i);
      }
    }
  }
}

template <DType kStored, Gate kGate>
void run_fold(const FoldGrid& grid, bool once) {
  return once ? run_fold<kStored, kGate, true>(grid) : run_fold<kStored, kGate, false>(grid);
}

class SimulatedGrid : public Machine {
 public:
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    // To the byte, so that AddressSanitizer sees what a kernel touches beyond.
    return {::operator new(bytes, std::align_val_t{256}),
            [](void* at) { ::operator delete(at, std::align_val_t{256}); }};
  }
  void write(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void read(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }

  Status encode_int8(const RowsView& in, std::int8_t* codes, float* scales,
                     FaultWord* faults) override {
    const auto grid = encode_grid(in, codes, scales, faults);
    if (grid) run_encode(*grid, DType::kI8, in.dtype);
    return grid.status();
  }
  Status decode_int8(const std::int8_t* codes, const float* scales,
                     const MutableRowsView& out) override {
    const auto grid = decode_grid(codes, scales, out);
    if (grid) run_decode(*grid, DType::kI8, out.dtype);
    return grid.status();
  }
  Status scatter(const RowsView& in, const Pages& to, const BlockTables& at,
                 FaultWord* faults) override {
    const auto grid = scatter_grid(in, to, at, faults);
    if (grid) run_encode(*grid, to.stored, in.dtype);
    return grid.status();
  }
  Status gather(const Pages& from, const BlockTables& at, const MutableRowsView& out,
                FaultWord* faults) override {
    const auto grid = gather_grid(from, at, out, faults);
    if (grid) run_decode(*grid, from.stored, out.dtype);
    return grid.status();
  }
  Status copy_items(const Items& from, const Items& to, std::uint64_t bytes, const ItemPair* pairs,
                    std::size_t count, FaultWord* faults) override {
    const auto grid = copy_grid(from, to, bytes, pairs, count, faults);
    if (!grid) return grid.status();
    for (std::uint64_t block = blocks_of(*grid); block-- > 0;) {
      for (unsigned i = 0; i < kCopyThreads; ++i) copy_thread(*grid, block, i);
    }
    return Status::ok();
  }
  Status fold(const codec::FoldState& state, const codec::FoldRows& rows,
              codec::FoldRounding rounding, const FoldBatch& batch, FaultWord* faults) override {
    const auto grid = fold_grid(state, rows, batch, faults);
    if (!grid) return grid.status();
    const bool once = rounding == codec::FoldRounding::kOnce;
    with_element(state.dtype, [&]<DType kStored> {
      if (rows.gate_of == Gate::kHead) return run_fold<kStored, Gate::kHead>(*grid, once);
      if (rows.gate_of == Gate::kChannel) return run_fold<kStored, Gate::kChannel>(*grid, once);
      run_fold<kStored, Gate::kElement>(*grid, once);
    });
    return Status::ok();
  }
};

TEST(CudaGrid, ContiguousInt8IsTheCodecs) {
  SimulatedGrid grid;
  contiguous_int8_is_the_codecs(grid, 600);
}

TEST(CudaGrid, PagedRowsAreTheCodecs) {
  SimulatedGrid grid;
  paged_rows_are_the_codecs(grid, 900);
}

TEST(CudaGrid, AWrongTableIsAFaultOfItsRows) {
  SimulatedGrid grid;
  a_wrong_table_is_a_fault_of_its_rows(grid, 600);
}

TEST(CudaGrid, CopiesAreThoseOfMemcpy) {
  SimulatedGrid grid;
  copies_are_those_of_memcpy(grid, 400);
}

TEST(CudaGrid, FoldsAreTheCpus) {
  SimulatedGrid grid;
  folds_are_the_cpus(grid, 1500);
}

}  // namespace
}  // namespace kvcache::cuda::testing
