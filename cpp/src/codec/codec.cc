#include "kvcache/codec.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "codec/float_environment.h"
#include "codec/kernels.h"
#include "codec/parallel.h"
#include "codec/registry.h"

namespace kvcache::codec {
namespace {

constexpr std::size_t kThreadBytes = std::size_t{256} << 10;  // below this a thread costs more
constexpr std::size_t kPrefetchBytes = std::size_t{1} << 20;  // above this the L2 cache is passed
constexpr std::size_t kStreamBytes = std::size_t{8} << 20;  // output that nobody will find in cache

Element element_of(DType dtype) {
  KVCACHE_CHECK(dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16);
  if (dtype == DType::kF32) return kElementF32;
  return dtype == DType::kF16 ? kElementF16 : kElementBf16;
}

const Kernels& kernels_or_scalar() {
  const auto& active = active_kernels();
  return active ? *active.value() : *compiled_kernels().back();
}

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
      .prefetch = element_bytes(in) > kPrefetchBytes,
      .stream = packed_bytes_total > kStreamBytes,
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
      .prefetch = bytes > kPrefetchBytes,
      .stream = bytes > kStreamBytes && is_dense(out),
  };
}

char* token_at(const MutableRowsView& out, std::size_t token) {
  return static_cast<char*>(out.data) + static_cast<std::ptrdiff_t>(token) * out.token_stride;
}

Status non_finite_row(std::size_t row) {
  return Status::non_finite("row ", row, ": an element is not finite after F16 rounding");
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

Status check_pages(std::size_t pages, PageSpan where, std::size_t tokens) {
  if (tokens == 0) return Status::ok();
  if (where.page_tokens == 0) return Status::invalid_argument("page_tokens is 0");
  const std::size_t last = where.first + (tokens - 1);
  if (last < where.first || last / where.page_tokens >= pages) {
    return Status::invalid_argument(tokens, " tokens from position ", where.first,
                                    " on need more than ", pages, " pages of ", where.page_tokens,
                                    " tokens");
  }
  return Status::ok();
}

// A stretch of tokens within one page.
struct Stretch {
  std::size_t page;
  std::size_t offset;
  std::size_t tokens;
};

Stretch stretch_at(PageSpan where, std::size_t token, std::size_t end) {
  const std::size_t position = where.first + token;
  const std::size_t offset = position % where.page_tokens;
  return {position / where.page_tokens, offset, std::min(where.page_tokens - offset, end - token)};
}

// Decodes tokens [token, end): whole pages side by side, partial ones alone.
template <typename RunOf>
void gather_range(Decode decode, PageSpan where, const MutableRowsView& out, std::size_t token,
                  std::size_t end, const RunOf& run_of) {
  while (token < end) {
    DecodeRun runs[kDecodeRunsMax];
    std::size_t count = 0;
    std::size_t tokens = 0;
    while (count < kDecodeRunsMax && token < end) {
      const Stretch next = stretch_at(where, token, end);
      if (count > 0 && next.tokens != tokens) break;
      tokens = next.tokens;
      runs[count] = run_of(next);
      runs[count].elements = token_at(out, token);
      ++count;
      token += tokens;
    }
    decode(decode_job(out, tokens, runs, count));
  }
}

template <typename RunOf>
Status gather(const Decode* table, std::size_t pages, PageSpan where, const MutableRowsView& out,
              unsigned threads, const RunOf& run_of) {
  if (Status status = check_pages(pages, where, out.tokens); !status) return status;
  if (element_bytes(out) == 0) return Status::ok();
  const Decode decode = table[element_of(out.dtype)];
  const auto body = [&](std::size_t, std::size_t token, std::size_t tokens) {
    const NearestRounding rounding;
    gather_range(decode, where, out, token, token + tokens, run_of);
  };
  for_each_part(out.tokens, part_count(element_bytes(out), out.tokens, threads), body);
  return Status::ok();
}

// Encodes each stretch of tokens into its page; encode(stretch, token) returns a row or its end.
template <typename EncodeStretch>
std::size_t scatter_range(PageSpan where, std::size_t token, std::size_t end, std::size_t heads,
                          const EncodeStretch& encode) {
  while (token < end) {
    const Stretch next = stretch_at(where, token, end);
    const std::size_t rows = next.tokens * heads;
    const std::size_t good = encode(next, token);
    if (good < rows) return token * heads + good;
    token += next.tokens;
  }
  return end * heads;
}

}  // namespace

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
  const std::size_t parts = part_count(bytes, in.tokens, threads);
  std::size_t good = in.tokens * in.heads;
  if (parts == 1) {
    good = part(0, in.tokens);
  } else {
    std::vector<std::size_t> results(parts, good);
    for_each_part(in.tokens, parts, [&](std::size_t i, std::size_t token, std::size_t tokens) {
      results[i] = part(token, tokens);
    });
    good = *std::min_element(results.begin(), results.end());
  }
  return good < in.tokens * in.heads ? non_finite_row(first_row + good) : Status::ok();
}

