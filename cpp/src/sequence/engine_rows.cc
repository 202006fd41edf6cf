#include "sequence/engine_rows.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/checked.h"

namespace kvcache::sequence {
namespace {

std::uint64_t size_of(EngineAxis word, const EnginePart& which, std::size_t part) {
  switch (word) {
    case EngineAxis::kLayers:
      return which.layers;
    case EngineAxis::kHeads:
      return which.parts[part].heads;
    case EngineAxis::kDim:
      return which.parts[part].width;
    default:
      return 1;
  }
}

std::string name_of_axis(const EngineTensor& tensor, std::size_t axis) {
  std::string text = "layout \"" + tensor.layout.text() + "\": axis " + std::to_string(axis);
  return text + " of " + std::to_string(tensor.shape.size());
}

// What one axis of the tensor says about the rows.
struct AxisReading {
  std::uint64_t fixed = 1;  // product of the sizes that are known
  // When parts share the axis, elements inside the word `kv`, positions aside:
  std::uint64_t before = 0;  // of the parts that come first
  std::uint64_t joined = 0;  // of all of them
};

// Reads the words of an axis from the innermost out: the size they ask for.
Result<AxisReading> read_axis(const std::vector<EngineAxis>& words, const EnginePart& which) {
  AxisReading reading;
  std::vector<std::uint64_t> inner(which.parts.size(), 1);  // until the parts are joined
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    const bool joined = reading.joined > 0;
    if (*word == EngineAxis::kKv) {
      reading.fixed = 0;
      for (std::size_t part = 0; part < inner.size(); ++part) {
        if (part == which.part) reading.before = reading.fixed;
        reading.fixed += inner[part];
      }
      reading.joined = reading.fixed;
      continue;
    }
    for (std::size_t part = 0; part < inner.size(); ++part) {
      const std::uint64_t size = size_of(*word, which, part);
      if (joined && size != size_of(*word, which, 0)) {
        return Status::invalid_argument(
            "components of ", which.parts[0].heads, " and ", which.parts[part].heads,
            " heads cannot alternate inside one axis; put kv before heads");
      }
      inner[part] *= size;
    }
    if (joined) {
      reading.fixed *= size_of(*word, which, 0);
    } else {
      reading.fixed = inner[which.part];
    }
  }
  return reading;
}

struct Found {
  EngineRows rows;
  std::ptrdiff_t offset = 0;  // bytes from the start of the tensor
  std::uint64_t blocks = 0;
};

// Strides and sizes that the words of one axis give to the rows.
void take_axis(const std::vector<EngineAxis>& words, const AxisReading& reading,
               const EnginePart& which, std::ptrdiff_t stride, std::uint64_t positions,
               Found& found) {
  EngineRows& rows = found.rows;
  std::uint64_t inner = 1;
  std::uint64_t inner_positions = 1;
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    const std::ptrdiff_t step = stride * static_cast<std::ptrdiff_t>(inner);
    std::uint64_t size = size_of(*word, which, which.part);
    if (is_position(*word)) size = inner_positions = positions;
    switch (*word) {
      case EngineAxis::kLayers:
        found.offset += step * static_cast<std::ptrdiff_t>(which.layer);
        break;
      case EngineAxis::kHeads:
        rows.head_stride = step;
        break;
      case EngineAxis::kDim:
        rows.element_stride = step;
        break;
      case EngineAxis::kBlocks:
        rows.block_stride = step;
        found.blocks = size;
        break;
      case EngineAxis::kBlock:
        rows.token_stride = step;
        rows.block = size;
        break;
      case EngineAxis::kTokens:
        rows.token_stride = step;
        rows.tokens = size;
        break;
      case EngineAxis::kKv:
        found.offset += stride * static_cast<std::ptrdiff_t>(reading.before * inner_positions);
        inner = reading.joined * inner_positions;
        continue;
      case EngineAxis::kOne:
        break;
    }
    inner *= size;
  }
}

bool is_empty(const EngineTensor& tensor) {
  return std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
}

}  // namespace

