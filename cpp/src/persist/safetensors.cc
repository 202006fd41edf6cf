#include "persist/safetensors.h"

#include <cstring>
#include <string_view>

#include "base/checked.h"
#include "persist/json.h"

namespace kvcache::persist::safetensors {
namespace {

std::string_view dtype_tag(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kU32:
      return "U32";
    case DType::kI32:
      return "I32";
    case DType::kF16:
      return "F16";
    case DType::kBf16:
      return "BF16";
    case DType::kU64:
      return "U64";
    case DType::kU8:
      return "U8";
    case DType::kFp8:
      return "F8_E4M3";
    case DType::kI8:
      return "I8";
  }
  return "?";
}

void append_list(std::string& out, const std::vector<std::uint64_t>& numbers) {
  out += '[';
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(numbers[i]);
  }
  out += ']';
}

bool equals(const json::Value* value, const std::vector<std::uint64_t>& numbers) {
  if (value == nullptr || value->kind != json::Kind::kArray) return false;
  if (value->items.size() != numbers.size()) return false;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const json::Value& item = value->items[i];
    if (item.kind != json::Kind::kUnsigned || item.number != numbers[i]) return false;
  }
  return true;
}

Status check_arrays(const std::string& path, const json::Value& parsed, const ShardSpec& shard) {
  const std::size_t other = parsed.find("__metadata__") == nullptr ? 0 : 1;
  if (parsed.kind != json::Kind::kObject || parsed.keys.size() != shard.arrays.size() + other) {
    return Status::corruption(path, ": the header has not the ", shard.arrays.size(),
                              " arrays that belong here");
  }
  std::uint64_t offset = 0;
  for (const ArraySpec& array : shard.arrays) {
    const json::Value* entry = parsed.find(array.name);
    if (entry == nullptr) return Status::corruption(path, ": no array ", array.name);
    const json::Value* dtype = entry->find("dtype");
    const bool same_dtype = dtype != nullptr && dtype->kind == json::Kind::kString &&
                            dtype->text == dtype_tag(array.dtype);
    if (!same_dtype || !equals(entry->find("shape"), array.shape) ||
        !equals(entry->find("data_offsets"), {offset, offset + array.bytes})) {
      std::string shape;
      append_list(shape, array.shape);
      return Status::corruption(path, ": ", array.name, " is not ", dtype_tag(array.dtype), " ",
                                shape, " at byte ", offset);
    }
    offset += array.bytes;
  }
  return Status::ok();
}

}  // namespace

std::string header(const ShardSpec& shard) {
  std::string text = "{";
  std::uint64_t offset = 0;
  for (const ArraySpec& array : shard.arrays) {
    if (offset > 0) text += ',';
    json::append_string(text, array.name);
    text += ":{\"dtype\":";
    json::append_string(text, dtype_tag(array.dtype));
    text += ",\"shape\":";
    append_list(text, array.shape);
    text += ",\"data_offsets\":";
    append_list(text, {offset, offset + array.bytes});
    text += '}';
    offset += array.bytes;
  }
  text += '}';
  text.resize(round_up(text.size(), 8), ' ');
  const std::uint64_t length = text.size();
  std::string out(kLengthBytes, '\0');
  std::memcpy(out.data(), &length, kLengthBytes);
  return out + text;
}

Result<std::uint64_t> header_length(const File& file, std::uint64_t file_bytes) {
  std::uint64_t length = 0;
  if (Status status = file.read_at(0, &length, kLengthBytes); !status) return status;
  if (length == 0 || length > kMaxHeaderBytes || length > file_bytes - kLengthBytes) {
    return Status::corruption(file.path(), ": a header of ", length, " bytes in a file of ",
                              file_bytes);
  }
  return length;
}

Result<json::Value> read_header(const File& file, std::uint64_t length) {
  std::string text(length, '\0');
  if (Status status = file.read_at(kLengthBytes, text.data(), text.size()); !status) return status;
  auto parsed = json::parse(text);
  if (!parsed) return Status::corruption(file.path(), ": header: ", parsed.status().message());
  return parsed;
}

Result<std::uint64_t> check_header(const File& file, std::uint64_t file_bytes,
                                   const ShardSpec& shard) {
  const auto length = header_length(file, file_bytes);
  if (!length) return length.status();
  const std::uint64_t payload_bytes = file_bytes - kLengthBytes - *length;
  if (payload_bytes != shard.payload_bytes) {
    return Status::corruption(file.path(), ": ", payload_bytes, " bytes of arrays, expected ",
                              shard.payload_bytes);
  }
  const auto parsed = read_header(file, *length);
  if (!parsed) return parsed.status();
  if (Status status = check_arrays(file.path(), *parsed, shard); !status) return status;
  return kLengthBytes + *length;
}

}  // namespace kvcache::persist::safetensors
