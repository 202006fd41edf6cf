// The fold of the vector rows: a stretch of one line of the state stays in registers while all rows
// are applied to it, so that the state is read and written once whatever their number. Products and
// sum are rounded one by one, as NumPy does; files that include this are built without contraction.
// An instruction set supplies, beside the row primitives load<In>, load_tail<In>, store<Out> and
// store_tail<Out> of kLanes elements: Floats, splat, multiply, add, rounded<Stored> (through the
// stored element and back) and kFoldVectors (that many Floats, and a few more, fit the registers).
// Included only by row_pipeline.h.
#pragma once

#include <cstddef>

#include "codec/element_tags.h"
#include "codec/kernels.h"

namespace kvcache::codec {
namespace {

// State from memory arrives while the rows are applied to what came before.
inline constexpr std::size_t kFoldAhead = 4096;

// Where the first row of one line begins.
struct FoldLine {
  const float* gate;
  const float* left;
  const float* right;
};

// kVectors * kLanes columns, or with kTail the last `count` of a line.
template <typename Isa, typename Stored, FoldGate kGate, bool kRoundEach, std::size_t kVectors,
          bool kTail = false>
KVCACHE_INLINE void fold_block(const FoldJob& job, FoldLine line, char* state, std::size_t column,
                               std::size_t count = 0) {
  using Floats = typename Isa::Floats;
  const auto elements = [&](const float* at, std::size_t vector) -> Floats {
    const char* bytes = reinterpret_cast<const char*>(at + column + vector * Isa::kLanes);
    if constexpr (kTail) return Isa::template load_tail<F32>(bytes, count);
    return Isa::template load<F32>(bytes);
  };
  char* const target = state + column * Stored::kBytes;
  constexpr std::size_t kVectorBytes = Isa::kLanes * Stored::kBytes;
  Floats kept[kVectors];
  for (std::size_t i = 0; i < kVectors; ++i) {
    if constexpr (kTail) {
      kept[i] = Isa::template load_tail<Stored>(target, count);
    } else {
      kept[i] = Isa::template load<Stored>(target + i * kVectorBytes);
      Isa::prefetch(target + i * kVectorBytes + kFoldAhead);
    }
  }
  for (std::size_t row = 0; row < job.rows; ++row) {
    const Floats left = Isa::splat(*line.left);
    const Floats shared = Isa::splat(kGate == kGateElement ? 1.0F : *line.gate);
    for (std::size_t i = 0; i < kVectors; ++i) {
      const Floats gate = kGate == kGateElement ? elements(line.gate, i) : shared;
      const Floats added = Isa::multiply(left, elements(line.right, i));
      kept[i] = Isa::add(Isa::multiply(gate, kept[i]), added);
      if constexpr (kRoundEach) kept[i] = Isa::template rounded<Stored>(kept[i]);
    }
    line.gate += job.gate_stride;
    line.left += job.left_stride;
    line.right += job.right_stride;
  }
  for (std::size_t i = 0; i < kVectors; ++i) {
    if constexpr (kTail) {
      Isa::template store_tail<Stored>(target, kept[i], count);
    } else {
      Isa::template store<Stored>(target + i * kVectorBytes, kept[i]);
    }
  }
}

template <typename Isa, typename Stored, FoldGate kGate, bool kRoundEach>
KVCACHE_INLINE void fold_line(const FoldJob& job, const FoldLine& line, char* state) {
  constexpr std::size_t kWide = Isa::kFoldVectors * Isa::kLanes;
  std::size_t column = 0;
  for (; column + kWide <= job.columns; column += kWide) {
    fold_block<Isa, Stored, kGate, kRoundEach, Isa::kFoldVectors>(job, line, state, column);
  }
  for (; column + Isa::kLanes <= job.columns; column += Isa::kLanes) {
    fold_block<Isa, Stored, kGate, kRoundEach, 1>(job, line, state, column);
  }
  if (column < job.columns) {
    fold_block<Isa, Stored, kGate, kRoundEach, 1, true>(job, line, state, column,
                                                        job.columns - column);
  }
}

template <typename Isa, typename Stored, FoldGate kGate, bool kRoundEach>
KVCACHE_INLINE void fold_lines(const FoldJob& job) {
  const std::size_t line_bytes = job.columns * Stored::kBytes;
  std::size_t head = job.first / job.lines;
  std::size_t index = job.first % job.lines;
  for (std::size_t done = 0; done < job.count; ++head, index = 0) {
    const std::size_t group = head / job.left_group * job.lines;
    const float* right = job.right + head / job.right_group * job.columns;
    for (; index < job.lines && done < job.count; ++index, ++done) {
      const std::size_t line = head * job.lines + index;
      const std::size_t gate = kGate == kGateHead      ? head
                               : kGate == kGateChannel ? line
                                                       : line * job.columns;
      fold_line<Isa, Stored, kGate, kRoundEach>(
          job, {job.gate + gate, job.left + group + index, right}, job.state + line * line_bytes);
    }
  }
}

template <typename Isa, typename Stored, bool kRoundEach = false>
void fold_head(const FoldJob& job) {
  fold_lines<Isa, Stored, kGateHead, kRoundEach>(job);
}
template <typename Isa, typename Stored, bool kRoundEach = false>
void fold_channel(const FoldJob& job) {
  fold_lines<Isa, Stored, kGateChannel, kRoundEach>(job);
}
template <typename Isa, typename Stored, bool kRoundEach = false>
void fold_element(const FoldJob& job) {
  fold_lines<Isa, Stored, kGateElement, kRoundEach>(job);
}

}  // namespace
}  // namespace kvcache::codec