Result<EngineRows> find_rows(const EngineTensor& tensor, const EnginePart& which) {
  const auto& axes = tensor.layout.axes();
  if (tensor.shape.size() != axes.size() || tensor.strides.size() != axes.size()) {
    return Status::invalid_argument("layout \"", tensor.layout.text(), "\" has ", axes.size(),
                                    " axes, the tensor ", tensor.shape.size());
  }
  if (!is_float(tensor.dtype)) {
    return Status::invalid_argument("an engine's tensor must be f32, f16 or bf16, got ",
                                    dtype_name(tensor.dtype));
  }
  Found found;
  EngineRows& rows = found.rows;
  rows.dtype = tensor.dtype;
  const auto element = static_cast<std::ptrdiff_t>(dtype_bytes(tensor.dtype));
  rows.element_stride = element;
  const std::uint64_t heads = which.parts[which.part].heads;
  if (!tensor.layout.has(EngineAxis::kHeads) && heads > 1) {
    return Status::invalid_argument("layout \"", tensor.layout.text(), "\" has no heads, but ",
                                    heads, " are kept");
  }
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    const auto& words = axes[axis];
    const std::uint64_t size = tensor.shape[axis];
    const auto reading = read_axis(words, which);
    if (!reading) {
      return Status::invalid_argument(name_of_axis(tensor, axis), ": ", reading.status().message());
    }
    const bool open = std::any_of(words.begin(), words.end(), is_position);
    if (open ? size % reading->fixed != 0 : size != reading->fixed) {
      return Status::invalid_argument(name_of_axis(tensor, axis), ": expected ",
                                      open ? "a multiple of " : "", reading->fixed, ", got ", size);
    }
    if (size == 0) continue;  // no row, and strides mean nothing
    take_axis(words, *reading, which, tensor.strides[axis], size / reading->fixed, found);
  }
  if (rows.block > 0) {
    const auto all = checked_mul(found.blocks, rows.block);
    if (!all) return Status::invalid_argument("blocks of the tensor exceed 64 bits");
    rows.tokens = *all;
  } else if (tensor.layout.has(EngineAxis::kBlock)) {
    return Status::invalid_argument("layout \"", tensor.layout.text(), "\": a block of 0");
  }
  // An address is made only where there is an element.
  if (!is_empty(tensor)) rows.data = static_cast<char*>(tensor.data) + found.offset;
  return rows;
}

// ---- Overlap ----------------------------------------------------------------------------------

namespace {

struct Step {
  std::ptrdiff_t stride = 0;  // without its sign
  std::uint64_t size = 0;
};

// Axes of more than one element, outermost stride first.
std::vector<Step> steps_of(const EngineTensor& tensor) {
  std::vector<Step> steps;
  for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    if (tensor.shape[axis] > 1) {
      steps.push_back({std::abs(tensor.strides[axis]), tensor.shape[axis]});
    }
  }
  std::sort(steps.begin(), steps.end(),
            [](const Step& a, const Step& b) { return a.stride > b.stride; });
  return steps;
}

// Bytes from the first to one past the last of the axes from `axis` on.
std::ptrdiff_t span_of(const std::vector<Step>& steps, std::size_t axis, std::ptrdiff_t element) {
  std::ptrdiff_t span = element;
  for (; axis < steps.size(); ++axis) {
    span += steps[axis].stride * static_cast<std::ptrdiff_t>(steps[axis].size - 1);
  }
  return span;
}

const char* lowest(const EngineTensor& tensor) {
  const char* data = static_cast<const char*>(tensor.data);
  for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    if (tensor.strides[axis] < 0) {
      data += tensor.strides[axis] * static_cast<std::ptrdiff_t>(tensor.shape[axis] - 1);
    }
  }
  return data;
}

// Whether two tensors of the same steps, `distance` bytes apart, have an element in common. The
// steps are nested, so at each axis only two shifts can bring the inner axes together.
bool meets(const std::vector<Step>& steps, std::size_t axis, std::ptrdiff_t distance,
           std::ptrdiff_t element) {
  if (axis == steps.size()) return std::abs(distance) < element;
  const std::ptrdiff_t near = distance / steps[axis].stride;
  for (const std::ptrdiff_t shift : {near - 1, near, near + 1}) {
    if (static_cast<std::uint64_t>(std::abs(shift)) >= steps[axis].size) continue;
    if (std::abs(distance - shift * steps[axis].stride) >= span_of(steps, axis + 1, element)) {
      continue;
    }
    if (meets(steps, axis + 1, distance - shift * steps[axis].stride, element)) return true;
  }
  return false;
}

bool same_steps(const std::vector<Step>& a, const std::vector<Step>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Step& x, const Step& y) {
    return x.stride == y.stride && x.size == y.size;
  });
}

}  // namespace

Status check_no_overlap(const EngineTensor& tensor) {
  if (is_empty(tensor)) return Status::ok();
  const auto element = static_cast<std::ptrdiff_t>(dtype_bytes(tensor.dtype));
  const std::vector<Step> steps = steps_of(tensor);
  for (std::size_t axis = 0; axis < steps.size(); ++axis) {
    if (steps[axis].stride < span_of(steps, axis + 1, element)) {
      return Status::invalid_argument("layout \"", tensor.layout.text(),
                                      "\": elements of the tensor share memory (a stride of ",
                                      steps[axis].stride, " bytes), so it cannot be written");
    }
  }
  return Status::ok();
}

Status check_no_overlap(const EngineTensor& a, const EngineTensor& b) {
  if (is_empty(a) || is_empty(b)) return Status::ok();
  const auto element = static_cast<std::ptrdiff_t>(dtype_bytes(a.dtype));
  const std::vector<Step> steps = steps_of(a);
  const std::vector<Step> other = steps_of(b);
  const char* first = lowest(a);
  const char* second = lowest(b);
  const auto end = [](const char* data, const std::vector<Step>& of, DType dtype) {
    return data + span_of(of, 0, static_cast<std::ptrdiff_t>(dtype_bytes(dtype)));
  };
  if (end(first, steps, a.dtype) <= second || end(second, other, b.dtype) <= first) {
    return Status::ok();
  }
  if (a.dtype == b.dtype && same_steps(steps, other) && !meets(steps, 0, second - first, element)) {
    return Status::ok();
  }
  return Status::invalid_argument("tensors \"", a.layout.text(), "\" and \"", b.layout.text(),
                                  "\" share memory, so they cannot both be written");
}

