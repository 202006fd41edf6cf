// Records of a remote store whose every byte follows from their number, and reading them back. For
// tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "remote/remote_store.h"

namespace kvcache::remote {

struct Record {
  persist::RecordHeader header;
  std::vector<std::int32_t> tokens;
  std::string bytes;

  explicit Record(std::uint8_t number, std::size_t size = 1000)
      : tokens(5, number), bytes(size, 0) {
    header.key[0] = number;
    header.parent[1] = number;
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + number);
  }
  Status append_to(RemoteStore& store, const std::string& owner = "me") const {
    const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    return store.append(header, tokens, {&piece, 1}, owner);
  }
};

// Which records are found.
inline std::vector<bool> find(RemoteStore& store, std::span<const Record> records) {
  std::vector<persist::Digest> keys;
  for (const Record& each : records) keys.push_back(each.header.key);
  std::vector<bool> found;
  for (const auto& each : store.find_runs(keys)) found.push_back(each.has_value());
  return found;
}

// How the records went, found and read all at once. kNotFound: those that were not even found.
inline std::vector<StatusCode> read_back(RemoteStore& store, std::span<const Record> records) {
  std::vector<persist::Digest> keys;
  for (const Record& each : records) keys.push_back(each.header.key);
  const auto located = store.find_runs(keys);
  std::vector<StatusCode> codes(records.size(), StatusCode::kNotFound);
  std::vector<std::string> bytes;
  std::vector<persist::RecordRead> reads;
  std::vector<std::size_t> numbers;
  for (const Record& each : records) bytes.emplace_back(each.bytes.size(), '\0');
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (!located[i]) continue;
    const std::size_t third = bytes[i].size() / 3;
    persist::RecordRead read;
    read.record = &*located[i];
    read.tokens.resize(5);
    read.payload = {{bytes[i].data(), third}, {bytes[i].data() + third, bytes[i].size() - third}};
    reads.push_back(std::move(read));
    numbers.push_back(i);
  }
  store.read(reads);
  for (std::size_t k = 0; k < reads.size(); ++k) {
    const std::size_t i = numbers[k];
    codes[i] = reads[k].status.code();
    if (!reads[k].status) continue;
    EXPECT_EQ(bytes[i], records[i].bytes);
    EXPECT_EQ(reads[k].tokens, records[i].tokens);
  }
  return codes;
}

}  // namespace kvcache::remote
