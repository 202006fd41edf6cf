// Rows that are stored as they come, of any element type: runs without gaps are copied whole.
#pragma once

#include "codec/kernels.h"

namespace kvcache::codec {

// `width` of the job is in bytes.
void copy_rows_in(const EncodeJob& job);
void copy_rows_out(const DecodeJob& job);

}  // namespace kvcache::codec
