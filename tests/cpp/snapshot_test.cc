#include "kvcache/snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kvcache/state_plan.h"
#include "sequence/snapshot_codec.h"

namespace kvcache {
namespace {

StateDecl tensor(const std::string& name, DType dtype, std::vector<std::uint64_t> shape,
                 VerifyRule verify = VerifyRule::kNone) {
  return {.id = name,
          .layer = 0,
          .component = name,
          .kind = StateKind::kRecurrent,
          .dtype = dtype,
          .shape = std::move(shape),
          .verify = verify};
}

// Every element type, rows on both sides of the limit, ranks 1 to 4.
StatePlan make_plan() {
  auto plan = StatePlan::create(
      {tensor("matrix", DType::kF32, {3, 5, 17}),
       tensor("convolution", DType::kF32, {7, 32}, VerifyRule::kConvSteps),
       tensor("bytes", DType::kU8, {3, 21}), tensor("half", DType::kF16, {2, 3, 2, 16}),
       tensor("narrow", DType::kBf16, {9, 15}), tensor("vector", DType::kBf16, {33}),
       tensor("long", DType::kU64, {5}), tensor("codes", DType::kI8, {2, 40})},
      {.memory_bytes = 1 << 20});
  EXPECT_TRUE(plan.is_ok());
  return std::move(plan).value();
}

std::uint64_t stored_bytes(const SnapshotTensor& tensor) {
  return tensor.rows * tensor.width * dtype_bytes(tensor.stored);
}

TEST(SnapshotLayout, EveryFormatIsAlignedAndWithoutGapsOrOverlaps) {
  const StatePlan plan = make_plan();
  for (const SnapshotFormat format :
       {SnapshotFormat::kExact, SnapshotFormat::kF16, SnapshotFormat::kInt8}) {
    const SnapshotLayout& layout = plan.snapshot_layout(format);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
    for (std::size_t i = 0; i < plan.fixed().size(); ++i) {
      const SnapshotTensor& tensor = layout.tensors[i];
      spans.emplace_back(tensor.offset, stored_bytes(tensor));
      EXPECT_EQ(tensor.offset % dtype_bytes(tensor.stored), 0U);
      if (!tensor.has_scales()) continue;
      EXPECT_EQ(tensor.scales_offset % sizeof(float), 0U);
      spans.emplace_back(tensor.scales_offset, tensor.rows * sizeof(float));
    }
    std::sort(spans.begin(), spans.end());
    std::uint64_t end = 0;
    for (const auto& [offset, bytes] : spans) {
      EXPECT_EQ(offset, end);
      end = offset + bytes;
    }
    EXPECT_EQ(layout.bytes, end);
  }
}

TEST(SnapshotLayout, TheExactOneIsThatOfASlot) {
  const StatePlan plan = make_plan();
  const SnapshotLayout& layout = plan.snapshot_layout(SnapshotFormat::kExact);
  EXPECT_EQ(layout.bytes, plan.slot_bytes());
  for (std::size_t i = 0; i < plan.fixed().size(); ++i) {
    EXPECT_TRUE(layout.tensors[i].exact);
    EXPECT_EQ(layout.tensors[i].offset, plan.fixed()[i].offset);
    EXPECT_EQ(stored_bytes(layout.tensors[i]), plan.fixed()[i].bytes);
  }
}

TEST(SnapshotLayout, OnlyWhatAFormatNamesIsNotExact) {
  const StatePlan plan = make_plan();
  const auto lossy = [&](SnapshotFormat format) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < plan.fixed().size(); ++i) {
      if (!plan.snapshot_layout(format).tensors[i].exact) names.push_back(plan.fixed()[i].name);
    }
    return names;
  };
  EXPECT_EQ(lossy(SnapshotFormat::kF16), (std::vector<std::string>{"matrix", "convolution"}));
  EXPECT_EQ(lossy(SnapshotFormat::kInt8), (std::vector<std::string>{"matrix", "half", "vector"}));
  const SnapshotLayout& layout = plan.snapshot_layout(SnapshotFormat::kInt8);
  EXPECT_EQ(layout.tensors[0].rows, 15U);  // one scale for each of [3, 5]
  EXPECT_EQ(layout.tensors[5].rows, 1U);   // a vector is one row
}

TEST(SnapshotCodec, WritesOnlyItsBytesAndComesBackWithinItsError) {
  const StatePlan plan = make_plan();
  std::vector<std::byte> slot(plan.slot_bytes(), std::byte{0x3c});  // finite in every type
  const FixedComponent& matrix = plan.fixed()[0];
  for (std::uint64_t i = 0; i < matrix.bytes / 4; ++i) {
    const float value = static_cast<float>(i * 37 % 101) - 50.0F;
    std::memcpy(slot.data() + matrix.offset + 4 * i, &value, 4);
  }
  for (const SnapshotFormat format :
       {SnapshotFormat::kExact, SnapshotFormat::kF16, SnapshotFormat::kInt8}) {
    const std::uint64_t bytes = plan.snapshot_layout(format).bytes;
    std::vector<std::byte> snapshot(bytes + 64, std::byte{0x77});
    std::vector<SnapshotError> errors;
    ASSERT_TRUE(sequence::encode_snapshot(plan, format, slot.data(), snapshot.data(), &errors));
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(snapshot[bytes + i], std::byte{0x77});
    std::vector<std::byte> back(slot.size(), std::byte{0});
    sequence::decode_snapshot(plan, format, snapshot.data(), back.data());
    const double bound = errors.empty() ? 0 : errors[0].max_abs;
    EXPECT_LE(bound, format == SnapshotFormat::kInt8 ? 50.0 / 127 / 2 * 1.001 : 0);
    for (std::uint64_t i = 0; i < matrix.bytes / 4; ++i) {
      float x = 0;
      float y = 0;
      std::memcpy(&x, slot.data() + matrix.offset + 4 * i, 4);
      std::memcpy(&y, back.data() + matrix.offset + 4 * i, 4);
      ASSERT_LE(std::abs(static_cast<double>(x) - static_cast<double>(y)), bound);
    }
  }
}

TEST(SnapshotCodec, NonFiniteStateIsRefusedByTheFormatsThatRound) {
  const StatePlan plan = make_plan();
  std::vector<std::byte> slot(plan.slot_bytes());
  std::vector<std::byte> snapshot(plan.slot_bytes());
  const float bad = std::numeric_limits<float>::infinity();
  std::memcpy(slot.data() + plan.fixed()[0].offset + 4 * 200, &bad, 4);
  const auto encode = [&](SnapshotFormat format) {
    return sequence::encode_snapshot(plan, format, slot.data(), snapshot.data(), nullptr);
  };
  EXPECT_TRUE(encode(SnapshotFormat::kExact));
  for (const SnapshotFormat format : {SnapshotFormat::kF16, SnapshotFormat::kInt8}) {
    const Status status = encode(format);
    EXPECT_EQ(status.code(), StatusCode::kNonFinite);
    EXPECT_NE(status.message().find("layer 0 matrix"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace kvcache
