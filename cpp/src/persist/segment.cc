#include "persist/segment.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/iovecs.h"
#include "persist/files.h"

namespace kvcache::persist {
namespace {

// So much is moved at a time that its checksum finds it in the processor's cache.
constexpr std::size_t kChunkBytes = 256 << 10;
constexpr std::size_t kMostPieces = 64;  // of one call of the system

Status write_pieces(System& system, int file, const std::string& path, std::span<iovec> pieces,
                    std::uint64_t& offset) {
  while (!pieces.empty()) {
    const std::int64_t put =
        system.write_at(file, pieces.data(), static_cast<int>(pieces.size()), offset);
    if (put <= 0) return os_error("write", path, put == 0 ? EIO : static_cast<int>(-put));
    offset += static_cast<std::uint64_t>(put);
    pieces = drop_front(pieces, static_cast<std::size_t>(put));
  }
  return Status::ok();
}

Status read_pieces(System& system, int file, const std::string& path, std::span<iovec> pieces,
                   std::uint64_t& offset) {
  while (!pieces.empty()) {
    const std::int64_t got =
        system.read_at(file, pieces.data(), static_cast<int>(pieces.size()), offset);
    if (got < 0) return os_error("read", path, static_cast<int>(-got));
    if (got == 0) return Status::corruption(path, ": cut off at byte ", offset);
    offset += static_cast<std::uint64_t>(got);
    pieces = drop_front(pieces, static_cast<std::size_t>(got));
  }
  return Status::ok();
}

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{}; });
}

}  // namespace

std::uint64_t total_bytes(std::span<const iovec> pieces) {
  std::uint64_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

Segment::~Segment() { ::close(file_); }

Status Segment::write_all(const void* data, std::size_t bytes, std::uint64_t offset) {
  iovec piece{const_cast<void*>(data), bytes};
  if (bytes == 0) return Status::ok();
  return write_pieces(system_, file_, path_, {&piece, 1}, offset);
}

Status Segment::read_all(void* data, std::size_t bytes, std::uint64_t offset) const {
  iovec piece{data, bytes};
  if (bytes == 0) return Status::ok();
  return read_pieces(system_, file_, path_, {&piece, 1}, offset);
}

// ---- Opening ----------------------------------------------------------------------------------

Result<std::shared_ptr<Segment>> Segment::create(System& system, int directory,
                                                 const std::string& path,
                                                 const SegmentHeader& header) {
  const std::string name = segment_name(header.number);
  const char* present = kSegmentDraft;
  const int file =
      system.open_at(directory, present, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW, 0666);
  if (file < 0) return os_error("create", path, -file);
  std::shared_ptr<Segment> segment(new Segment(system, path, file));
  segment->header_ = header;
  const SegmentHeaderBytes bytes = encode(header);
  Status status = segment->write_all(bytes.data(), bytes.size(), 0);
  if (status) {
    int failed = system.rename_at(directory, kSegmentDraft, name.c_str());
    if (failed == 0) present = name.c_str();
    // The name lasts before any record does.
    if (failed == 0) failed = system.sync(directory);
    if (failed < 0) status = os_error("create", path, -failed);
  }
  if (!status) {
    system.remove_at(directory, present);
    return status;
  }
  segment->end_ = header.alignment;
  segment->file_bytes_ = header.alignment;
  return segment;
}

Status Segment::check_header(const TierId& tier, std::uint64_t number) {
  FileFacts facts;
  if (const int failed = system_.facts(file_, facts); failed < 0) {
    return os_error("stat", path_, -failed);
  }
  if (!facts.is_regular) return Status::corruption(path_, ": no regular file");
  file_bytes_ = facts.bytes;
  SegmentHeaderBytes bytes;
  if (Status status = read_all(bytes.data(), bytes.size(), 0); !status) return status;
  const auto header = decode_segment_header(bytes);
  if (!header) return header.status().prefixed(path_ + ": ");
  if (header->tier != tier) return Status::corruption(path_, ": a segment of another tier");
  if (header->number != number) {
    return Status::corruption(path_, ": is segment ", header->number, " by its header");
  }
  header_ = *header;
  end_ = header->alignment;
  return Status::ok();
}

Result<std::shared_ptr<Segment>> Segment::open(System& system, int directory,
                                               const std::string& path, const TierId& tier,
                                               std::uint64_t number, bool writable,
                                               const Found& found) {
  const std::string name = segment_name(number);
  const int mode = writable ? O_RDWR : O_RDONLY;
  const int file = system.open_at(directory, name.c_str(), mode | O_NOFOLLOW | O_NONBLOCK, 0);
  if (file == -ELOOP) return Status::corruption(path, ": a symbolic link is not followed");
  if (file == -EISDIR || file == -ENXIO) return Status::corruption(path, ": no regular file");
  if (file < 0) return os_error("open", path, -file);
  std::shared_ptr<Segment> segment(new Segment(system, path, file));
  if (Status status = segment->check_header(tier, number); !status) return status;
  if (segment->read_footer(found)) return segment;
  if (Status status = segment->refresh(found); !status) return status;
  return segment;
}

bool Segment::read_footer(const Found& found) {
  if (file_bytes() < header_.alignment + kTrailerBytes) return false;
  TrailerBytes bytes;
  if (!read_all(bytes.data(), bytes.size(), file_bytes() - kTrailerBytes)) return false;
  const auto trailer = decode_trailer(bytes);
  if (!trailer || trailer->number != header_.number || trailer->file_bytes() != file_bytes()) {
    return false;
  }
  // Once to check it, once to tell what it says that is not known yet.
  const std::uint64_t known = end_;
  const auto tell = [&](const RecordHeader& record) {
    if (record.offset >= known) found(record);
  };
  if (!read_entries(*trailer, [](const RecordHeader&) {})) return false;
  if (!read_entries(*trailer, tell)) return false;
  end_ = trailer->entries_offset;
  trailer_ = *trailer;
  sealed_ = true;
  return true;
}

// Whether the entries are those of the trailer and follow one another without a gap.
bool Segment::read_entries(const SegmentTrailer& trailer, const Found& found) const {
  constexpr std::uint64_t kAtOnce = 512;
  std::vector<RecordHeaderBytes> entries(std::min(kAtOnce, trailer.records));
  std::uint64_t next = header_.alignment;
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < trailer.records;) {
    const std::uint64_t count = std::min(kAtOnce, trailer.records - at);
    const std::uint64_t offset = trailer.entries_offset + at * kRecordHeaderBytes;
    if (!read_all(entries.data(), count * kRecordHeaderBytes, offset)) return false;
    crc = crc32c(crc, entries.data(), count * kRecordHeaderBytes);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto record = decode_record(entries[i], header_.number, next);
      if (!record) return false;
      next = record->next_offset(header_.alignment);
      if (next > trailer.entries_offset) return false;
      found(*record);
    }
    at += count;
  }
  return next == trailer.entries_offset && crc == trailer.entries_crc;
}

