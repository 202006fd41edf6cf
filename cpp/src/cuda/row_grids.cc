// Grids of rows.
#include "cuda/grids.h"
#include "cuda/sizes.h"

namespace kvcache::cuda {
namespace {

// Largest sizes of one row: kernels count its elements in 32 bits.
constexpr std::uint64_t kMostWidth = INT32_MAX;
constexpr std::uint64_t kMostHeads = UINT32_MAX;

template <typename View>
bool is_empty(const View& view) {
  return view.tokens == 0 || view.heads == 0 || view.width == 0;
}

// REQUIRES: the view is not empty.
template <typename View>
Status set_elements(RowGrid& grid, const View& view) {
  if (!is_float(view.dtype)) {
    return Status::invalid_argument("rows of ", dtype_name(view.dtype),
                                    ": kernels take f32, f16 and bf16");
  }
  const std::uint64_t bytes = dtype_bytes(view.dtype);
  if (view.width > kMostWidth || view.heads > kMostHeads) {
    return Status::invalid_argument("rows of ", view.heads, " heads and ", view.width,
                                    " elements: at most ", kMostHeads, " and ", kMostWidth);
  }
  const std::uint64_t token = magnitude(view.token_stride);
  const std::uint64_t head = magnitude(view.head_stride);
  const std::uint64_t extent =
      plus(times(view.tokens - 1, token), times(view.heads - 1, head), times(view.width, bytes));
  if (extent > kMostBytes) {
    return Status::invalid_argument("rows [", view.tokens, ", ", view.heads, ", ", view.width,
                                    "] at strides of ", view.token_stride, " and ",
                                    view.head_stride, " bytes do not fit the address space");
  }
  if (ceil_div(times(view.tokens, view.heads), kRowsOfBlock) > kMostBlocks) {
    return Status::invalid_argument(view.tokens, " tokens of ", view.heads,
                                    " heads are more rows than one launch takes, ",
                                    kMostBlocks * kRowsOfBlock, "; split the call");
  }
  if (view.data == nullptr) return Status::invalid_argument("the rows have no address");
  const bool fits = aligned(view.data, bytes) && token % bytes == 0 && head % bytes == 0;
  if (!fits) {
    return Status::invalid_argument("rows at ", view.data, " with strides of ", view.token_stride,
                                    " and ", view.head_stride,
                                    " bytes: not aligned to elements of ", bytes, " bytes");
  }
  grid.elements = static_cast<char*>(const_cast<void*>(static_cast<const void*>(view.data)));
  grid.token_stride = view.token_stride;
  grid.head_stride = view.head_stride;
  grid.tokens = view.tokens;
  grid.heads = static_cast<std::uint32_t>(view.heads);
  grid.width = static_cast<std::uint32_t>(view.width);
  const std::uint64_t quad = kQuad * bytes;
  grid.whole_elements = aligned(view.data, quad) && token % quad == 0 && head % quad == 0;
  return Status::ok();
}

// Rows and scales of page 0. `bytes`: of a stored element.
Status set_packed(RowGrid& grid, const void* rows, const void* scales, std::uint64_t bytes) {
  if (rows == nullptr) return Status::invalid_argument("the stored rows have no address");
  const bool fits = aligned(rows, bytes) && aligned(scales, sizeof(float));
  if (!fits || grid.page_stride % (scales == nullptr ? bytes : sizeof(float)) != 0) {
    return Status::invalid_argument(
        "stored rows at ", rows, ", scales at ", scales, " and ", grid.page_stride,
        " bytes from page to page: not aligned to elements of ", bytes, " bytes and to scales");
  }
  grid.packed = static_cast<char*>(const_cast<void*>(rows));
  grid.scales = static_cast<char*>(const_cast<void*>(scales));
  grid.row_bytes = grid.width * bytes;
  const std::uint64_t quad = kQuad * bytes;
  grid.whole_packed =
      aligned(rows, quad) && grid.row_bytes % quad == 0 && grid.page_stride % quad == 0;
  return Status::ok();
}

Status set_contiguous(RowGrid& grid, const std::int8_t* codes, const float* scales) {
  if (scales == nullptr) return Status::invalid_argument("the scales have no address");
  if (times(grid.tokens, grid.heads, plus(grid.width, sizeof(float))) > kMostBytes) {
    return Status::invalid_argument("codes and scales of [", grid.tokens, ", ", grid.heads, ", ",
                                    grid.width, "] do not fit the address space");
  }
  return set_packed(grid, codes, scales, sizeof *codes);
}

Status check_pages(const Pages& pages, std::uint64_t heads, std::uint64_t width) {
  const Items& items = pages.items;
  if (items.count == 0 || items.count > kMostBlocks || pages.block_tokens == 0) {
    return Status::invalid_argument(items.count, " pages of ", pages.block_tokens,
                                    " tokens: at least 1 of each, and at most ", kMostBlocks,
                                    " pages");
  }
  if (times(items.count, items.stride) > kMostBytes) {
    return Status::invalid_argument(items.count, " pages of ", items.stride,
                                    " bytes do not fit the address space");
  }
  const std::uint64_t rows = times(pages.block_tokens, heads);
  const std::uint64_t rows_end =
      plus(pages.rows_offset, times(rows, width, dtype_bytes(pages.stored)));
  const std::uint64_t scales_end =
      pages.stored == DType::kI8 ? plus(pages.scales_offset, times(rows, sizeof(float))) : 0;
  if (rows_end > items.stride || scales_end > items.stride) {
    return Status::invalid_argument("pages of ", items.stride, " bytes: too short for [",
                                    pages.block_tokens, ", ", heads, ", ", width, "] of ",
                                    dtype_name(pages.stored), " at ", pages.rows_offset,
                                    " and scales at ", pages.scales_offset);
  }
  const bool apart = scales_end <= pages.rows_offset || rows_end <= pages.scales_offset;
  if (scales_end != 0 && !apart) {
    return Status::invalid_argument("scales at ", pages.scales_offset, " and rows at ",
                                    pages.rows_offset, " of a page overlap");
  }
  return Status::ok();
}

Status set_pages(RowGrid& grid, const Pages& pages) {
  if (Status status = check_pages(pages, grid.heads, grid.width); !status) return status;
  if (pages.items.data == nullptr) return Status::invalid_argument("the pages have no address");
  const char* data = static_cast<const char*>(pages.items.data);
  grid.pages = pages.items.count;
  grid.page_stride = pages.items.stride;
  grid.block_tokens = pages.block_tokens;
  const void* scales = pages.stored == DType::kI8 ? data + pages.scales_offset : nullptr;
  return set_packed(grid, data + pages.rows_offset, scales, dtype_bytes(pages.stored));
}

Status check_shape(const BlockTables& tables) {
  if (tables.blocks == nullptr || tables.first == nullptr || tables.offsets == nullptr) {
    return Status::invalid_argument("block tables, first positions or offsets have no address");
  }
  const bool fits = aligned(tables.blocks, sizeof(std::int32_t)) &&
                    aligned(tables.first, sizeof(std::int64_t)) &&
                    aligned(tables.offsets, sizeof(std::int64_t));
  if (!fits) {
    return Status::invalid_argument("block tables, first positions or offsets are not aligned");
  }
  const std::uint64_t bytes = times(tables.sequences, tables.table_blocks, sizeof(std::int32_t));
  const std::uint64_t offsets = times(plus(tables.sequences, 1), sizeof(std::int64_t));
  if (tables.sequences == 0 || bytes > kMostBytes || offsets > kMostBytes) {
    return Status::invalid_argument(tables.sequences, " block tables of ", tables.table_blocks,
                                    " blocks: none, or more than fit the address space");
  }
  return Status::ok();
}

Status check_sequence(const BlockTables& tables, const Pages& pages, std::size_t sequence,
                      std::uint64_t tokens) {
  const auto first = static_cast<std::uint64_t>(tables.first[sequence]);
  const std::uint64_t last = first + tokens - 1;
  if (tables.first[sequence] < 0 || last / pages.block_tokens >= tables.table_blocks) {
    return Status::invalid_argument("sequence ", sequence, ": ", tokens, " tokens from position ",
                                    tables.first[sequence], " on leave its table of ",
                                    tables.table_blocks, " blocks of ", pages.block_tokens,
                                    " tokens");
  }
  const std::int32_t* blocks = tables.blocks + sequence * tables.table_blocks;
  for (std::uint64_t i = first / pages.block_tokens; i <= last / pages.block_tokens; ++i) {
    if (blocks[i] >= 0 && static_cast<std::uint64_t>(blocks[i]) < pages.items.count) continue;
    return Status::invalid_argument("sequence ", sequence, ": block ", i, " has id ", blocks[i],
                                    ", of no page; there are ", pages.items.count);
  }
  return Status::ok();
}

template <typename View>
Result<RowGrid> paged_grid(const View& view, const Pages& pages, const BlockTables& tables,
                           FaultWord* faults) {
  RowGrid grid;
  if (pages.stored != DType::kI8 && !is_float(pages.stored)) {
    return Status::invalid_argument("pages of ", dtype_name(pages.stored),
                                    ": kernels take f32, f16, bf16 and i8 with scales");
  }
  if (is_empty(view)) return grid;
  if (Status status = set_elements(grid, view); !status) return status;
  if (Status status = set_pages(grid, pages); !status) return status;
  if (Status status = check_shape(tables); !status) return status;
  if (faults == nullptr || !aligned(faults, sizeof *faults)) {
    return Status::invalid_argument("no fault word, or it is not aligned to 8 bytes");
  }
  if (tables.host_visible) {
    if (Status status = check_tables(tables, pages, view.tokens); !status) return status;
  }
  grid.tables = tables.blocks;
  grid.table_blocks = tables.table_blocks;
  grid.first = tables.first;
  grid.offsets = tables.offsets;
  grid.sequences = tables.sequences;
  grid.faults = faults;
  return grid;
}

}  // namespace

Status check_tables(const BlockTables& tables, const Pages& pages, std::size_t tokens) {
  if (Status status = check_shape(tables); !status) return status;
  if (pages.block_tokens == 0) return Status::invalid_argument("pages of 0 tokens");
  if (tables.offsets[0] != 0) {
    return Status::invalid_argument("offsets begin at ", tables.offsets[0], ", not at 0");
  }
  for (std::size_t i = 0; i < tables.sequences; ++i) {
    const std::int64_t begin = tables.offsets[i];
    const std::int64_t end = tables.offsets[i + 1];
    if (end < begin || static_cast<std::uint64_t>(end) > tokens) {
      return Status::invalid_argument("sequence ", i, ": its tokens are ", begin, " to ", end,
                                      " of ", tokens);
    }
    if (end == begin) continue;
    const auto count = static_cast<std::uint64_t>(end - begin);
    if (Status status = check_sequence(tables, pages, i, count); !status) return status;
  }
  return Status::ok();
}

Result<RowGrid> encode_grid(const codec::RowsView& in, std::int8_t* codes, float* scales,
                            FaultWord* faults) {
  RowGrid grid;
  if (is_empty(in)) return grid;
  if (Status status = set_elements(grid, in); !status) return status;
  if (Status status = set_contiguous(grid, codes, scales); !status) return status;
  if (faults == nullptr || !aligned(faults, sizeof *faults)) {
    return Status::invalid_argument("no fault word, or it is not aligned to 8 bytes");
  }
  grid.faults = faults;
  return grid;
}

Result<RowGrid> decode_grid(const std::int8_t* codes, const float* scales,
                            const codec::MutableRowsView& out) {
  RowGrid grid;
  if (is_empty(out)) return grid;
  if (Status status = set_elements(grid, out); !status) return status;
  if (Status status = set_contiguous(grid, codes, scales); !status) return status;
  return grid;
}

Result<RowGrid> scatter_grid(const codec::RowsView& in, const Pages& to, const BlockTables& at,
                             FaultWord* faults) {
  return paged_grid(in, to, at, faults);
}

Result<RowGrid> gather_grid(const Pages& from, const BlockTables& at,
                            const codec::MutableRowsView& out, FaultWord* faults) {
  return paged_grid(out, from, at, faults);
}

std::uint32_t blocks_of(const RowGrid& grid) {
  return static_cast<std::uint32_t>(ceil_div(grid.rows(), kRowsOfBlock));
}

}  // namespace kvcache::cuda
