#include "kvcache/fold.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "codec_rows.h"

namespace kvcache::codec::testing {
namespace {

constexpr FoldGate kGates[] = {kGateHead, kGateChannel, kGateElement};
constexpr Element kElements[] = {kElementF32, kElementF16, kElementBf16};

float widened(const char* at, Element element) {
  float value = 0;
  std::uint16_t bits = 0;
  std::memcpy(element == kElementF32 ? static_cast<void*>(&value) : &bits, at, bytes_of(element));
  if (element == kElementF16) return f32_from_f16(bits);
  return element == kElementBf16 ? f32_from_bf16(bits) : value;
}

void narrow(char* at, Element element, float value) {
  const std::uint16_t bits = element == kElementF16 ? f16_from_f32(value) : bf16_from_f32(value);
  std::memcpy(at, element == kElementF32 ? static_cast<const void*>(&value) : &bits,
              bytes_of(element));
}

// A state and rows of inputs for it.
struct Case {
  Element element = kElementF32;
  FoldGate gate_of = kGateHead;
  std::size_t heads, lines, columns, rows;
  std::size_t left_group = 1;
  std::size_t right_group = 1;
  std::vector<char> state;
  std::vector<float> gate, left, right;

  std::size_t elements() const { return heads * lines * columns; }
  std::size_t gates() const {
    return gate_of == kGateHead ? heads : gate_of == kGateChannel ? heads * lines : elements();
  }

  void fill(std::mt19937& random, bool wild) {
    std::uniform_real_distribution<float> gates_of(0.5F, 1.0F);
    std::normal_distribution<float> normal;
    const float special[] = {0.0F,
                             -0.0F,
                             0x1p-149F,
                             -0x1p-130F,
                             65504.0F,
                             3e38F,
                             std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()};
    const auto value = [&] {
      return wild && random() % 8 == 0 ? special[random() % 9] : normal(random);
    };
    state.resize(elements() * bytes_of(element));
    for (std::size_t i = 0; i < elements(); ++i) {
      narrow(state.data() + i * bytes_of(element), element, value());
    }
    gate.resize(rows * this->gates());
    left.resize(rows * heads / left_group * lines);
    right.resize(rows * heads / right_group * columns);
    for (float& x : gate) x = wild && random() % 16 == 0 ? value() : gates_of(random);
    for (float& x : left) x = value();
    for (float& x : right) x = value();
  }

  FoldJob job(std::vector<char>& target, std::size_t first_row, std::size_t count) const {
    const std::size_t left_stride = heads / left_group * lines;
    const std::size_t right_stride = heads / right_group * columns;
    return {target.data(),
            0,
            heads * lines,
            lines,
            columns,
            count,
            gate.data() + first_row * gates(),
            gates(),
            left.data() + first_row * left_stride,
            left_stride,
            left_group,
            right.data() + first_row * right_stride,
            right_stride,
            right_group};
  }

  std::vector<char> folded(const Kernels& kernels, bool once) const {
    std::vector<char> target = state;
    kernels.fold[element][gate_of][once ? 1 : 0](job(target, 0, rows));
    return target;
  }