void decode_int8(const std::int8_t* codes, const float* scales, const MutableRowsView& out,
                 unsigned threads) {
  decode_contiguous(kernels_or_scalar().decode_int8[element_of(out.dtype)],
                    reinterpret_cast<const char*>(codes), 1, scales, out, threads);
}

void encode_f16(const RowsView& view, std::uint16_t* out, unsigned threads) {
  const RowsView in = flattened(view);
  if (element_bytes(in) == 0) return;
  const EncodeF16 encode = kernels_or_scalar().encode_f16[element_of(in.dtype)];
  const auto body = [&](std::size_t, std::size_t token, std::size_t tokens) {
    const NearestRounding rounding;
    encode(encode_job(in, token, tokens, reinterpret_cast<char*>(out + token * in.heads * in.width),
                      nullptr, in.tokens * in.heads * in.width * 2));
  };
  for_each_part(in.tokens, part_count(element_bytes(in), in.tokens, threads), body);
}

void decode_f16(const std::uint16_t* in, const MutableRowsView& out, unsigned threads) {
  decode_contiguous(kernels_or_scalar().decode_f16[element_of(out.dtype)],
                    reinterpret_cast<const char*>(in), 2, nullptr, out, threads);
}

Status scatter_int8(const RowsView& in, std::span<const Int8Page> pages, PageSpan where,
                    unsigned threads) {
  if (Status status = check_isa(); !status) return status;
  if (Status status = check_pages(pages.size(), where, in.tokens); !status) return status;
  if (element_bytes(in) == 0) return Status::ok();
  const EncodeInt8 encode = active_kernels().value()->encode_int8[element_of(in.dtype)];
  const std::size_t rows = in.tokens * in.heads;
  const auto encode_stretch = [&](const Stretch& to, std::size_t token) {
    const std::size_t row = to.offset * in.heads;
    return encode(encode_job(in, token, to.tokens,
                             reinterpret_cast<char*>(pages[to.page].codes + row * in.width),
                             pages[to.page].scales + row, rows * in.width));
  };
  const std::size_t parts = part_count(element_bytes(in), in.tokens, threads);
  std::vector<std::size_t> results(parts, rows);
  for_each_part(in.tokens, parts, [&](std::size_t i, std::size_t token, std::size_t tokens) {
    const NearestRounding rounding;
    const std::size_t end = token + tokens;
    const std::size_t good = scatter_range(where, token, end, in.heads, encode_stretch);
    if (good < end * in.heads) results[i] = good;
  });
  const std::size_t good = *std::min_element(results.begin(), results.end());
  return good < rows ? non_finite_row(good) : Status::ok();
}

Status gather_int8(std::span<const ConstInt8Page> pages, PageSpan where, const MutableRowsView& out,
                   unsigned threads) {
  if (Status status = check_isa(); !status) return status;
  return gather(active_kernels().value()->decode_int8, pages.size(), where, out, threads,
                [&](const Stretch& from) {
                  const std::size_t row = from.offset * out.heads;
                  const ConstInt8Page& page = pages[from.page];
                  return DecodeRun{reinterpret_cast<const char*>(page.codes + row * out.width),
                                   page.scales + row, nullptr};
                });
}

Status scatter_f16(const RowsView& in, std::span<std::uint16_t* const> pages, PageSpan where,
                   unsigned threads) {
  if (Status status = check_isa(); !status) return status;
  if (Status status = check_pages(pages.size(), where, in.tokens); !status) return status;
  if (element_bytes(in) == 0) return Status::ok();
  const EncodeF16 encode = active_kernels().value()->encode_f16[element_of(in.dtype)];
  const auto encode_stretch = [&](const Stretch& to, std::size_t token) {
    std::uint16_t* target = pages[to.page] + to.offset * in.heads * in.width;
    encode(encode_job(in, token, to.tokens, reinterpret_cast<char*>(target), nullptr,
                      in.tokens * in.heads * in.width * 2));
    return to.tokens * in.heads;
  };
  for_each_part(in.tokens, part_count(element_bytes(in), in.tokens, threads),
                [&](std::size_t, std::size_t token, std::size_t tokens) {
                  const NearestRounding rounding;
                  scatter_range(where, token, token + tokens, in.heads, encode_stretch);
                });
  return Status::ok();
}

Status gather_f16(std::span<const std::uint16_t* const> pages, PageSpan where,
                  const MutableRowsView& out, unsigned threads) {
  if (Status status = check_isa(); !status) return status;
  return gather(active_kernels().value()->decode_f16, pages.size(), where, out, threads,
                [&](const Stretch& from) {
                  const std::uint16_t* rows =
                      pages[from.page] + from.offset * out.heads * out.width;
                  return DecodeRun{reinterpret_cast<const char*>(rows), nullptr, nullptr};
                });
}

std::string_view active_isa() {
  const auto& active = active_kernels();
  return active ? active.value()->name : std::string_view();
}

Status check_isa() { return active_kernels().status(); }

}  // namespace kvcache::codec
