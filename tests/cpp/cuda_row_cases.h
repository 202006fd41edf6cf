// Rows in and out of pages by a Machine, compared with the CPU's codec.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cuda_machine.h"
#include "cuda_values.h"
#include "kvcache/codec.h"

namespace kvcache::cuda::testing {

using codec::MutableRowsView;
using codec::RowsView;

// What one row is encoded as, by the CPU.
struct EncodedRow {
  Status status;
  std::vector<std::int8_t> codes;
  float scale = 0;
};

inline EncodedRow encoded_row(Tensor& tensor, std::size_t token, std::size_t head) {
  EncodedRow out{Status::ok(), std::vector<std::int8_t>(tensor.width)};
  const RowsView row{tensor.row(token, head), tensor.dtype, 1, 1, tensor.width, 0, 0};
  out.status = codec::encode_int8(row, out.codes.data(), &out.scale);
  return out;
}

inline void contiguous_int8_is_the_codecs(Machine& machine, int rounds) {
  Random random(1);
  int refused = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const DType element = kElements[below(random, 3)];
    Tensor in(random, element, below(random, 20), between(random, 1, 4), between(random, 1, 300));
    in.fill(random, round % 2 == 0);
    const std::size_t rows = in.tokens * in.heads;
    std::vector<std::int8_t> codes(rows * in.width, 99);
    std::vector<float> scales(rows, -1.0F);
    const Held elements(machine, in.memory);
    const Held held_codes(machine, codes);
    const Held held_scales(machine, scales);
    const Faults faults(machine);
    ASSERT_TRUE(machine.encode_int8(in.view<RowsView>(elements.at()), held_codes.at<std::int8_t>(),
                                    held_scales.at<float>(), faults.word()));
    Status first;
    for (std::size_t i = 0; i < rows; ++i) {
      const EncodedRow row = encoded_row(in, i / in.heads, i % in.heads);
      if (row.status) {
        std::memcpy(&codes[i * in.width], row.codes.data(), in.width);
        scales[i] = row.scale;
      } else if (first) {
        first = Status::non_finite("row ", i, ": an element is not finite after F16 rounding");
      }
    }
    refused += first ? 0 : 1;
    EXPECT_EQ(faults.status().code(), first.code());
    EXPECT_EQ(faults.status().message(), first.message());
    ASSERT_EQ(held_codes.bytes(), Held(machine, codes).bytes());
    ASSERT_EQ(held_scales.bytes(), Held(machine, scales).bytes());
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::int8_t>(random());
    for (float& scale : scales) {
      if (below(random, 3) == 0) scale = special(random);
    }
    Tensor out(random, kElements[below(random, 3)], in.tokens, in.heads, in.width);
    const Held target(machine, out.memory);
    ASSERT_TRUE(machine.decode_int8(Held(machine, codes).at<std::int8_t>(),
                                    Held(machine, scales).at<float>(),
                                    out.view<MutableRowsView>(target.at())));
    codec::decode_int8(codes.data(), scales.data(), out.view<MutableRowsView>(out.memory.data()));
    ASSERT_TRUE(same_elements(target.bytes(), out.memory, out.dtype));
  }
  EXPECT_GT(refused, rounds / 10);
}

// ---- Pages ------------------------------------------------------------------------------------

// Sequences whose tokens lie back to back, with pages of their own in random order.
struct Paged {
  Pages pages;  // `data` is left to the user
  std::size_t sequences = 0;
  std::size_t table_blocks = 0;
  std::size_t tokens = 0;  // padding included
  std::size_t heads = 0;
  std::size_t width = 0;
  std::vector<std::int32_t> blocks;
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> offsets = {0};
  std::vector<char> memory;

  explicit Paged(Random& random)
      : sequences(between(random, 1, 5)),
        table_blocks(between(random, 1, 6)),
        heads(between(random, 1, 4)),
        width(below(random, 2) == 0 ? 4 * between(random, 1, 40) : between(random, 1, 150)) {
    constexpr DType kStored[] = {DType::kI8, DType::kI8, DType::kF16, DType::kBf16, DType::kF32};
    pages.stored = kStored[below(random, 5)];
    pages.block_tokens = static_cast<std::uint32_t>(between(random, 1, 17));
    for (std::size_t i = 0; i < sequences; ++i) {
      const std::size_t most = table_blocks * pages.block_tokens;
      const std::size_t begin = below(random, most);
      first.push_back(static_cast<std::int64_t>(begin));
      offsets.push_back(offsets.back() +
                        static_cast<std::int64_t>(below(random, most - begin + 1)));
    }
    tokens = static_cast<std::size_t>(offsets.back()) + below(random, 3);
    lay_out(random);
    hand_out(random);
  }