  // The definition, each step rounded by a store: whatever the flags of this file.
  std::vector<char> by_definition(bool once) const {
    std::vector<char> target = state;
    for (std::size_t i = 0; i < elements(); ++i) {
      const std::size_t column = i % columns, line = i / columns, head = line / lines;
      char* at = target.data() + i * bytes_of(element);
      float value = widened(at, element);
      for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t gate_at = gate_of == kGateHead      ? head
                                    : gate_of == kGateChannel ? line
                                                              : i;
        const volatile float kept = gate[row * gates() + gate_at] * value;
        const volatile float added =
            left[(row * heads / left_group + head / left_group) * lines + line % lines] *
            right[(row * heads / right_group + head / right_group) * columns + column];
        value = kept + added;
        if (once && row + 1 < rows) continue;
        narrow(at, element, value);
        value = widened(at, element);
      }
    }
    return target;
  }
};

::testing::AssertionResult same(const Case& c, const std::vector<char>& a,
                                const std::vector<char>& b) {
  for (std::size_t i = 0; i < c.elements(); ++i) {
    const char* x = a.data() + i * bytes_of(c.element);
    const char* y = b.data() + i * bytes_of(c.element);
    if (std::memcmp(x, y, bytes_of(c.element)) == 0) continue;
    const float p = widened(x, c.element), q = widened(y, c.element);
    if (std::isnan(p) && std::isnan(q)) continue;  // of whatever sign and payload
    return ::testing::AssertionFailure() << "element " << i << ": " << p << " is not " << q;
  }
  return ::testing::AssertionSuccess();
}

template <typename Body>
void for_each_case(const Body& body) {
  std::mt19937 random(20);
  constexpr std::size_t kColumns[] = {1, 3, 7, 8, 16, 17, 31, 64, 100, 128, 130, 260};
  for (int round = 0; round < 3000; ++round) {
    Case c;
    c.element = kElements[random() % 3];
    c.gate_of = kGates[random() % 3];
    c.heads = std::size_t{1} << random() % 3;
    c.lines = 1 + random() % 5;
    c.columns = kColumns[random() % 12];
    c.rows = 1 + random() % 9;  // fold() calls no kernel for none
    c.left_group = random() % 2 == 0 ? 1 : c.heads;
    c.right_group = random() % 2 == 0 ? 1 : (c.heads + 1) / 2;
    c.fill(random, round % 3 == 0);
    SCOPED_TRACE("round " + std::to_string(round) + ", element " + std::to_string(c.element) +
                 ", gate " + std::to_string(c.gate_of) + ", rows " + std::to_string(c.rows));
    body(c);
  }
}

TEST(Fold, EveryInstructionSetGivesTheBytesOfTheDefinition) {
  for_each_case([](const Case& c) {
    for (const bool once : {false, true}) {
      const std::vector<char> expected = c.by_definition(once);
      for (const Kernels* kernels : runnable_kernels()) {
        ASSERT_TRUE(same(c, c.folded(*kernels, once), expected)) << kernels->name << once;
      }
    }
  });
}

TEST(Fold, RowsAtOnceEqualRowsOneByOne) {
  for_each_case([](const Case& c) {
    for (const Kernels* kernels : runnable_kernels()) {
      std::vector<char> target = c.state;
      for (std::size_t row = 0; row < c.rows; ++row) {
        kernels->fold[c.element][c.gate_of][row % 2](c.job(target, row, 1));
      }
      ASSERT_TRUE(same(c, c.folded(*kernels, false), target)) << kernels->name;
    }
  });
}

TEST(Fold, RoundingOnceStaysWithinItsBound) {
  for_each_case([](const Case& c) {
    const std::vector<char> each = c.folded(scalar(), false);
    const std::vector<char> once = c.folded(scalar(), true);
    const double unit = c.element == kElementF16 ? 0x1p-11 : c.element == kElementBf16 ? 0x1p-8 : 0;
    for (std::size_t i = 0; i < c.elements(); ++i) {
      Case one = c;  // the largest magnitude on the way, from shorter folds
      const std::size_t at = i * bytes_of(c.element);
      double largest = std::fabs(widened(c.state.data() + at, c.element));
      bool tame = std::isfinite(largest);
      if (i > 3) break;  // enough of each case
      for (one.rows = 1; one.rows <= c.rows; ++one.rows) {
        const std::vector<char> after = one.folded(scalar(), true);
        largest = std::max<double>(largest, std::fabs(widened(after.data() + at, c.element)));
      }
      for (const float g : c.gate) tame = tame && std::fabs(g) <= 1;
      const double a = widened(each.data() + at, c.element);
      const double b = widened(once.data() + at, c.element);
      if (!tame || !std::isfinite(a) || !std::isfinite(b) || !std::isfinite(largest)) continue;
      const double rows = static_cast<double>(c.rows);
      ASSERT_LE(std::fabs(a - b), (rows + 1) * (unit * largest * (1 + unit) + 0x1p-25));
    }
  });
}

TEST(Fold, PartsOfAStateAreFoldedAlone) {
  std::mt19937 random(3);
  Case c;
  c.heads = 4, c.lines = 3, c.columns = 33, c.rows = 5, c.gate_of = kGateChannel;
  c.left_group = 2;
  c.fill(random, false);
  for (const Kernels* kernels : runnable_kernels()) {
    std::vector<char> target = c.state;
    for (const auto& [first, count] : {std::pair{0, 4}, {4, 1}, {5, 7}}) {
      FoldJob job = c.job(target, 0, c.rows);
      job.first = static_cast<std::size_t>(first);
      job.count = static_cast<std::size_t>(count);
      kernels->fold[c.element][c.gate_of][0](job);
    }
    EXPECT_TRUE(same(c, target, c.folded(*kernels, false))) << kernels->name;
  }
}

TEST(Fold, ThreadsGiveTheSameBytes) {
  const std::size_t heads = 16, lines = 128, columns = 128, rows = 3;
  std::vector<float> gate(rows * heads, 0.9F), left(rows * heads * lines),
      right(rows * heads * columns), alone(heads * lines * columns, 1.0F);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (float& x : left) x = normal(random);
  for (float& x : right) x = normal(random);
  std::vector<float> together = alone;
  const FoldRows inputs{rows,  Gate::kHead,   gate.data(),  heads, left.data(),
                        heads, heads * lines, right.data(), heads, heads * columns};
  const auto state = [&](std::vector<float>& data) {
    return FoldState{data.data(), DType::kF32, heads, lines, columns};
  };
  ASSERT_TRUE(fold(state(alone), inputs));
  ASSERT_TRUE(fold(state(together), inputs, FoldRounding::kEachRow, 4));
  EXPECT_EQ(alone, together);
}

TEST(Fold, WhatDoesNotFitIsRefusedAndTheStateUnchanged) {
  float state[6] = {1, 2, 3, 4, 5, 6};
  const float ones[6] = {1, 1, 1, 1, 1, 1};
  FoldRows rows{1, Gate::kHead, ones, 6, ones, 4, 4, ones, 6, 6};
  const FoldState six{state, DType::kF32, 6, 1, 1};
  EXPECT_EQ(fold(six, rows).code(), StatusCode::kInvalidArgument);
  rows.left_heads = 0;
  EXPECT_EQ(fold(six, rows).code(), StatusCode::kInvalidArgument);
  rows.left_heads = 6;
  EXPECT_EQ(fold({state, DType::kI32, 6, 1, 1}, rows).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(state[5], 6);
  EXPECT_TRUE(fold(six, rows));
  EXPECT_EQ(state[5], 7);
}

TEST(Fold, AppendedRowsPushOutTheOldest) {
  const std::uint16_t rows[] = {10, 11, 20, 21, 30, 31, 40, 41};
  for (std::size_t count = 0; count <= 4; ++count) {
    std::vector<std::uint16_t> window = {1, 2, 3, 4, 5, 6};
    std::vector<std::uint16_t> expected = window;
    expected.insert(expected.end(), rows, rows + 2 * count);
    expected.erase(expected.begin(), expected.end() - 6);
    append_rows(window.data(), 3, 4, rows, count);
    EXPECT_EQ(window, expected) << count;
  }
}

}  // namespace
}  // namespace kvcache::codec::testing
