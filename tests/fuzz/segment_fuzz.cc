// The reader of a segment: on any bytes, and on edits of a valid segment. What it finds lies in the
// file, and what it reads has the checksums that its header says.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/crc32c.h"
#include "fuzz.h"
#include "persist/segment.h"

namespace {

using kvcache::crc32c;
using kvcache::persist::FileFacts;
using kvcache::persist::RecordHeader;
using kvcache::persist::Segment;
using kvcache::persist::SegmentHeader;
using kvcache::persist::System;

// A system with one file, in memory.
class MemorySystem : public System {
 public:
  explicit MemorySystem(std::string bytes = {}) : bytes_(std::move(bytes)) {}
  const std::string& bytes() const { return bytes_; }

  int open_at(int, const char*, int, unsigned) override { return ::open("/dev/null", O_RDONLY); }
  int facts(int, FileFacts& facts) override {
    facts.bytes = bytes_.size();
    facts.is_regular = true;
    return 0;
  }
  std::int64_t read_at(int, const iovec* pieces, int count, std::uint64_t offset) override {
    std::int64_t done = 0;
    for (int i = 0; i < count && offset < bytes_.size(); ++i) {
      const std::size_t take = std::min<std::size_t>(pieces[i].iov_len, bytes_.size() - offset);
      std::memcpy(pieces[i].iov_base, bytes_.data() + offset, take);
      offset += take;
      done += static_cast<std::int64_t>(take);
    }
    return done;
  }
  std::int64_t write_at(int, const iovec* pieces, int count, std::uint64_t offset) override {
    std::int64_t done = 0;
    for (int i = 0; i < count; ++i) {
      bytes_.resize(std::max<std::size_t>(bytes_.size(), offset + pieces[i].iov_len));
      std::memcpy(bytes_.data() + offset, pieces[i].iov_base, pieces[i].iov_len);
      offset += pieces[i].iov_len;
      done += static_cast<std::int64_t>(pieces[i].iov_len);
    }
    return done;
  }
  int clear(int, std::uint64_t offset, std::uint64_t bytes) override {
    std::memset(bytes_.data() + offset, 0, bytes);
    return 0;
  }
  int sync(int) override { return 0; }
  int truncate(int, std::uint64_t bytes) override {
    bytes_.resize(bytes);
    return 0;
  }
  int rename_at(int, const char*, const char*) override { return 0; }
  int remove_at(int, const char*) override { return 0; }

 private:
  std::string bytes_;
};

constexpr std::uint64_t kNumber = 5;

std::string valid_segment(bool sealed) {
  MemorySystem system;
  const auto segment = Segment::create(system, -1, "s", SegmentHeader{{1, 2, 3}, kNumber, 64});
  FUZZ_EXPECT(segment.is_ok());
  std::vector<RecordHeader> records;
  for (std::int32_t i = 0; i < 4; ++i) {
    RecordHeader record;
    record.key[0] = static_cast<std::uint8_t>(i);
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(i), i);
    std::string payload(static_cast<std::size_t>(70 * i), 'p');
    const iovec piece{payload.data(), payload.size()};
    FUZZ_EXPECT((*segment)->append(record, tokens, {&piece, 1}, "owner").is_ok());
    records.push_back(record);
  }
  if (sealed) FUZZ_EXPECT((*segment)->seal(records).is_ok());
  const std::size_t erased[] = {1};
  FUZZ_EXPECT((*segment)->erase(erased, records).is_ok());
  return system.bytes();
}

void check(const std::string& bytes) {
  MemorySystem system(bytes);
  std::vector<RecordHeader> records;
  const auto segment =
      Segment::open(system, -1, "s", {1, 2, 3}, kNumber, false,
                    [&](const RecordHeader& record) { records.push_back(record); });
  if (!segment) return;
  const std::uint32_t alignment = (*segment)->alignment();
  std::uint64_t next = alignment;
  for (const RecordHeader& record : records) {
    FUZZ_EXPECT(record.offset == next);
    FUZZ_EXPECT(record.payload_end(alignment) <= bytes.size());
    next = record.next_offset(alignment);
    std::vector<std::int32_t> tokens(record.tokens);
    if (const auto owner = (*segment)->read_owner(record)) {
      FUZZ_EXPECT(owner->size() == record.owner_bytes);
    }
    std::vector<char> payload(record.payload_bytes);
    const iovec piece{payload.data(), payload.size()};
    if (!(*segment)->read(record, tokens, {&piece, 1})) continue;
    FUZZ_EXPECT(crc32c(0, payload.data(), payload.size()) == record.payload_crc);
    FUZZ_EXPECT(crc32c(0, tokens.data(), 4 * tokens.size()) == record.tokens_crc);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string sealed = valid_segment(true);
  static const std::string open = valid_segment(false);
  check(std::string(reinterpret_cast<const char*>(data), size));
  check(kvcache::fuzz::edited(sealed, data, size));
  check(kvcache::fuzz::edited(open, data, size));
  return 0;
}
