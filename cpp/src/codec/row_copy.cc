#include "codec/row_copy.h"

#include <cstring>

namespace kvcache::codec {
namespace {

// Calls copy(byte offset among strided rows, byte offset among packed rows, bytes).
template <typename Job, typename Copy>
void for_each_run(const Job& job, const Copy& copy) {
  const auto row = static_cast<std::ptrdiff_t>(job.width);
  const auto token = row * static_cast<std::ptrdiff_t>(job.heads);
  const bool dense_tokens = job.heads == 1 || job.head_stride == row;
  if (dense_tokens && job.token_stride == token) return copy(0, 0, job.rows * job.width);
  const std::size_t heads = dense_tokens ? 1 : job.heads;  // copies of one token
  const std::size_t bytes = static_cast<std::size_t>(token) / heads;
  for (std::size_t i = 0; i < job.rows / job.heads; ++i) {
    std::ptrdiff_t at = static_cast<std::ptrdiff_t>(i) * job.token_stride;
    for (std::size_t head = 0; head < heads; ++head, at += job.head_stride) {
      copy(at, (i * heads + head) * bytes, bytes);
    }
  }
}

}  // namespace

void copy_rows_in(const EncodeJob& job) {
  for_each_run(job, [&](std::ptrdiff_t strided, std::size_t packed, std::size_t bytes) {
    std::memcpy(job.packed + packed, job.elements + strided, bytes);
  });
}

void copy_rows_out(const DecodeJob& job) {
  for (const DecodeRun* run = job.runs; run != job.runs + job.run_count; ++run) {
    for_each_run(job, [&](std::ptrdiff_t strided, std::size_t packed, std::size_t bytes) {
      std::memcpy(run->elements + strided, run->packed + packed, bytes);
    });
  }
}

}  // namespace kvcache::codec
