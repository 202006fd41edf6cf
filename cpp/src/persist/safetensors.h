// The header of a safetensors file: https://github.com/huggingface/safetensors, "Format".
#pragma once

#include <cstdint>
#include <string>

#include "kvcache/status.h"
#include "persist/files.h"
#include "persist/json.h"
#include "persist/shards.h"

namespace kvcache::persist::safetensors {

inline constexpr std::uint64_t kMaxHeaderBytes = 1 << 20;
inline constexpr std::uint64_t kLengthBytes = 8;  // before the header: its length

// Length prefix and JSON, padded with spaces so that the arrays begin at a multiple of 8.
std::string header(const ShardSpec& shard);

// The length of the header of a file of `file_bytes`, and the header. kCorruption: it has none, or
// it is no JSON; names the file.
Result<std::uint64_t> header_length(const File& file, std::uint64_t file_bytes);
Result<json::Value> read_header(const File& file, std::uint64_t length);

// Checks that a file of `file_bytes` holds exactly the arrays of `shard`, in their order without
// gaps, and nothing behind them. Returns the bytes before the first array.
// kCorruption: it does not; names the file.
Result<std::uint64_t> check_header(const File& file, std::uint64_t file_bytes,
                                   const ShardSpec& shard);

}  // namespace kvcache::persist::safetensors
