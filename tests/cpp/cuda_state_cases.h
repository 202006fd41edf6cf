// Copies and folds by a Machine, compared with memcpy and with the CPU's fold.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cuda_machine.h"
#include "cuda_values.h"
#include "kvcache/fold.h"

namespace kvcache::cuda::testing {

inline void copies_are_those_of_memcpy(Machine& machine, int rounds) {
  Random random(4);
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const std::size_t count = between(random, 1, 9);
    const std::size_t sizes[] = {16 * between(random, 1, 3000), between(random, 1, 40'000),
                                 std::size_t{16'384} * between(random, 1, 3)};  // whole blocks
    const std::size_t bytes = sizes[below(random, 3)];
    const std::size_t stride = bytes + below(random, 2) * between(random, 0, 33);
    const std::size_t shift = below(random, 2);  // off the 16 bytes of a word
    std::vector<char> from(shift + count * stride);
    for (char& byte : from) byte = static_cast<char>(random());
    std::vector<char> to(from.size(), 7);
    std::vector<std::int32_t> targets(count);
    for (std::size_t i = 0; i < count; ++i) targets[i] = static_cast<std::int32_t>(i);
    std::shuffle(targets.begin(), targets.end(), random);
    std::vector<ItemPair> pairs;
    for (std::size_t i = 0; i < below(random, count + 1); ++i) {
      pairs.push_back({static_cast<std::int32_t>(below(random, count)), targets[i]});
    }
    const std::int32_t ids[] = {-1, INT32_MIN, static_cast<std::int32_t>(count), INT32_MAX};
    std::size_t bad = pairs.size();
    if (!pairs.empty() && below(random, 3) == 0) {
      bad = below(random, pairs.size());
      (below(random, 2) == 0 ? pairs[bad].from : pairs[bad].to) = ids[below(random, 4)];
      ++wrong;
    }
    const Held source(machine, from);
    const Held target(machine, to);
    const Held pairs_at(machine, pairs);
    const Faults faults(machine);
    const auto at = static_cast<std::ptrdiff_t>(shift);
    ASSERT_TRUE(machine.copy_items({source.at(at), count, stride}, {target.at(at), count, stride},
                                   bytes, pairs_at.at<ItemPair>(), pairs.size(), faults.word()));
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (i == bad) continue;
      std::memcpy(&to[shift + static_cast<std::size_t>(pairs[i].to) * stride],
                  &from[shift + static_cast<std::size_t>(pairs[i].from) * stride], bytes);
    }
    ASSERT_EQ(target.bytes(), to);
    const bool good = bad == pairs.size();
    EXPECT_EQ(faults.status().message(),
              good ? "" : "pair " + std::to_string(bad) + ": an id is none of an item");
  }
  EXPECT_GT(wrong, rounds / 20);
}

// States of several sequences in items of their own, and rows of inputs.
struct FoldCase {
  DType dtype = DType::kF32;
  Gate gate_of = Gate::kHead;
  codec::FoldRounding rounding = codec::FoldRounding::kEachRow;
  std::size_t heads, lines, columns, rows, sequences, items, stride;
  std::size_t left_heads = 1;
  std::size_t right_heads = 1;
  std::size_t gates, left_floats, right_floats;  // of a row
  std::vector<char> states;
  std::vector<float> gate, left, right;
  std::vector<std::int32_t> ids, counts;

  explicit FoldCase(Random& random) {
    dtype = kElements[below(random, 3)];
    gate_of = static_cast<Gate>(below(random, 3));
    rounding = static_cast<codec::FoldRounding>(below(random, 2));
    heads = std::size_t{1} << below(random, 3);
    lines = between(random, 1, 6);
    columns = between(random, 1, 70);
    rows = below(random, 7);
    sequences = between(random, 1, 4);
    items = sequences + below(random, 3);
    left_heads = below(random, 2) == 0 ? heads : 1;
    right_heads = below(random, 2) == 0 ? heads : (heads + 1) / 2;
    const std::size_t elements = heads * lines * columns;
    stride = (elements + below(random, 5)) * dtype_bytes(dtype);
    gates = gate_of == Gate::kHead ? heads : gate_of == Gate::kChannel ? heads * lines : elements;
    left_floats = left_heads * lines;
    right_floats = right_heads * columns;
    fill(random);
  }

  void fill(Random& random) {
    std::normal_distribution<float> normal;
    const bool wild = below(random, 3) == 0;
    const auto value = [&] {
      return wild && below(random, 8) == 0 ? special(random) : normal(random);
    };
    states.resize(items * stride);
    for (std::size_t at = 0; at < states.size(); at += dtype_bytes(dtype)) {
      put_element(&states[at], dtype, value());
    }
    for (std::size_t i = 0; i < rows * sequences * gates; ++i) gate.push_back(value());
    for (std::size_t i = 0; i < rows * sequences * left_floats; ++i) left.push_back(value());
    for (std::size_t i = 0; i < rows * sequences * right_floats; ++i) right.push_back(value());
    for (std::size_t i = 0; i < items; ++i) ids.push_back(static_cast<std::int32_t>(i));
    std::shuffle(ids.begin(), ids.end(), random);
    ids.resize(sequences);
    for (std::size_t i = 0; i < sequences; ++i) {
      counts.push_back(static_cast<std::int32_t>(below(random, rows + 3)) - 1);
    }
  }

  codec::FoldState state(char* data) const { return {data, dtype, heads, lines, columns}; }
  // Inputs of one sequence follow each other.
  codec::FoldRows inputs(const float* gates_at, const float* lefts, const float* rights) const {
    return {rows,       gate_of,     gates_at, gates,       lefts,
            left_heads, left_floats, rights,   right_heads, right_floats};
  }

  void fold_by_cpu(std::size_t sequence, std::size_t item, std::size_t count) {
    codec::FoldRows of =
        inputs(gate.data() + sequence * rows * gates, left.data() + sequence * rows * left_floats,
               right.data() + sequence * rows * right_floats);
    of.rows = count;
    ASSERT_TRUE(codec::fold(state(states.data() + item * stride), of, rounding));
  }
};

inline void folds_are_the_cpus(Machine& machine, int rounds) {
  Random random(5);
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    FoldCase c(random);
    const bool by_id = below(random, 3) != 0;
    const bool by_count = below(random, 2) == 0;
    std::vector<std::int32_t> ids = c.ids;
    std::size_t bad = c.sequences;
    if (by_id && c.rows > 0 && below(random, 3) == 0) {
      bad = below(random, c.sequences);
      ids[bad] = below(random, 2) == 0 ? -1 : static_cast<std::int32_t>(c.items);
      ++wrong;
    }
    const Held states(machine, c.states);
    const Held gate(machine, c.gate);
    const Held left(machine, c.left);
    const Held right(machine, c.right);
    const Held ids_at(machine, ids);
    const Held counts(machine, c.counts);
    const Faults faults(machine);
    const FoldBatch batch{.sequences = c.sequences,
                          .ids = by_id ? ids_at.at<std::int32_t>() : nullptr,
                          .items = c.items,
                          .stride = c.stride,
                          .rows = by_count ? counts.at<std::int32_t>() : nullptr,
                          .gate_step = c.rows * c.gates,
                          .left_step = c.rows * c.left_floats,
                          .right_step = c.rows * c.right_floats};
    ASSERT_TRUE(machine.fold(c.state(states.at()),
                             c.inputs(gate.at<float>(), left.at<float>(), right.at<float>()),
                             c.rounding, batch, faults.word()));
    for (std::size_t i = 0; i < c.sequences; ++i) {
      if (i == bad) continue;
      const std::int64_t asked = by_count ? c.counts[i] : static_cast<std::int64_t>(c.rows);
      const auto most = static_cast<std::int64_t>(c.rows);
      const auto count = static_cast<std::size_t>(std::clamp<std::int64_t>(asked, 0, most));
      c.fold_by_cpu(i, by_id ? static_cast<std::size_t>(ids[i]) : i, count);
    }
    ASSERT_TRUE(same_elements(states.bytes(), c.states, c.dtype));
    const bool good = bad == c.sequences;
    EXPECT_EQ(faults.status().message(),
              good ? "" : "sequence " + std::to_string(bad) + ": its id is none of a state");
  }
  EXPECT_GT(wrong, rounds / 20);
}

}  // namespace kvcache::cuda::testing