Status Segment::refresh(const Found& found) {
  if (sealed_) return Status::ok();
  FileFacts facts;
  if (const int failed = system_.facts(file_, facts); failed < 0) {
    return os_error("stat", path_, -failed);
  }
  file_bytes_ = facts.bytes;
  torn_ = false;
  while (end_ < file_bytes()) {
    RecordHeaderBytes bytes{};
    const std::uint64_t present = std::min(kRecordHeaderBytes, file_bytes() - end_);
    if (Status status = read_all(bytes.data(), present, end_); !status) return status;
    const auto record = decode_record(bytes, header_.number, end_);
    if (!record) {
      torn_ = !is_zero(bytes) && !read_footer(found);
      break;
    }
    if (record->payload_end(header_.alignment) > file_bytes()) {
      torn_ = true;
      break;
    }
    end_ = record->next_offset(header_.alignment);
    found(*record);
  }
  return Status::ok();
}

// ---- Writing ----------------------------------------------------------------------------------

Status Segment::append(RecordHeader& record, std::span<const std::int32_t> tokens,
                       std::span<const iovec> payload, std::string_view owner) {
  record.segment = header_.number;
  record.offset = end_;
  record.tokens = tokens.size();
  record.payload_bytes = total_bytes(payload);
  record.tokens_crc = crc32c(0, tokens.data(), tokens.size_bytes());
  record.payload_crc = 0;
  record.owner = sha256(owner);
  record.owner_bytes = static_cast<std::uint32_t>(owner.size());
  Status status = write_all(tokens.data(), tokens.size_bytes(), record.tokens_offset());
  if (status) status = write_all(owner.data(), owner.size(), record.owner_offset());
  std::uint64_t offset = record.payload_offset(header_.alignment);
  PieceStream stream({payload.begin(), payload.end()});
  while (status) {
    auto chunk = stream.take(kChunkBytes, kMostPieces);
    if (chunk.empty()) break;
    record.payload_crc = crc32c(record.payload_crc, chunk);
    status = write_pieces(system_, file_, path_, chunk, offset);
  }
  if (!status) return status;
  const RecordHeaderBytes header = encode(record);
  if (status = write_all(header.data(), header.size(), record.offset); !status) return status;
  end_ = record.next_offset(header_.alignment);
  file_bytes_ = std::max(file_bytes(), end_);
  return Status::ok();
}

Status Segment::sync() {
  const int failed = system_.sync(file_);
  return failed < 0 ? os_error("synchronise", path_, -failed) : Status::ok();
}

Status Segment::seal(std::span<const RecordHeader> records) {
  if (const int failed = system_.truncate(file_, end_); failed < 0) {
    return os_error("truncate", path_, -failed);
  }
  if (Status status = write_footer(records); !status) return status;
  sealed_ = true;
  torn_ = false;
  return Status::ok();
}