  // Scales first, as FORMAT.md has it, and room before, between and behind.
  void lay_out(Random& random) {
    const std::uint64_t rows = pages.block_tokens * heads;
    const std::uint64_t unit = dtype_bytes(pages.stored);
    pages.scales_offset = 4 * below(random, 3);
    pages.rows_offset = pages.scales_offset + (pages.stored == DType::kI8 ? 4 * rows : 0);
    pages.rows_offset += unit * below(random, 3) + (pages.rows_offset % unit);
    pages.items.stride = pages.rows_offset + rows * width * unit + below(random, 9);
    pages.items.stride += 15 - (pages.items.stride + 15) % 16;
    pages.items.count = sequences * table_blocks + below(random, 4);
    memory.resize(pages.items.count * pages.items.stride);
    for (char& byte : memory) byte = static_cast<char>(random());
  }

  void hand_out(Random& random) {
    std::vector<std::int32_t> ids(pages.items.count);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
    std::shuffle(ids.begin(), ids.end(), random);
    blocks.assign(sequences * table_blocks, -1);
    for (std::size_t i = 0; i < sequences; ++i) {
      const std::int64_t count = offsets[i + 1] - offsets[i];
      const auto begin = static_cast<std::size_t>(first[i]) / pages.block_tokens;
      const auto end = static_cast<std::size_t>(first[i] + count - 1) / pages.block_tokens;
      for (std::size_t block = begin; count > 0 && block <= end; ++block) {
        blocks[i * table_blocks + block] = ids[i * table_blocks + block];
      }
    }
  }

  BlockTables tables(const Held& blocks_at, const Held& first_at, const Held& offsets_at) const {
    return {.sequences = sequences,
            .blocks = blocks_at.at<std::int32_t>(),
            .table_blocks = table_blocks,
            .first = first_at.at<std::int64_t>(),
            .offsets = offsets_at.at<std::int64_t>()};
  }
  Pages at(void* data) const {
    Pages out = pages;
    out.items.data = data;
    return out;
  }
  // The sequence of a token, or `sequences` of padding.
  std::size_t sequence_of(std::size_t token) const {
    std::size_t i = 0;
    while (i < sequences && static_cast<std::int64_t>(token) >= offsets[i + 1]) ++i;
    return i;
  }
  // The row of a token, as FORMAT.md and pages.h have it: number in its page, and the page.
  std::pair<std::size_t, char*> place(std::size_t token, std::size_t head) {
    const std::size_t i = sequence_of(token);
    const std::size_t position =
        static_cast<std::size_t>(first[i]) + token - static_cast<std::size_t>(offsets[i]);
    const std::int32_t id = blocks[i * table_blocks + position / pages.block_tokens];
    return {position % pages.block_tokens * heads + head,
            memory.data() + static_cast<std::size_t>(id) * pages.items.stride};
  }
  // One sequence as the CPU's codec takes it. Blocks without a page point nowhere.
  codec::PagedRows cpu_rows(std::size_t sequence, std::vector<std::byte*>& pointers) {
    pointers.clear();
    for (std::size_t i = 0; i < table_blocks; ++i) {
      const std::int32_t id = blocks[sequence * table_blocks + i];
      auto* base = reinterpret_cast<std::byte*>(memory.data());
      pointers.push_back(id < 0 ? nullptr
                                : base + static_cast<std::size_t>(id) * pages.items.stride);
    }
    return {pointers,           pages.stored,
            pages.rows_offset,  pages.scales_offset,
            pages.block_tokens, static_cast<std::size_t>(first[sequence])};
  }
  // The tokens of one sequence of a view of all of them.
  template <typename View>
  View part(View view, std::size_t sequence) const {
    auto* data = reinterpret_cast<const char*>(view.data) + offsets[sequence] * view.token_stride;
    view.data = const_cast<char*>(data);
    view.tokens = static_cast<std::size_t>(offsets[sequence + 1] - offsets[sequence]);
    return view;
  }
};

// Encodes row by row into the pages of `paged`; returns what the fault word should mean.
inline Status scatter_row_by_row(Paged& paged, Tensor& in) {
  Status first;
  for (std::size_t token = 0; token < paged.tokens; ++token) {
    if (paged.sequence_of(token) == paged.sequences) break;
    for (std::size_t head = 0; head < paged.heads; ++head) {
      const EncodedRow row = encoded_row(in, token, head);
      const auto [number, page] = paged.place(token, head);
      if (!row.status) {
        if (first) {
          first = Status::non_finite("row ", token * paged.heads + head,
                                     ": an element is not finite after F16 rounding");
        }
        continue;
      }
      std::memcpy(page + paged.pages.scales_offset + number * sizeof(float), &row.scale,
                  sizeof(float));
      std::memcpy(page + paged.pages.rows_offset + number * paged.width, row.codes.data(),
                  paged.width);
    }
  }
  return first;
}

