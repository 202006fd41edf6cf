// The bytes of a segment of the disk tier: see "Disk tier" in FORMAT.md. Nothing here touches a
// file, and nothing that is read is trusted.
// Thread safety: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "kvcache/status.h"

namespace kvcache::persist {

using Digest = Sha256::Digest;
using TierId = std::array<std::uint8_t, 16>;

inline constexpr std::uint32_t kSegmentVersion = 1;
inline constexpr std::uint64_t kSegmentHeaderBytes = 64;
inline constexpr std::uint64_t kRecordHeaderBytes = 192;
inline constexpr std::uint64_t kTrailerBytes = 64;
// Segments start, and records begin, at multiples of this unless the segment says otherwise.
inline constexpr std::uint32_t kAlignment = 4096;
inline constexpr std::uint32_t kMaxAlignment = 1 << 16;
inline constexpr std::uint64_t kMaxRecordTokens = 1 << 28;
inline constexpr std::uint64_t kMaxOwnerBytes = 1 << 16;
// Offsets and lengths stay below this, so that sums of a few of them do not overflow.
inline constexpr std::uint64_t kMaxSegmentBytes = std::uint64_t{1} << 48;

enum class RecordKind : std::uint8_t {
  kRun = 1,       // whole blocks of a path
  kBoundary = 2,  // what else it takes to go on at one position
  kErased = 3,    // zeros, where one of the others was
};

// The first bytes of a segment.
struct SegmentHeader {
  TierId tier{};
  std::uint64_t number = 0;
  std::uint32_t alignment = kAlignment;
};

// One record: whose state it holds, and where its bytes are.
struct RecordHeader {
  RecordKind kind = RecordKind::kRun;
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;  // of the header in the segment
  Digest key{};              // of the prefix that ends with the record
  Digest parent{};           // of the prefix before it
  Digest origin{};           // of model, storage and block length
  std::uint64_t first = 0;   // position of the first token
  std::uint64_t tokens = 0;
  std::uint64_t payload_bytes = 0;
  std::uint32_t tokens_crc = 0;
  std::uint32_t payload_crc = 0;
  Digest owner{};  // of the text that says whose it is
  std::uint32_t owner_bytes = 0;

  std::uint64_t end() const { return first + tokens; }
  std::uint64_t tokens_offset() const { return offset + kRecordHeaderBytes; }
  std::uint64_t owner_offset() const { return tokens_offset() + tokens * sizeof(std::int32_t); }
  std::uint64_t payload_offset(std::uint32_t alignment) const;
  // Where the payload stops, and where what follows begins.
  std::uint64_t payload_end(std::uint32_t alignment) const;
  std::uint64_t next_offset(std::uint32_t alignment) const;
  // The header that says where it was and nothing of what it was.
  RecordHeader erased() const;
};

// The last bytes of a sealed segment, after the copies of all its record headers.
struct SegmentTrailer {
  std::uint64_t number = 0;
  std::uint64_t records = 0;
  std::uint64_t entries_offset = 0;
  std::uint32_t entries_crc = 0;

  std::uint64_t file_bytes() const {
    return entries_offset + records * kRecordHeaderBytes + kTrailerBytes;
  }
};

using SegmentHeaderBytes = std::array<std::byte, kSegmentHeaderBytes>;
using RecordHeaderBytes = std::array<std::byte, kRecordHeaderBytes>;
using TrailerBytes = std::array<std::byte, kTrailerBytes>;

SegmentHeaderBytes encode(const SegmentHeader& header);
RecordHeaderBytes encode(const RecordHeader& header);
TrailerBytes encode(const SegmentTrailer& trailer);

// kCorruption: not one, or damaged. kUnsupported: of another version.
Result<SegmentHeader> decode_segment_header(std::span<const std::byte, kSegmentHeaderBytes> bytes);
// None: no record header, or damaged; `segment` and `offset` are where it was read.
std::optional<RecordHeader> decode_record(std::span<const std::byte, kRecordHeaderBytes> bytes,
                                          std::uint64_t segment, std::uint64_t offset);
// The same for a copy in a footer, which says itself where its record is.
std::optional<RecordHeader> decode_record(std::span<const std::byte, kRecordHeaderBytes> bytes);
// None: the segment is not sealed, or the trailer is damaged.
std::optional<SegmentTrailer> decode_trailer(std::span<const std::byte, kTrailerBytes> bytes);

// `segment-<16 hex digits>.kvseg`.
std::string segment_name(std::uint64_t number);
std::optional<std::uint64_t> segment_number(std::string_view name);

// The marker of a tier's directory.
inline constexpr char kTierMarker[] = "TIER";
inline constexpr char kTierLock[] = "LOCK";
// What is renamed once it is written, so that a killed writer leaves nothing half made.
inline constexpr char kMarkerDraft[] = "TIER.new";
inline constexpr char kSegmentDraft[] = "segment.new";
std::string tier_id_text(const TierId& id);  // lower-case hex
std::string tier_marker(const TierId& id);
// kCorruption: no marker. kUnsupported: of another version. Messages name `path`.
Result<TierId> parse_tier_marker(std::string_view text, const std::string& path);

}  // namespace kvcache::persist