Status Segment::write_footer(std::span<const RecordHeader> records) {
  SegmentTrailer trailer;
  trailer.number = header_.number;
  trailer.records = records.size();
  trailer.entries_offset = end_;
  std::vector<RecordHeaderBytes> entries;
  entries.reserve(records.size());
  for (const RecordHeader& record : records) entries.push_back(encode(record));
  const std::size_t bytes = entries.size() * kRecordHeaderBytes;
  trailer.entries_crc = crc32c(0, entries.data(), bytes);
  const TrailerBytes last = encode(trailer);
  if (Status status = write_all(entries.data(), bytes, end_); !status) return status;
  if (Status status = write_all(last.data(), last.size(), end_ + bytes); !status) return status;
  file_bytes_ = trailer.file_bytes();
  trailer_ = trailer;
  return Status::ok();
}

// The bytes go before the header does: whoever is killed in between leaves records that are
// damaged, and erases them the next time.
Status Segment::erase(std::span<const std::size_t> chosen, std::span<RecordHeader> records) {
  for (const std::size_t at : chosen) {
    RecordHeader& record = records[at];
    const std::uint64_t begin = record.tokens_offset();
    const std::uint64_t end = std::min(record.payload_end(header_.alignment), file_bytes());
    const int failed = end > begin ? system_.clear(file_, begin, end - begin) : 0;
    if (failed < 0) return os_error("erase", path_, -failed);
    record = record.erased();
    const RecordHeaderBytes header = encode(record);
    if (Status status = write_all(header.data(), header.size(), record.offset); !status) {
      return status;
    }
  }
  if (sealed_) {
    if (Status status = write_footer(records); !status) return status;
  }
  return sync();
}

// ---- Reading ----------------------------------------------------------------------------------

Status Segment::read_bytes(std::uint64_t offset, std::span<std::byte> bytes) const {
  return read_all(bytes.data(), bytes.size(), offset);
}

Status Segment::list(const Found& found) const {
  if (sealed_) {
    if (read_entries(trailer_, found)) return Status::ok();
    return Status::corruption(path_, ": its footer is damaged");
  }
  for (std::uint64_t at = header_.alignment; at < end_;) {
    RecordHeaderBytes bytes;
    if (Status status = read_all(bytes.data(), bytes.size(), at); !status) return status;
    const auto record = decode_record(bytes, header_.number, at);
    if (!record) return Status::corruption(path_, ": no record at byte ", at);
    found(*record);
    at = record->next_offset(header_.alignment);
  }
  return Status::ok();
}

Result<std::string> Segment::read_owner(const RecordHeader& record) const {
  std::string owner(record.owner_bytes, '\0');
  if (Status status = read_all(owner.data(), owner.size(), record.owner_offset()); !status) {
    return status;
  }
  if (sha256(owner) == record.owner) return owner;
  return Status::corruption(path_, ": the record at byte ", record.offset,
                            " does not say whose it is");
}

Status Segment::read(const RecordHeader& record, std::span<std::int32_t> tokens,
                     std::span<const iovec> payload) const {
  if (tokens.size() != record.tokens || total_bytes(payload) != record.payload_bytes) {
    return Status::corruption(path_, ": the record at byte ", record.offset, " holds ",
                              record.tokens, " tokens and ", record.payload_bytes,
                              " bytes, expected ", tokens.size(), " and ", total_bytes(payload));
  }
  const auto damaged = [&](const char* what) {
    return Status::corruption(path_, ": the record at byte ", record.offset, ": ", what);
  };
  RecordHeaderBytes header;
  std::array<iovec, 2> front = {iovec{header.data(), header.size()},
                                iovec{tokens.data(), tokens.size_bytes()}};
  std::uint64_t offset = record.offset;
  const std::size_t fronts = tokens.empty() ? 1 : 2;
  if (Status status = read_pieces(system_, file_, path_, std::span(front).first(fronts), offset);
      !status) {
    return status;
  }
  if (header != encode(record)) {
    const auto found = decode_record(header, record.segment, record.offset);
    if (found && found->kind == RecordKind::kErased) {
      return Status::not_found(path_, ": the record at byte ", record.offset, " was erased");
    }
    return damaged("its header has changed");
  }
  if (crc32c(0, tokens.data(), tokens.size_bytes()) != record.tokens_crc) {
    return damaged("the checksum of its tokens is wrong");
  }
  std::uint32_t crc = 0;
  offset = record.payload_offset(header_.alignment);
  PieceStream stream({payload.begin(), payload.end()});
  for (;;) {
    const auto chunk = stream.take(kChunkBytes, kMostPieces);
    if (chunk.empty()) break;
    auto moved = chunk;  // reading moves the pieces on
    if (Status status = read_pieces(system_, file_, path_, moved, offset); !status) return status;
    crc = crc32c(crc, chunk);
  }
  return crc == record.payload_crc ? Status::ok() : damaged("its checksum is wrong");
}

}  // namespace kvcache::persist
