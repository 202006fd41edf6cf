#include "codec/row_runs.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "codec/float_environment.h"
#include "codec/kernels.h"
#include "codec/row_codec.h"
#include "codec/transpose.h"

namespace kvcache::codec {
namespace {

constexpr std::size_t kTileBytes = std::size_t{32} << 10;  // of a transposed stretch

bool has_gaps(const RunShape& shape) {
  return shape.width > 1 &&
         shape.element_stride != static_cast<std::ptrdiff_t>(dtype_bytes(shape.elements));
}

std::ptrdiff_t row_bytes(const RunShape& shape) {
  return static_cast<std::ptrdiff_t>(shape.width * dtype_bytes(shape.elements));
}

// Without scales the heads of a position are one long row where nothing lies between them.
RunShape widened(RunShape shape) {
  if (shape.stored != DType::kI8 && !has_gaps(shape) &&
      (shape.heads == 1 || shape.head_stride == row_bytes(shape))) {
    shape.width *= shape.heads;
    shape.heads = 1;
    shape.element_stride = static_cast<std::ptrdiff_t>(dtype_bytes(shape.elements));
  }
  return shape;
}

// Runs that are the same bytes on both sides.
bool is_copy(const RunShape& shape) {
  return shape.stored == shape.elements && shape.heads == 1 && !has_gaps(shape) &&
         shape.token_stride == row_bytes(shape);
}

// Rows that are stored as they come are bytes to the codec.
std::size_t job_width(const RunShape& shape) {
  return shape.stored == shape.elements ? shape.width * dtype_bytes(shape.stored) : shape.width;
}

// Rows of one run, which may be at one stride across positions and heads.
struct RowSteps {
  std::size_t heads;
  std::ptrdiff_t token_stride;
};

RowSteps row_steps(const RunShape& shape) {
  const auto heads = static_cast<std::ptrdiff_t>(shape.heads);
  if (shape.heads > 1 && shape.token_stride == heads * shape.head_stride) {
    return {1, shape.head_stride};
  }
  return {shape.heads, shape.token_stride};
}

EncodeJob encode_job(const RunShape& shape, const RowRun& run, bool streams) {
  const RowSteps steps = row_steps(shape);
  return {
      .elements = run.elements,
      .token_stride = steps.token_stride,
      .head_stride = shape.head_stride,
      .heads = steps.heads,
      .rows = run.tokens * shape.heads,
      .width = job_width(shape),
      .packed = reinterpret_cast<char*>(run.packed),
      .scales = run.scales,
      .prefetch = shape.total_bytes > kPrefetchJobBytes,
      .stream = streams,
  };
}

std::size_t encode_run(const RowCodec& codec, const RunShape& shape, const RowRun& run) {
  const std::size_t packed_bytes =
      shape.total_bytes / dtype_bytes(shape.elements) * dtype_bytes(shape.stored);
  return codec.encode(encode_job(shape, run, packed_bytes > kStreamJobBytes));
}

void decode_group(const RowCodec& codec, const RunShape& shape, std::span<const RowRun> runs) {
  DecodeRun parts[kDecodeRunsMax];
  for (std::size_t i = 0; i < runs.size(); ++i) {
    parts[i] = {reinterpret_cast<const char*>(runs[i].packed), runs[i].scales, runs[i].elements};
  }
  const RowSteps steps = row_steps(shape);
  const bool dense = steps.heads == 1 && steps.token_stride == row_bytes(shape);
  const DecodeJob job = {
      .runs = parts,
      .run_count = runs.size(),
      .token_stride = steps.token_stride,
      .head_stride = shape.head_stride,
      .heads = steps.heads,
      .rows = runs[0].tokens * shape.heads,
      .width = job_width(shape),
      .prefetch = shape.total_bytes > kPrefetchJobBytes,
      .stream = dense && shape.total_bytes > kStreamJobBytes,
  };
  codec.decode(job);
}

// ---- Rows with gaps between their elements: by way of a tile in cache -------------------------

// Moves `tokens` positions between the tensor and a tile [tokens, heads, width] without gaps.
template <typename T, bool kToTile>
void move_tile(const RunShape& shape, char* elements, char* tile, std::size_t tokens) {
  const auto tile_stride = static_cast<std::ptrdiff_t>(shape.heads * shape.width * sizeof(T));
  const bool along_tokens = shape.token_stride == static_cast<std::ptrdiff_t>(sizeof(T));
  for (std::size_t head = 0; head < shape.heads; ++head) {
    char* matrix = elements + static_cast<std::ptrdiff_t>(head) * shape.head_stride;
    char* rows = tile + head * shape.width * sizeof(T);
    if (along_tokens && kToTile) {
      transpose<T>(matrix, shape.element_stride, rows, tile_stride, shape.width, tokens);
    } else if (along_tokens) {
      transpose<T>(rows, tile_stride, matrix, shape.element_stride, tokens, shape.width);
    } else {
      for (std::size_t token = 0; token < tokens; ++token) {
        for (std::size_t i = 0; i < shape.width; ++i) {
          char* outside = matrix + static_cast<std::ptrdiff_t>(token) * shape.token_stride +
                          static_cast<std::ptrdiff_t>(i) * shape.element_stride;
          char* inside = rows + static_cast<std::ptrdiff_t>(token) * tile_stride + i * sizeof(T);
          std::memcpy(kToTile ? inside : outside, kToTile ? outside : inside, sizeof(T));
        }
      }
    }
  }
}

template <bool kToTile>
void move_tile(const RunShape& shape, char* elements, char* tile, std::size_t tokens) {
  if (dtype_bytes(shape.elements) == 2) {
    move_tile<std::uint16_t, kToTile>(shape, elements, tile, tokens);
  } else {
    move_tile<std::uint32_t, kToTile>(shape, elements, tile, tokens);
  }
}

// Calls body(stretch of the run, its elements in the tile) for stretches that fill the tile.
template <typename Body>
void for_each_tile(const RunShape& shape, const RowRun& run, std::size_t tile_tokens,
                   const Body& body) {
  for (std::size_t token = 0; token < run.tokens; token += tile_tokens) {
    const std::size_t row = token * shape.heads;
    const RowRun part = {
        .packed = run.packed + row * shape.width * dtype_bytes(shape.stored),
        .scales = run.scales == nullptr ? nullptr : run.scales + row,
        .elements = run.elements + static_cast<std::ptrdiff_t>(token) * shape.token_stride,
        .tokens = std::min(tile_tokens, run.tokens - token)};
    if (!body(part)) return;
  }
}

struct Tile {
  explicit Tile(const RunShape& outside) : shape(outside) {
    shape.element_stride = static_cast<std::ptrdiff_t>(dtype_bytes(shape.elements));
    shape.head_stride = row_bytes(shape);
    shape.token_stride = shape.head_stride * static_cast<std::ptrdiff_t>(shape.heads);
    const auto position = static_cast<std::size_t>(shape.token_stride);
    tokens = std::max<std::size_t>(8, kTileBytes / position);
    bytes.resize(tokens * position);
    shape.total_bytes = 0;  // always in cache
    shape = widened(shape);
  }