// ---- Walking ----------------------------------------------------------------------------------

EngineWalk::EngineWalk(const EngineRows& rows, const EnginePlaces& places, std::uint64_t start,
                       std::uint64_t stop)
    : rows_(rows), places_(places), start_(start), stop_(stop) {
  joined_ = rows.block == 0 ||
            rows.block_stride == rows.token_stride * static_cast<std::ptrdiff_t>(rows.block);
}

Status EngineWalk::check(bool distinct) const {
  const std::uint64_t positions = stop_ - start_;
  const bool paged = rows_.block > 0;
  if (!places_.block_table.empty() && !places_.slot_mapping.empty()) {
    return Status::invalid_argument("a block_table and a slot_mapping; give one of them");
  }
  std::vector<std::uint64_t> used;
  if (!places_.slot_mapping.empty()) {
    if (places_.slot_mapping.size() != positions) {
      return Status::invalid_argument("slot_mapping has ", places_.slot_mapping.size(),
                                      " entries for ", positions, " positions");
    }
    for (std::size_t i = 0; i < positions; ++i) {
      const std::int64_t slot = places_.slot_mapping[i];
      if (slot < 0 || static_cast<std::uint64_t>(slot) >= rows_.tokens) {
        return Status::invalid_argument("slot_mapping[", i, "] is ", slot, "; the tensor has ",
                                        rows_.tokens, " slots");
      }
      if (distinct) used.push_back(static_cast<std::uint64_t>(slot));
    }
  } else if (!places_.block_table.empty()) {
    if (!paged) {
      return Status::invalid_argument("a block_table needs a layout with blocks; for tokens give ",
                                      "a slot_mapping");
    }
    const std::uint64_t end = ceil_div(stop_, rows_.block);
    if (places_.block_table.size() < end) {
      return Status::invalid_argument("block_table has ", places_.block_table.size(),
                                      " entries; position ", stop_ - 1, " needs ", end,
                                      " of blocks of ", rows_.block);
    }
    const std::uint64_t blocks = rows_.tokens / rows_.block;
    for (std::uint64_t i = start_ / rows_.block; i < end; ++i) {
      const std::int32_t id = places_.block_table[i];
      if (id < 0 || static_cast<std::uint64_t>(id) >= blocks) {
        return Status::invalid_argument("block_table[", i, "] is ", id, "; the tensor has ", blocks,
                                        " blocks");
      }
      if (distinct) used.push_back(static_cast<std::uint64_t>(id));
    }
  } else if (positions > 0 && paged) {
    return Status::invalid_argument("a layout with blocks needs a block_table or a slot_mapping");
  } else if (positions > 0 && rows_.tokens != positions) {
    return Status::invalid_argument("the tensor has ", rows_.tokens, " tokens for ", positions,
                                    " positions; slice it, or give a slot_mapping");
  }
  if (!std::is_sorted(used.begin(), used.end())) std::sort(used.begin(), used.end());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  if (twice == used.end()) return Status::ok();
  return Status::invalid_argument(places_.slot_mapping.empty() ? "block_table" : "slot_mapping",
                                  " names ", *twice, " twice, so rows would be overwritten");
}

std::uint64_t EngineWalk::slot(std::uint64_t position) const {
  if (!places_.slot_mapping.empty()) {
    return static_cast<std::uint64_t>(places_.slot_mapping[position - start_]);
  }
  if (rows_.block == 0) return position - start_;
  const auto id = static_cast<std::uint64_t>(places_.block_table[position / rows_.block]);
  return id * rows_.block + position % rows_.block;
}

char* EngineWalk::address(std::uint64_t slot) const {
  if (rows_.block == 0) return rows_.data + static_cast<std::ptrdiff_t>(slot) * rows_.token_stride;
  return rows_.data + static_cast<std::ptrdiff_t>(slot / rows_.block) * rows_.block_stride +
         static_cast<std::ptrdiff_t>(slot % rows_.block) * rows_.token_stride;
}

EngineWalk::Stretch EngineWalk::at(std::uint64_t position, std::uint64_t most) const {
  const std::uint64_t first = slot(position);
  Stretch stretch = {address(first), 1};
  const bool mapped = !places_.slot_mapping.empty();
  while (stretch.tokens < most) {
    const std::uint64_t next = first + stretch.tokens;
    // Within a block positions follow each other, unless each of them has a slot of its own.
    std::uint64_t more = 1;
    if (!mapped && rows_.block == 0) {
      more = most;
    } else if (!mapped && next % rows_.block != 0) {
      more = rows_.block - next % rows_.block;
    } else if (slot(position + stretch.tokens) != next || (!joined_ && next % rows_.block == 0)) {
      break;
    } else if (!mapped) {
      more = rows_.block;
    }
    stretch.tokens = std::min(most, stretch.tokens + more);
  }
  return stretch;
}

}  // namespace kvcache::sequence
