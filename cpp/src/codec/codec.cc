#include "kvcache/codec.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "codec/float_environment.h"
#include "codec/kernels.h"
#include "codec/registry.h"
#include "codec/row_codec.h"

namespace kvcache::codec {
namespace {

constexpr std::size_t kThreadBytes = std::size_t{256} << 10;  // below this a thread costs more

// Rows that follow each other at one stride become tokens of one head each, which splits evenly.
template <typename View>
View flattened(View view) {
  if (view.heads > 1 &&
      view.token_stride == static_cast<std::ptrdiff_t>(view.heads) * view.head_stride) {
    view.tokens *= view.heads;
    view.heads = 1;
    view.token_stride = view.head_stride;
  }
  return view;
}

template <typename View>
std::size_t element_bytes(const View& view) {
  return view.tokens * view.heads * view.width * dtype_bytes(view.dtype);
}

std::size_t part_count(std::size_t bytes, std::size_t tokens, unsigned threads) {
  const std::size_t useful = std::min(bytes / kThreadBytes, tokens);
  return std::max<std::size_t>(1, std::min<std::size_t>(threads, useful));
}

// `token` and what follows it, `tokens` in all.
EncodeJob encode_job(const RowsView& in, std::size_t token, std::size_t tokens, char* packed,
                     float* scales, std::size_t packed_bytes_total) {
  return {
      .elements =
          static_cast<const char*>(in.data) + static_cast<std::ptrdiff_t>(token) * in.token_stride,
      .token_stride = in.token_stride,
      .head_stride = in.head_stride,
      .heads = in.heads,
      .rows = tokens * in.heads,
      .width = in.width,
      .packed = packed,
      .scales = scales,
      .prefetch = element_bytes(in) > kPrefetchJobBytes,
      .stream = packed_bytes_total > kStreamJobBytes,
  };
}

bool is_dense(const MutableRowsView& out) {
  const auto row = static_cast<std::ptrdiff_t>(out.width * dtype_bytes(out.dtype));
  return (out.heads == 1 || out.head_stride == row) &&
         (out.tokens == 1 || out.token_stride == row * static_cast<std::ptrdiff_t>(out.heads));
}

DecodeJob decode_job(const MutableRowsView& out, std::size_t tokens, const DecodeRun* runs,
                     std::size_t run_count) {
  const std::size_t bytes = element_bytes(out);
  return {
      .runs = runs,
      .run_count = run_count,
      .token_stride = out.token_stride,
      .head_stride = out.head_stride,
      .heads = out.heads,
      .rows = tokens * out.heads,
      .width = out.width,
      .prefetch = bytes > kPrefetchJobBytes,
      .stream = bytes > kStreamJobBytes && is_dense(out),
  };
}

char* token_at(const MutableRowsView& out, std::size_t token) {
  return static_cast<char*>(out.data) + static_cast<std::ptrdiff_t>(token) * out.token_stride;
}

// The smallest of what part(first token, tokens) returns over the parts of a call.
template <typename Part>
std::size_t first_of_parts(std::size_t tokens, std::size_t bytes, unsigned threads,
                           std::size_t none, const Part& part) {
  const std::size_t parts = part_count(bytes, tokens, threads);
  if (parts == 1) return part(0, tokens);
  std::vector<std::size_t> results(parts, none);
  for_each_part(tokens, parts, [&](std::size_t i, std::size_t first, std::size_t count) {
    results[i] = part(first, count);
  });
  return *std::min_element(results.begin(), results.end());
}

Status non_finite_row(std::size_t row) {
  return Status::non_finite("row ", row, ": an element is not finite after F16 rounding");
}

struct ViewCodec : RowCodec {
  std::size_t stored_bytes;  // of one element
};

// REQUIRES: converts(stored, view.dtype). Where types agree the view becomes one of bytes.
template <typename View>
ViewCodec view_codec(DType stored, View& view) {
  const RowCodec codec = row_codec(stored, view.dtype);
  if (view.dtype != stored) return {codec, dtype_bytes(stored)};
  view.width *= dtype_bytes(stored);
  view.dtype = DType::kU8;
  return {codec, 1};
}

// Decodes contiguous packed rows: one run a thread.
void decode_contiguous(Decode decode, const char* packed, std::size_t packed_bytes,
                       const float* scales, const MutableRowsView& view, unsigned threads) {
  const MutableRowsView out = flattened(view);
  if (element_bytes(out) == 0) return;
  const auto body = [&](std::size_t, std::size_t token, std::size_t tokens) {
    const NearestRounding rounding;
    const std::size_t row = token * out.heads;
    const DecodeRun run{packed + row * out.width * packed_bytes,
                        scales == nullptr ? nullptr : scales + row, token_at(out, token)};
    decode(decode_job(out, tokens, &run, 1));
  };
  for_each_part(out.tokens, part_count(element_bytes(out), out.tokens, threads), body);
}

Status check_pages(const PagedRows& rows, DType element, std::size_t tokens) {
  if (Status status = check_isa(); !status) return status;
  if (!converts(rows.stored, element)) {
    return Status::invalid_argument("rows of ", dtype_name(rows.stored), " cannot be ",
                                    dtype_name(element));
  }
  if (tokens == 0) return Status::ok();
  if (rows.page_tokens == 0) return Status::invalid_argument("page_tokens is 0");
  const std::size_t last = rows.first + (tokens - 1);
  if (last < rows.first || last / rows.page_tokens >= rows.pages.size()) {
    return Status::invalid_argument(tokens, " tokens from position ", rows.first,
                                    " on need more than ", rows.pages.size(), " pages of ",
                                    rows.page_tokens, " tokens");
  }
  return Status::ok();
}

// A stretch of tokens within one page: where its packed rows and their scales begin.
struct Stretch {
  char* packed;
  float* scales;
  std::size_t tokens;
};

// REQUIRES: the pages reach to `end`. `row_bytes`: stored bytes of one row.
Stretch stretch_at(const PagedRows& rows, std::size_t heads, std::size_t row_bytes,
                   std::size_t token, std::size_t end) {
  const std::size_t position = rows.first + token;
  const std::size_t offset = position % rows.page_tokens;
  std::byte* page = rows.pages[position / rows.page_tokens];
  const std::size_t row = offset * heads;
  return {reinterpret_cast<char*>(page + rows.rows_offset + row * row_bytes),
          reinterpret_cast<float*>(page + rows.scales_offset) + row,
          std::min(rows.page_tokens - offset, end - token)};
}

// Decodes tokens [token, end): whole pages side by side, partial ones alone.
void gather_range(const ViewCodec& codec, const PagedRows& from, const MutableRowsView& out,
                  std::size_t token, std::size_t end) {
  const std::size_t row_bytes = out.width * codec.stored_bytes;
  while (token < end) {
    DecodeRun runs[kDecodeRunsMax];
    std::size_t count = 0;
    std::size_t tokens = 0;
    while (count < kDecodeRunsMax && token < end) {
      const Stretch next = stretch_at(from, out.heads, row_bytes, token, end);
      if (count > 0 && next.tokens != tokens) break;
      tokens = next.tokens;
      runs[count++] = {next.packed, next.scales, token_at(out, token)};
      token += tokens;
    }
    codec.decode(decode_job(out, tokens, runs, count));
  }
}

// Encodes tokens [token, end) into their pages. Returns the first row that is not finite, or
// end * in.heads.
std::size_t scatter_range(const ViewCodec& codec, const RowsView& in, const PagedRows& to,
                          std::size_t token, std::size_t end) {
  const std::size_t row_bytes = in.width * codec.stored_bytes;
  const std::size_t total = in.tokens * in.heads * row_bytes;
  while (token < end) {
    const Stretch next = stretch_at(to, in.heads, row_bytes, token, end);
    const EncodeJob job = encode_job(in, token, next.tokens, next.packed, next.scales, total);
    const std::size_t good = codec.encode(job);
    if (good < job.rows) return token * in.heads + good;
    token += next.tokens;
  }
  return end * in.heads;
}

}  // namespace

bool converts(DType stored, DType element) {
  if (is_float(stored) || stored == DType::kI8) return is_float(element);
  return stored == element && stored != DType::kFp8;
}

Status encode_int8(const RowsView& view, std::int8_t* codes, float* scales, unsigned threads,
                   std::size_t first_row) {
  if (Status status = check_isa(); !status) return status;
  const RowsView in = flattened(view);
  const std::size_t bytes = element_bytes(in);
  if (bytes == 0) return Status::ok();
  const EncodeInt8 encode = active_kernels().value()->encode_int8[element_of(in.dtype)];
  const auto part = [&](std::size_t token, std::size_t tokens) {
    const NearestRounding rounding;
    const std::size_t row = token * in.heads;
    const std::size_t rows = tokens * in.heads;
    const std::size_t good =
        encode(encode_job(in, token, tokens, reinterpret_cast<char*>(codes + row * in.width),
                          scales + row, in.tokens * in.heads * in.width));
    return good < rows ? row + good : in.tokens * in.heads;
  };
  const std::size_t good = first_of_parts(in.tokens, bytes, threads, in.tokens * in.heads, part);
  return good < in.tokens * in.heads ? non_finite_row(first_row + good) : Status::ok();
}

void decode_int8(const std::int8_t* codes, const float* scales, const MutableRowsView& out,
                 unsigned threads) {
  decode_contiguous(kernels_or_scalar().decode_int8[element_of(out.dtype)],
                    reinterpret_cast<const char*>(codes), 1, scales, out, threads);
}

void encode_plain(const RowsView& view, DType stored, void* packed, unsigned threads) {
  RowsView in = flattened(view);
  const ViewCodec rows = view_codec(stored, in);
  const std::size_t row_bytes = in.width * rows.stored_bytes;
  if (element_bytes(in) == 0) return;
  const auto body = [&](std::size_t, std::size_t token, std::size_t tokens) {
    const NearestRounding rounding;
    char* target = static_cast<char*>(packed) + token * in.heads * row_bytes;
    rows.encode(encode_job(in, token, tokens, target, nullptr, in.tokens * in.heads * row_bytes));
  };
  for_each_part(in.tokens, part_count(element_bytes(in), in.tokens, threads), body);
}

void decode_plain(const void* packed, DType stored, const MutableRowsView& view, unsigned threads) {
  MutableRowsView out = view;
  const ViewCodec rows = view_codec(stored, out);
  decode_contiguous(rows.decode, static_cast<const char*>(packed), rows.stored_bytes, nullptr, out,
                    threads);
}

Status scatter(const RowsView& view, const PagedRows& to, unsigned threads) {
  if (Status status = check_pages(to, view.dtype, view.tokens); !status) return status;
  RowsView in = view;
  if (element_bytes(in) == 0) return Status::ok();
  const ViewCodec codec = view_codec(to.stored, in);
  const std::size_t rows = in.tokens * in.heads;
  const auto part = [&](std::size_t token, std::size_t tokens) {
    const NearestRounding rounding;
    const std::size_t end = token + tokens;
    const std::size_t good = scatter_range(codec, in, to, token, end);
    return good < end * in.heads ? good : rows;
  };
  const std::size_t good = first_of_parts(in.tokens, element_bytes(in), threads, rows, part);
  return good < rows ? non_finite_row(good) : Status::ok();
}

Status gather(const PagedRows& from, const MutableRowsView& view, unsigned threads) {
  if (Status status = check_pages(from, view.dtype, view.tokens); !status) return status;
  MutableRowsView out = view;
  if (element_bytes(out) == 0) return Status::ok();
  const ViewCodec codec = view_codec(from.stored, out);
  for_each_part(out.tokens, part_count(element_bytes(out), out.tokens, threads),
                [&](std::size_t, std::size_t token, std::size_t tokens) {
                  const NearestRounding rounding;
                  gather_range(codec, from, out, token, token + tokens);
                });
  return Status::ok();
}

std::string_view active_isa() {
  const auto& active = active_kernels();
  return active ? active.value()->name : std::string_view();
}

Status check_isa() { return active_kernels().status(); }

}  // namespace kvcache::codec