inline void paged_rows_are_the_codecs(Machine& machine, int rounds) {
  Random random(2);
  int refused = 0;
  std::vector<std::byte*> pointers;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Paged paged(random);
    const bool by_row = paged.pages.stored == DType::kI8 && round % 3 == 0;
    Tensor in(random, kElements[below(random, 3)], paged.tokens, paged.heads, paged.width);
    in.fill(random, by_row || paged.pages.stored != DType::kI8);
    const Held blocks(machine, paged.blocks);
    const Held first(machine, paged.first);
    const Held offsets(machine, paged.offsets);
    const BlockTables tables = paged.tables(blocks, first, offsets);
    const Held pages(machine, paged.memory);
    const Held elements(machine, in.memory);
    const Faults faults(machine);
    ASSERT_TRUE(machine.scatter(in.view<RowsView>(elements.at()), paged.at(pages.at()), tables,
                                faults.word()));
    Status expected;
    if (by_row) {
      expected = scatter_row_by_row(paged, in);
      refused += expected ? 0 : 1;
    } else {
      for (std::size_t i = 0; i < paged.sequences; ++i) {
        const auto view = paged.part(in.view<RowsView>(in.memory.data()), i);
        ASSERT_TRUE(codec::scatter(view, paged.cpu_rows(i, pointers)));
      }
    }
    EXPECT_EQ(faults.status().message(), expected.message());
    ASSERT_EQ(pages.bytes(), paged.memory);

    Tensor out(random, kElements[below(random, 3)], paged.tokens, paged.heads, paged.width);
    const Held target(machine, out.memory);
    const Faults none(machine);
    ASSERT_TRUE(machine.gather(paged.at(pages.at()), tables, out.view<MutableRowsView>(target.at()),
                               none.word()));
    EXPECT_TRUE(none.status());
    for (std::size_t i = 0; i < paged.sequences; ++i) {
      const auto view = paged.part(out.view<MutableRowsView>(out.memory.data()), i);
      ASSERT_TRUE(codec::gather(paged.cpu_rows(i, pointers), view));
    }
    if (paged.pages.stored == DType::kI8) {
      ASSERT_TRUE(same_elements(target.bytes(), out.memory, out.dtype));
    } else {
      ASSERT_EQ(target.bytes(), out.memory);
    }
  }
  EXPECT_GT(refused, rounds / 20);
}

// Device memory may hold anything: what has no page is skipped and named, all else is done.
inline void a_wrong_table_is_a_fault_of_its_rows(Machine& machine, int rounds) {
  Random random(3);
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Paged paged(random);
    Tensor out(random, kElements[below(random, 3)], paged.tokens, paged.heads, paged.width);
    std::vector<std::int32_t> blocks = paged.blocks;
    std::vector<std::int64_t> first = paged.first;
    const std::size_t victim = below(random, paged.sequences);
    const std::size_t kind = below(random, 4);
    const std::int32_t ids[] = {-1, INT32_MIN, static_cast<std::int32_t>(paged.pages.items.count)};
    if (kind < 3) {
      for (std::size_t i = 0; i < paged.table_blocks; ++i) {
        blocks[victim * paged.table_blocks + i] = ids[kind];
      }
    } else {
      constexpr std::int64_t kFirst[] = {INT64_MAX, INT64_MIN, -100'000, 100'000};
      first[victim] = kFirst[below(random, 4)];
    }
    const Held blocks_at(machine, blocks);
    const Held first_at(machine, first);
    const Held offsets_at(machine, paged.offsets);
    const Held pages(machine, paged.memory);
    const Held target(machine, out.memory);
    const Faults faults(machine);
    ASSERT_TRUE(machine.gather(paged.at(pages.at()), paged.tables(blocks_at, first_at, offsets_at),
                               out.view<MutableRowsView>(target.at()), faults.word()));
    const auto begin = static_cast<std::size_t>(paged.offsets[victim]);
    const bool any = paged.offsets[victim + 1] > paged.offsets[victim];
    wrong += any ? 1 : 0;
    EXPECT_EQ(faults.status().code(), any ? StatusCode::kInvalidArgument : StatusCode::kOk);
    if (any) {
      const std::string row = "row " + std::to_string(begin * paged.heads) + ": ";
      EXPECT_EQ(faults.status().message().substr(0, row.size()), row);
    }
    std::vector<std::byte*> pointers;
    for (std::size_t i = 0; i < paged.sequences; ++i) {
      if (i == victim) continue;
      const auto view = paged.part(out.view<MutableRowsView>(out.memory.data()), i);
      ASSERT_TRUE(codec::gather(paged.cpu_rows(i, pointers), view));
    }
    ASSERT_TRUE(same_elements(target.bytes(), out.memory, out.dtype));
  }
  EXPECT_GT(wrong, rounds / 2);
}

}  // namespace kvcache::cuda::testing
