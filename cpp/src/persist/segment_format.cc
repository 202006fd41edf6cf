#include "persist/segment_format.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "base/crc32c.h"

namespace kvcache::persist {
namespace {

static_assert(std::endian::native == std::endian::little, "stored numbers are little-endian");

constexpr std::uint64_t kSegmentMagic = 0x0a0d474553'43564bULL;  // "KVCSEG\r\n"
constexpr std::uint64_t kTrailerMagic = 0x0a0d444e45'43564bULL;  // "KVCEND\r\n"
constexpr std::uint32_t kRecordMagic = 0x4352564bU;              // "KVRC"
constexpr std::string_view kMarkerStart = "kvcache-disk-tier ";
constexpr std::string_view kHex = "0123456789abcdef";

// Writes fields one after another; what it leaves is zero, but for the checksum at the end.
template <std::size_t Bytes>
class Fields {
 public:
  template <typename Value>
  Fields& put(const Value& value) {
    std::memcpy(bytes_.data() + at_, &value, sizeof(value));
    at_ += sizeof(value);
    return *this;
  }
  std::array<std::byte, Bytes> sealed() {
    const std::uint32_t crc = crc32c(0, bytes_.data(), Bytes - sizeof(crc));
    std::memcpy(bytes_.data() + Bytes - sizeof(crc), &crc, sizeof(crc));
    return bytes_;
  }

