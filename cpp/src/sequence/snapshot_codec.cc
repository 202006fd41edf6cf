#include "sequence/snapshot_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kvcache/codec.h"

namespace kvcache::sequence {
namespace {

// Elements worked on at once: their source, code and decoded form stay in the L1 cache.
constexpr std::uint64_t kChunkElements = 4096;

// |x - y| and squares over many elements: float lanes within a chunk, doubles across chunks. The
// lanes are arrays because a compiler may not reorder the sums of one variable.
class ErrorSum {
 public:
  void add(const float* x, const float* y, std::size_t count) {
    float largest[kLanes] = {};
    float lost[kLanes] = {};
    float whole[kLanes] = {};
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const float difference = x[i + lane] - y[i + lane];
        const float size = std::abs(difference);
        largest[lane] = largest[lane] > size ? largest[lane] : size;
        lost[lane] += difference * difference;
        whole[lane] += x[i + lane] * x[i + lane];
      }
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(largest[lane], lost[lane], whole[lane]);
    for (; i < count; ++i) {
      const float difference = x[i] - y[i];
      add(std::abs(difference), difference * difference, x[i] * x[i]);
    }
  }

  double max_abs() const { return max_abs_; }
  double relative_rms() const { return whole_ == 0 ? 0 : std::sqrt(lost_ / whole_); }

 private:
  static constexpr std::size_t kLanes = 16;

  void add(float largest, float lost, float whole) {
    max_abs_ = std::max(max_abs_, static_cast<double>(largest));
    lost_ += static_cast<double>(lost);
    whole_ += static_cast<double>(whole);
  }

  double max_abs_ = 0;
  double lost_ = 0;
  double whole_ = 0;
};

template <typename View, typename Data>
View rows_view(Data* data, DType dtype, std::uint64_t rows, std::uint64_t width) {
  const auto stride = static_cast<std::ptrdiff_t>(width * dtype_bytes(dtype));
  return {data, dtype, rows, 1, width, stride, stride};
}

bool has_non_finite(const std::uint16_t* halves, std::size_t count) {
  std::uint16_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    found = static_cast<std::uint16_t>(found | ((halves[i] & 0x7c00U) == 0x7c00U ? 1U : 0U));
  }
  return found != 0;
}

// Rows [first, first + rows) of one tensor.
struct Piece {
  const FixedComponent& component;
  const SnapshotTensor& tensor;
  std::uint64_t first;
  std::uint64_t rows;

  std::uint64_t elements() const { return rows * tensor.width; }
  std::uint64_t slot_at() const {
    return component.offset + first * tensor.width * dtype_bytes(component.dtype);
  }
  std::uint64_t stored_at() const {
    return tensor.offset + first * tensor.width * dtype_bytes(tensor.stored);
  }
  std::uint64_t scales_at() const { return tensor.scales_offset + first * sizeof(float); }
};

Status encode_piece(const Piece& piece, const std::byte* slot, std::byte* snapshot) {
  const auto in = rows_view<codec::RowsView>(slot + piece.slot_at(), piece.component.dtype,
                                             piece.rows, piece.tensor.width);
  std::byte* stored = snapshot + piece.stored_at();
  if (piece.tensor.stored == DType::kI8) {
    return codec::encode_int8(in, reinterpret_cast<std::int8_t*>(stored),
                              reinterpret_cast<float*>(snapshot + piece.scales_at()), 1,
                              piece.first);
  }
  codec::encode_plain(in, piece.tensor.stored, stored);
  if (!has_non_finite(reinterpret_cast<const std::uint16_t*>(stored), piece.elements())) {
    return Status::ok();
  }
  return Status::non_finite("rows ", piece.first, "..", piece.first + piece.rows - 1,
                            ": an element is not finite after F16 rounding");
}

void decode_piece(const Piece& piece, const std::byte* snapshot,
                  const codec::MutableRowsView& out) {
  const std::byte* stored = snapshot + piece.stored_at();
  if (piece.tensor.stored == DType::kI8) {
    codec::decode_int8(reinterpret_cast<const std::int8_t*>(stored),
                       reinterpret_cast<const float*>(snapshot + piece.scales_at()), out);
  } else {
    codec::decode_plain(stored, piece.tensor.stored, out);
  }
}