  RunShape shape;  // of the rows inside
  std::size_t tokens;
  std::vector<char> bytes;
};

// Good rows of the run.
std::size_t encode_with_gaps(const RowCodec& codec, const RunShape& shape, const RowRun& run,
                             Tile& tile) {
  std::size_t good = 0;
  for_each_tile(shape, run, tile.tokens, [&](RowRun part) {
    move_tile<true>(shape, part.elements, tile.bytes.data(), part.tokens);
    part.elements = tile.bytes.data();
    const std::size_t rows = part.tokens * tile.shape.heads;
    const std::size_t done = encode_run(codec, tile.shape, part);
    good += done;
    return done == rows;
  });
  return shape.stored == DType::kI8 ? good : run.tokens * shape.heads;
}

void decode_with_gaps(const RowCodec& codec, const RunShape& shape, const RowRun& run, Tile& tile) {
  for_each_tile(shape, run, tile.tokens, [&](RowRun part) {
    char* outside = part.elements;
    part.elements = tile.bytes.data();
    decode_group(codec, tile.shape, std::span(&part, 1));
    move_tile<false>(shape, outside, tile.bytes.data(), part.tokens);
    return true;
  });
}

}  // namespace

std::size_t encode_runs(const RunShape& given, std::span<const RowRun> runs) {
  const RowCodec codec = row_codec(given.stored, given.elements);
  const NearestRounding rounding;
  const RunShape shape = widened(given);
  std::size_t good = 0;
  if (has_gaps(shape)) {
    Tile tile(shape);
    for (const RowRun& run : runs) {
      const std::size_t done = encode_with_gaps(codec, shape, run, tile);
      good += done;
      if (done < run.tokens * shape.heads) return good;
    }
    return good;
  }
  for (const RowRun& run : runs) {
    if (is_copy(shape)) {
      std::memcpy(run.packed, run.elements,
                  run.tokens * static_cast<std::size_t>(row_bytes(shape)));
      good += run.tokens * given.heads;
      continue;
    }
    const std::size_t rows = run.tokens * shape.heads;
    const std::size_t done = encode_run(codec, shape, run);
    good += done == rows ? run.tokens * given.heads : done;
    if (done < rows) return good;
  }
  return good;
}

void decode_runs(const RunShape& given, std::span<const RowRun> runs) {
  const RowCodec codec = row_codec(given.stored, given.elements);
  const NearestRounding rounding;
  const RunShape shape = widened(given);
  if (has_gaps(shape)) {
    Tile tile(shape);
    for (const RowRun& run : runs) decode_with_gaps(codec, shape, run, tile);
    return;
  }
  for (std::size_t i = 0; i < runs.size();) {
    std::size_t count = 1;
    while (count < kDecodeRunsMax && i + count < runs.size() &&
           runs[i + count].tokens == runs[i].tokens) {
      ++count;
    }
    if (is_copy(shape)) {
      for (const RowRun& run : runs.subspan(i, count)) {
        std::memcpy(run.elements, run.packed,
                    run.tokens * static_cast<std::size_t>(row_bytes(shape)));
      }
    } else {
      decode_group(codec, shape, runs.subspan(i, count));
    }
    i += count;
  }
}

}  // namespace kvcache::codec
