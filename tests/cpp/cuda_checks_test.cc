// What calls of kvcache/cuda.h are refused for before anything is launched, and what answers where
// no device does.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/grids.h"
#include "cuda_values.h"

namespace kvcache::cuda::testing {
namespace {

using codec::MutableRowsView;
using codec::RowsView;
using Wide = __int128;

// Room for addresses; nothing is read or written.
alignas(256) char memory[4096];
alignas(8) FaultWord word = kNoFault;

std::uint64_t hostile(Random& random) {
  constexpr std::uint64_t kEdges[] = {
      0,      1,         2,          3,          4,          16,        128,        65'535,
      65'536, INT32_MAX, 1ULL << 31, UINT32_MAX, 1ULL << 32, INT64_MAX, 1ULL << 63, UINT64_MAX};
  const std::uint64_t shift = below(random, 64);
  switch (below(random, 4)) {
    case 0:
      return kEdges[below(random, std::size(kEdges))];
    case 1:
      return (std::uint64_t{random()} << 32 | random()) >> shift;
    default:
      return between(random, 1, 300);
  }
}

std::int64_t hostile_stride(Random& random) {
  const auto stride = static_cast<std::int64_t>(hostile(random));
  return below(random, 2) == 0 ? stride & ~std::int64_t{15} : stride;
}

void* hostile_address(Random& random) {
  if (below(random, 30) == 0) return nullptr;
  return memory + (below(random, 8) == 0 ? below(random, 16) : 16 * below(random, 16));
}

void expect_fits(Wide extent) { EXPECT_LE(extent, Wide{INT64_MAX}); }

// The bits that an address and its strides must not have below their alignment.
std::uint64_t low_bits(const RowsView& view) {
  return reinterpret_cast<std::uintptr_t>(view.data) |
         static_cast<std::uint64_t>(view.token_stride) |
         static_cast<std::uint64_t>(view.head_stride);
}

void expect_rows_fit(const RowGrid& grid, const RowsView& view, std::uint64_t stored_bytes) {
  const Wide tokens = view.tokens, heads = view.heads, width = view.width;
  const Wide token = view.token_stride, head = view.head_stride;
  const std::uint64_t bytes = dtype_bytes(view.dtype);
  expect_fits((token < 0 ? -token : token) * (tokens - 1) +
              (head < 0 ? -head : head) * (heads - 1) + width * bytes);
  EXPECT_EQ(low_bits(view) % bytes, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(grid.packed) % stored_bytes, 0U);
  EXPECT_EQ(grid.rows(), view.tokens * view.heads);
  EXPECT_GE(Wide{blocks_of(grid)} * kRowsOfBlock, tokens * heads);
  EXPECT_EQ(grid.row_bytes, view.width * stored_bytes);
}

RowsView hostile_rows(Random& random) {
  const DType dtype =
      below(random, 12) == 0 ? static_cast<DType>(below(random, 9)) : kElements[below(random, 3)];
  return {hostile_address(random), dtype,           hostile(random),
          hostile(random),         hostile(random), hostile_stride(random),
          hostile_stride(random)};
}

TEST(CudaChecks, WhatIsTakenFitsTheAddressSpaceAndItsPages) {
  Random random(6);
  int taken = 0;
  for (int round = 0; round < 200'000; ++round) {
    const RowsView view = hostile_rows(random);
    constexpr DType kStored[] = {DType::kI8, DType::kF16, DType::kF32, DType::kU64};
    Pages pages{.items = {hostile_address(random), hostile(random), hostile(random)},
                .stored = kStored[below(random, 4)],
                .block_tokens = static_cast<std::uint32_t>(hostile(random)),
                .rows_offset = hostile(random) & ~std::uint64_t{3},
                .scales_offset = hostile(random) & ~std::uint64_t{3}};
    if (below(random, 2) == 0) pages.items.stride = 4096 * between(random, 1, 1000);
    const BlockTables tables{.sequences = hostile(random),
                             .blocks = static_cast<std::int32_t*>(hostile_address(random)),
                             .table_blocks = hostile(random),
                             .first = static_cast<std::int64_t*>(hostile_address(random)),
                             .offsets = static_cast<std::int64_t*>(hostile_address(random))};
    const auto grid = scatter_grid(view, pages, tables, &word);
    if (!grid) {
      EXPECT_EQ(grid.status().code(), StatusCode::kInvalidArgument);
      continue;
    }
    if (blocks_of(*grid) == 0) {
      EXPECT_TRUE(view.tokens == 0 || view.heads == 0 || view.width == 0);
      continue;
    }
    ++taken;
    const std::uint64_t bytes = dtype_bytes(pages.stored);
    expect_rows_fit(*grid, view, bytes);
    const Wide rows = Wide{pages.block_tokens} * view.heads;
    EXPECT_LE(rows * view.width * bytes + pages.rows_offset, Wide{pages.items.stride});
    if (pages.stored == DType::kI8) {
      EXPECT_LE(rows * 4 + pages.scales_offset, Wide{pages.items.stride});
    }
    EXPECT_LE(pages.items.count, std::uint64_t{INT32_MAX});
    expect_fits(Wide{pages.items.count} * pages.items.stride);
    expect_fits(Wide{tables.sequences} * tables.table_blocks * 4);
    expect_fits((Wide{tables.sequences} + 1) * 8);
  }
  EXPECT_GT(taken, 100);
}

TEST(CudaChecks, CopiesThatAreTakenStayInTheirItems) {
  Random random(7);
  int taken = 0;
  for (int round = 0; round < 50'000; ++round) {
    const Items from{hostile_address(random), hostile(random), hostile(random)};
    const Items to{hostile_address(random), hostile(random), hostile(random)};
    const std::uint64_t bytes = hostile(random);
    const std::uint64_t count = hostile(random);
    const auto* pairs = static_cast<ItemPair*>(hostile_address(random));
    const auto grid = copy_grid(from, to, bytes, pairs, count, &word);
    if (!grid) {
      EXPECT_EQ(grid.status().code(), StatusCode::kInvalidArgument);
      continue;
    }
    if (blocks_of(*grid) == 0) {
      EXPECT_TRUE(count == 0 || bytes == 0);
      continue;
    }
    ++taken;
    for (const Items& items : {from, to}) {
      EXPECT_LE(bytes, items.stride);
      EXPECT_LE(items.count, std::uint64_t{INT32_MAX});
      expect_fits(Wide{items.count} * items.stride);
    }
    EXPECT_GE(Wide{grid->blocks_of_pair} * kCopyBlockBytes, Wide{bytes});
    EXPECT_EQ(Wide{blocks_of(*grid)}, Wide{count} * grid->blocks_of_pair);
  }
  EXPECT_GT(taken, 100);
}

TEST(CudaChecks, FoldsThatAreTakenStayInTheirItemsAndInputs) {
  Random random(8);
  int taken = 0;
  for (int round = 0; round < 200'000; ++round) {
    const codec::FoldState state{hostile_address(random), kElements[below(random, 3)],
                                 hostile(random), hostile(random), hostile(random)};
    codec::FoldRows rows;
    rows.rows = hostile(random);
    rows.gate_of = static_cast<Gate>(below(random, 3));
    rows.gate = static_cast<float*>(hostile_address(random));
    rows.left = static_cast<float*>(hostile_address(random));
    rows.right = static_cast<float*>(hostile_address(random));
    rows.left_heads = below(random, 2) == 0 ? state.heads : hostile(random);
    rows.gate_stride = hostile(random);
    rows.left_stride = hostile(random);
    rows.right_stride = hostile(random);
    const FoldBatch batch{.sequences = hostile(random),
                          .ids = reinterpret_cast<std::int32_t*>(memory),
                          .items = hostile(random),
                          .stride = hostile(random) << below(random, 8),
                          .gate_step = hostile(random)};
    const auto grid = fold_grid(state, rows, batch, &word);
    if (!grid) {
      EXPECT_EQ(grid.status().code(), StatusCode::kInvalidArgument);
      continue;
    }
    if (blocks_of(*grid) == 0) continue;
    ++taken;
    const Wide elements = Wide{state.heads} * state.lines * state.columns;
    EXPECT_EQ(Wide{grid->elements}, elements);
    EXPECT_LE(batch.sequences, 65'535U);
    const Wide bytes = elements * dtype_bytes(state.dtype);
    expect_fits(bytes);
    if (batch.items > 1) {
      EXPECT_LE(bytes, Wide{batch.stride});
      expect_fits(Wide{batch.items} * batch.stride);
    }
    const Wide gates = rows.gate_of == Gate::kHead      ? Wide{state.heads}
                       : rows.gate_of == Gate::kChannel ? Wide{state.heads} * state.lines
                                                        : elements;
    expect_fits(4 * (gates + Wide{rows.rows - 1} * rows.gate_stride +
                     Wide{batch.sequences - 1} * batch.gate_step));
    expect_fits(4 * (Wide{rows.left_heads} * state.lines + Wide{rows.rows - 1} * rows.left_stride));
  }
  EXPECT_GT(taken, 100);
}

// One call that is right but for one thing.
struct Scatter {
  RowsView in{memory, DType::kF16, 4, 2, 8, 32, 16};
  Pages pages{{memory, 4, 256}, DType::kI8, 4, 32, 0};
  std::vector<std::int32_t> blocks = {0, 3};
  std::vector<std::int64_t> first = {2};
  std::vector<std::int64_t> offsets = {0, 4};
  FaultWord* faults = &word;

  Status status() const {
    const BlockTables tables{.sequences = first.size(),
                             .blocks = blocks.data(),
                             .table_blocks = blocks.size() / first.size(),
                             .first = first.data(),
                             .offsets = offsets.data(),
                             .host_visible = true};
    return scatter_grid(in, pages, tables, faults).status();
  }
};

void expect_refused(const Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
}

TEST(CudaChecks, ARefusalSaysWhat) {
  ASSERT_TRUE(Scatter().status());
  const auto refused = [](const std::string& text, const auto& change) {
    Scatter call;
    change(call);
    expect_refused(call.status(), text);
  };
  refused("rows of u8", [](Scatter& c) { c.in.dtype = DType::kU8; });
  refused("pages of u64", [](Scatter& c) { c.pages.stored = DType::kU64; });
  refused("not aligned to elements of 2 bytes", [](Scatter& c) { c.in.data = memory + 1; });
  refused("strides of 33 and 16", [](Scatter& c) { c.in.token_stride = 33; });
  refused("do not fit the address space", [](Scatter& c) { c.in.token_stride = INT64_MAX - 1; });
  refused("too short for [4, 2, 8] of i8 at 32", [](Scatter& c) { c.pages.items.stride = 92; });
  refused("and scales at 240", [](Scatter& c) { c.pages.scales_offset = 240; });
  refused("scales at 32 and rows at 32", [](Scatter& c) { c.pages.scales_offset = 32; });
  refused("to scales", [](Scatter& c) { c.pages.items.data = memory + 2; });
  refused("no fault word", [](Scatter& c) { c.faults = nullptr; });
  refused("the pages have no address", [](Scatter& c) { c.pages.items.data = nullptr; });
  refused("split the call", [](Scatter& c) {
    c.in.tokens = std::size_t{1} << 40;
    c.in.token_stride = 0;
  });
}

TEST(CudaChecks, TablesThatTheHostSeesAreRefusedByTheirSequence) {
  const auto refused = [](const std::string& text, const auto& change) {
    Scatter call;
    change(call);
    expect_refused(call.status(), text);
  };
  refused("block 1 has id 4, of no page", [](Scatter& c) { c.blocks[1] = 4; });
  refused("block 0 has id -1, of no page", [](Scatter& c) { c.blocks[0] = -1; });
  refused("sequence 0: 4 tokens from position 5 on", [](Scatter& c) { c.first[0] = 5; });
  refused("from position -1 on", [](Scatter& c) { c.first[0] = -1; });
  refused("from position 9223372036854775807", [](Scatter& c) { c.first[0] = INT64_MAX; });
  refused("offsets begin at 1", [](Scatter& c) { c.offsets[0] = 1; });
  refused("its tokens are 0 to 5 of 4", [](Scatter& c) { c.offsets[1] = 5; });
  refused("its tokens are 0 to -1 of 4", [](Scatter& c) { c.offsets[1] = -1; });
  Scatter holes;
  holes.blocks = {-1, 2, -7};
  holes.first = {4};
  EXPECT_TRUE(holes.status());  // no token is where the holes are
}

TEST(CudaChecks, AMoveIsRefusedByItsPair) {
  const Items items{memory, 4, 64};
  const std::vector<ItemPair> good = {{0, 1}, {3, 2}};
  EXPECT_TRUE(check_move(items, items, 64, good));
  const std::vector<ItemPair> bad = {{0, 1}, {4, 2}};
  expect_refused(check_move(items, items, 64, bad), "pair 1 is from 4 of 4 items to 2");
  expect_refused(check_move(items, items, 65, good), "items of 64 bytes hold no 65");
}

TEST(CudaChecks, NeighboursMoveTogetherWhereOrderDoesNotMatter) {
  const Items items{memory, 9, 64};
  const auto run = [&](std::vector<ItemPair> pairs, const Items& to, std::uint64_t bytes = 64) {
    return run_of_moves(items, to, bytes, pairs);
  };
  EXPECT_EQ(run({{0, 3}, {1, 4}, {2, 5}, {7, 6}}, items), 3U);
  EXPECT_EQ(run({{6, 1}, {7, 2}}, items), 2U);
  EXPECT_EQ(run({{0, 1}, {1, 2}, {2, 3}}, items), 1U) << "the second reads what the first wrote";
  EXPECT_EQ(run({{1, 0}, {2, 1}, {3, 2}}, items), 1U) << "and the second writes what it read";
  EXPECT_EQ(run({{0, 2}, {1, 3}, {2, 4}}, items), 2U);
  const Items elsewhere{memory + 9 * 64, 9, 64};
  EXPECT_EQ(run({{0, 1}, {1, 2}, {2, 3}}, elsewhere), 3U);
  const Items wide{memory + 9 * 64, 9, std::uint64_t{1} << 31};
  EXPECT_EQ(run({{0, 1}, {1, 2}}, wide), 1U) << "more than a strided copy strides";
}

TEST(CudaChecks, AFaultWordSaysTheFirstRow) {
  FaultWord faults = kNoFault;
  EXPECT_TRUE(fault_status(faults));
  raise_fault(&faults, 9, Fault::kNoPage);
  raise_fault(&faults, 7, Fault::kNonFinite);
  raise_fault(&faults, 8, Fault::kNoPage);
  EXPECT_EQ(fault_status(faults).code(), StatusCode::kNonFinite);
  EXPECT_EQ(fault_status(faults).message(), "row 7: an element is not finite after F16 rounding");
}

// ---- Without a device -------------------------------------------------------------------------

TEST(Cuda, EveryCallSaysWhyThereIsNoDevice) {
  const Status why = availability();
  if (why) GTEST_SKIP() << "there is a device";
  EXPECT_FALSE(available());
  EXPECT_EQ(why.code(), StatusCode::kUnsupported);
  const Scatter c;
  const BlockTables tables{.blocks = c.blocks.data(),
                           .table_blocks = 2,
                           .first = c.first.data(),
                           .offsets = c.offsets.data()};
  const MutableRowsView out{memory, DType::kF16, 4, 2, 8, 32, 16};
  auto* codes = reinterpret_cast<std::int8_t*>(memory);
  auto* floats = reinterpret_cast<float*>(memory);
  const ItemPair pair{0, 1};
  const codec::FoldState state{memory, DType::kF32, 1, 4, 4};
  const codec::FoldRows rows{.rows = 1, .gate = floats, .left = floats, .right = floats};
  const Status answers[] = {
      clear_faults(&word, nullptr),
      check_faults(&word, nullptr),
      encode_int8(c.in, codes, floats, &word, nullptr),
      decode_int8(codes, floats, out, nullptr),
      scatter(c.in, c.pages, tables, &word, nullptr),
      gather(c.pages, tables, out, &word, nullptr),
      copy_items(c.pages.items, c.pages.items, 64, &pair, 1, &word, nullptr),
      move_items(c.pages.items, c.pages.items, 64, {&pair, 1}, nullptr),
      fold(state, rows, codec::FoldRounding::kOnce, {}, nullptr, nullptr),
      PinnedMemory::create(memory, sizeof memory).status(),
      Event::create().status(),
  };
  for (const Status& answer : answers) {
    EXPECT_EQ(answer.code(), StatusCode::kUnsupported) << answer.message();
    EXPECT_FALSE(answer.message().empty());
  }
}

}  // namespace
}  // namespace kvcache::cuda::testing