// What is restored: the tensor's own element, rounded once more where that is narrower than f32.
void add_error(const Piece& piece, const std::byte* slot, const std::byte* snapshot,
               std::vector<float>& scratch, ErrorSum& sum) {
  const std::uint64_t count = piece.elements();
  const std::uint64_t width = piece.tensor.width;
  const DType dtype = piece.component.dtype;
  scratch.resize(3 * count);
  float* restored = scratch.data() + count;
  float* own = scratch.data() + 2 * count;
  const auto floats = [&](float* to) {
    return rows_view<codec::MutableRowsView>(to, DType::kF32, piece.rows, width);
  };
  const auto* original = reinterpret_cast<const float*>(slot + piece.slot_at());
  if (dtype == DType::kF32) {
    decode_piece(piece, snapshot, floats(restored));
  } else {
    codec::decode_plain(original, dtype, floats(scratch.data()));
    original = scratch.data();
    decode_piece(piece, snapshot, rows_view<codec::MutableRowsView>(own, dtype, piece.rows, width));
    codec::decode_plain(own, dtype, floats(restored));
  }
  sum.add(original, restored, count);
}

template <typename Body>
Status for_each_piece(const FixedComponent& component, const SnapshotTensor& tensor,
                      const Body& body) {
  const std::uint64_t step = std::max<std::uint64_t>(1, kChunkElements / tensor.width);
  for (std::uint64_t first = 0; first < tensor.rows; first += step) {
    const Piece piece{component, tensor, first, std::min(step, tensor.rows - first)};
    if (Status status = body(piece); !status) return status;
  }
  return Status::ok();
}

}  // namespace

Status encode_snapshot(const StatePlan& plan, SnapshotFormat format, const std::byte* slot,
                       std::byte* snapshot, std::vector<SnapshotError>* errors) {
  const SnapshotLayout& layout = plan.snapshot_layout(format);
  if (format == SnapshotFormat::kExact) {
    std::memcpy(snapshot, slot, layout.bytes);
    return Status::ok();
  }
  std::vector<float> scratch;
  for (std::size_t i = 0; i < plan.fixed().size(); ++i) {
    const FixedComponent& component = plan.fixed()[i];
    const SnapshotTensor& tensor = layout.tensors[i];
    if (tensor.exact) {
      std::memcpy(snapshot + tensor.offset, slot + component.offset, component.bytes);
      continue;
    }
    ErrorSum sum;
    const Status status = for_each_piece(component, tensor, [&](const Piece& piece) {
      Status encoded = encode_piece(piece, slot, snapshot);
      if (encoded && errors != nullptr) add_error(piece, slot, snapshot, scratch, sum);
      return encoded;
    });
    if (!status) {
      return Status::non_finite(snapshot_format_name(format), " snapshot of layer ",
                                component.layer, " ", component.name, ": ", status.message());
    }
    if (errors == nullptr) continue;
    errors->push_back(
        {component.layer, component.name, tensor.stored, sum.max_abs(), sum.relative_rms()});
  }
  return Status::ok();
}

void decode_snapshot(const StatePlan& plan, SnapshotFormat format, const std::byte* snapshot,
                     std::byte* slot) {
  const SnapshotLayout& layout = plan.snapshot_layout(format);
  if (format == SnapshotFormat::kExact) {
    std::memcpy(slot, snapshot, layout.bytes);
    return;
  }
  for (std::size_t i = 0; i < plan.fixed().size(); ++i) {
    const FixedComponent& component = plan.fixed()[i];
    const SnapshotTensor& tensor = layout.tensors[i];
    if (tensor.exact) {
      std::memcpy(slot + component.offset, snapshot + tensor.offset, component.bytes);
      continue;
    }
    const Piece whole{component, tensor, 0, tensor.rows};
    decode_piece(whole, snapshot,
                 rows_view<codec::MutableRowsView>(slot + component.offset, component.dtype,
                                                   tensor.rows, tensor.width));
  }
}

}  // namespace kvcache::sequence