 private:
  std::array<std::byte, Bytes> bytes_{};
  std::size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename Value>
  Value take() {
    Value value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }
  // Whether the rest is zero, and the checksum at the end is right.
  bool is_whole() const {
    std::uint32_t crc = 0;
    const std::size_t body = bytes_.size() - sizeof(crc);
    std::memcpy(&crc, bytes_.data() + body, sizeof(crc));
    return crc == crc32c(0, bytes_.data(), body) &&
           std::all_of(bytes_.begin() + static_cast<std::ptrdiff_t>(at_),
                       bytes_.begin() + static_cast<std::ptrdiff_t>(body),
                       [](std::byte byte) { return byte == std::byte{}; });
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

std::optional<RecordHeader> parse_record(std::span<const std::byte, kRecordHeaderBytes> bytes) {
  Reader reader(bytes);
  if (reader.take<std::uint32_t>() != kRecordMagic) return std::nullopt;
  const auto version = reader.take<std::uint16_t>();
  const auto kind = reader.take<std::uint8_t>();
  const auto flags = reader.take<std::uint8_t>();
  RecordHeader header;
  header.segment = reader.take<std::uint64_t>();
  header.offset = reader.take<std::uint64_t>();
  header.key = reader.take<Digest>();
  header.parent = reader.take<Digest>();
  header.origin = reader.take<Digest>();
  header.first = reader.take<std::uint64_t>();
  header.tokens = reader.take<std::uint64_t>();
  header.payload_bytes = reader.take<std::uint64_t>();
  header.tokens_crc = reader.take<std::uint32_t>();
  header.payload_crc = reader.take<std::uint32_t>();
  header.owner = reader.take<Digest>();
  header.owner_bytes = reader.take<std::uint32_t>();
  if (!reader.is_whole() || version != kSegmentVersion || flags != 0) return std::nullopt;
  if (kind < static_cast<std::uint8_t>(RecordKind::kRun) ||
      kind > static_cast<std::uint8_t>(RecordKind::kErased)) {
    return std::nullopt;
  }
  header.kind = static_cast<RecordKind>(kind);
  const bool fits = header.offset < kMaxSegmentBytes && header.payload_bytes < kMaxSegmentBytes &&
                    header.tokens <= kMaxRecordTokens && header.first <= kMaxRecordTokens &&
                    header.owner_bytes <= kMaxOwnerBytes;
  return fits ? std::optional(header) : std::nullopt;
}

}  // namespace

std::uint64_t RecordHeader::payload_offset(std::uint32_t alignment) const {
  return round_up(owner_offset() + owner_bytes, alignment);
}

std::uint64_t RecordHeader::payload_end(std::uint32_t alignment) const {
  return payload_offset(alignment) + payload_bytes;
}

std::uint64_t RecordHeader::next_offset(std::uint32_t alignment) const {
  return round_up(payload_end(alignment), alignment);
}

RecordHeader RecordHeader::erased() const {
  RecordHeader header;
  header.kind = RecordKind::kErased;
  header.segment = segment;
  header.offset = offset;
  header.tokens = tokens;
  header.payload_bytes = payload_bytes;
  header.owner_bytes = owner_bytes;
  return header;
}

SegmentHeaderBytes encode(const SegmentHeader& header) {
  return Fields<kSegmentHeaderBytes>()
      .put(kSegmentMagic)
      .put(kSegmentVersion)
      .put(header.alignment)
      .put(header.number)
      .put(header.tier)
      .sealed();
}

RecordHeaderBytes encode(const RecordHeader& header) {
  return Fields<kRecordHeaderBytes>()
      .put(kRecordMagic)
      .put(static_cast<std::uint16_t>(kSegmentVersion))
      .put(static_cast<std::uint8_t>(header.kind))
      .put(std::uint8_t{0})
      .put(header.segment)
      .put(header.offset)
      .put(header.key)
      .put(header.parent)
      .put(header.origin)
      .put(header.first)
      .put(header.tokens)
      .put(header.payload_bytes)
      .put(header.tokens_crc)
      .put(header.payload_crc)
      .put(header.owner)
      .put(header.owner_bytes)
      .sealed();
}

TrailerBytes encode(const SegmentTrailer& trailer) {
  return Fields<kTrailerBytes>()
      .put(kTrailerMagic)
      .put(kSegmentVersion)
      .put(trailer.entries_crc)
      .put(trailer.number)
      .put(trailer.records)
      .put(trailer.entries_offset)
      .sealed();
}

Result<SegmentHeader> decode_segment_header(std::span<const std::byte, kSegmentHeaderBytes> bytes) {
  Reader reader(bytes);
  if (reader.take<std::uint64_t>() != kSegmentMagic) {
    return Status::corruption("not a segment of a disk tier");
  }
  const auto version = reader.take<std::uint32_t>();
  SegmentHeader header;
  header.alignment = reader.take<std::uint32_t>();
  header.number = reader.take<std::uint64_t>();
  header.tier = reader.take<TierId>();
  if (!reader.is_whole()) return Status::corruption("the header of the segment is damaged");
  if (version != kSegmentVersion) {
    return Status::unsupported("format version ", version, ", this library reads ",
                               kSegmentVersion);
  }
  if (!std::has_single_bit(header.alignment) || header.alignment < kSegmentHeaderBytes ||
      header.alignment > kMaxAlignment) {
    return Status::corruption("records aligned to ", header.alignment, " bytes");
  }
  return header;
}

std::optional<RecordHeader> decode_record(std::span<const std::byte, kRecordHeaderBytes> bytes) {
  return parse_record(bytes);
}

std::optional<RecordHeader> decode_record(std::span<const std::byte, kRecordHeaderBytes> bytes,
                                          std::uint64_t segment, std::uint64_t offset) {
  const auto header = parse_record(bytes);
  const bool in_place = header && header->segment == segment && header->offset == offset;
  return in_place ? header : std::nullopt;
}

std::optional<SegmentTrailer> decode_trailer(std::span<const std::byte, kTrailerBytes> bytes) {
  Reader reader(bytes);
  if (reader.take<std::uint64_t>() != kTrailerMagic) return std::nullopt;
  const auto version = reader.take<std::uint32_t>();
  SegmentTrailer trailer;
  trailer.entries_crc = reader.take<std::uint32_t>();
  trailer.number = reader.take<std::uint64_t>();
  trailer.records = reader.take<std::uint64_t>();
  trailer.entries_offset = reader.take<std::uint64_t>();
  if (!reader.is_whole() || version != kSegmentVersion) return std::nullopt;
  const bool fits = trailer.entries_offset < kMaxSegmentBytes &&
                    trailer.records < kMaxSegmentBytes / kRecordHeaderBytes;
  return fits ? std::optional(trailer) : std::nullopt;
}

std::string segment_name(std::uint64_t number) {
  std::string digits(16, '0');
  for (std::size_t i = digits.size(); i-- > 0; number >>= 4) digits[i] = kHex[number & 15];
  return "segment-" + digits + ".kvseg";
}

std::optional<std::uint64_t> segment_number(std::string_view name) {
  constexpr std::string_view kPrefix = "segment-", kSuffix = ".kvseg";
  if (name.size() != kPrefix.size() + 16 + kSuffix.size()) return std::nullopt;
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  std::uint64_t number = 0;
  for (const char digit : name.substr(kPrefix.size(), 16)) {
    const std::size_t value = kHex.find(digit);
    if (value == kHex.npos) return std::nullopt;
    number = number << 4 | value;
  }
  return number;
}

std::string tier_id_text(const TierId& id) {
  std::string text;
  for (const std::uint8_t byte : id) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

std::string tier_marker(const TierId& id) {
  return std::string(kMarkerStart) + std::to_string(kSegmentVersion) + ' ' + tier_id_text(id) +
         '\n';
}

Result<TierId> parse_tier_marker(std::string_view text, const std::string& path) {
  if (!text.starts_with(kMarkerStart)) {
    return Status::corruption(path, ": not the marker of a disk tier");
  }
  const std::string_view rest = text.substr(kMarkerStart.size());
  const std::size_t space = rest.find(' ');
  const std::string_view version = rest.substr(0, space);
  if (space == rest.npos || version.empty() || version.size() > 9 ||
      version.find_first_not_of("0123456789") != version.npos) {
    return Status::corruption(path, ": not the marker of a disk tier");
  }
  if (version != std::to_string(kSegmentVersion)) {
    return Status::unsupported(path, ": format version ", version, ", this library reads ",
                               kSegmentVersion);
  }
  TierId id{};
  const std::string_view digits = rest.substr(space + 1);
  for (std::size_t i = 0; i < id.size() && digits.size() > 2 * i + 1; ++i) {
    id[i] = static_cast<std::uint8_t>(kHex.find(digits[2 * i]) << 4 |
                                      (kHex.find(digits[2 * i + 1]) & 15));
  }
  if (tier_marker(id) != text) return Status::corruption(path, ": not the marker of a disk tier");
  return id;
}

}  // namespace kvcache::persist
