// Moving whole records between memory and a server, and taking them out.
#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "base/crc32c.h"
#include "base/iovecs.h"
#include "base/sha256.h"
#include "remote/remote_store.h"

namespace kvcache::remote {
namespace {

using persist::Digest;
using persist::kRecordHeaderBytes;
using persist::RecordHeader;
using persist::RecordHeaderBytes;
using persist::RecordKind;
using persist::RecordRead;
using persist::TierErasure;

// Values that are asked for before the ones before them have come.
constexpr std::uint64_t kBytesAhead = 8 << 20;
// A whole erasure, which is no part of serving anybody.
constexpr std::uint64_t kEraseMs = 120'000;
constexpr std::string_view kScanCount = "500";
constexpr std::size_t kMostScanned = 1 << 16;

iovec piece_of(const void* data, std::size_t bytes) { return {const_cast<void*>(data), bytes}; }

// A record on its way into memory.
struct Arriving {
  RecordHeaderBytes header{};
  std::string owner;
  std::optional<PieceStream> stream;
  std::uint64_t bytes = 0;
  std::uint64_t front = 0;  // bytes before the payload that have not come
  std::uint32_t payload_crc = 0;

  explicit Arriving(RecordRead& read) {
    const RecordHeader& record = read.record->header;
    owner.resize(record.owner_bytes);
    std::vector<iovec> pieces = {{header.data(), header.size()},
                                 {read.tokens.data(), read.tokens.size() * sizeof(std::int32_t)},
                                 {owner.data(), owner.size()}};
    front = persist::total_bytes(pieces);
    pieces.insert(pieces.end(), read.payload.begin(), read.payload.end());
    bytes = persist::total_bytes(pieces);
    stream.emplace(std::move(pieces));
  }
  // A part has come, which the processor's cache may still have.
  void add(std::span<const iovec> part) {
    for (const iovec& piece : part) {
      const std::uint64_t skipped = std::min<std::uint64_t>(front, piece.iov_len);
      front -= skipped;
      payload_crc = crc32c(payload_crc, static_cast<const std::byte*>(piece.iov_base) + skipped,
                           piece.iov_len - skipped);
    }
  }
  // Whether there is as much room as the header says.
  bool is_as(const RecordHeader& record) const {
    return bytes == kRecordHeaderBytes + record.tokens * sizeof(std::int32_t) + record.owner_bytes +
                        record.payload_bytes;
  }
};

Status check(const Arriving& arriving, const RecordRead& read, const std::string& name) {
  const RecordHeader& record = read.record->header;
  const auto damaged = [&](const char* what) { return Status::corruption(name, ": ", what); };
  if (arriving.header != encode(record)) return damaged("its header has changed");
  const std::size_t token_bytes = read.tokens.size() * sizeof(std::int32_t);
  if (crc32c(0, read.tokens.data(), token_bytes) != record.tokens_crc) {
    return damaged("the checksum of its tokens is wrong");
  }
  if (sha256(arriving.owner) != record.owner) return damaged("it does not say whose it is");
  return arriving.payload_crc == record.payload_crc ? Status::ok()
                                                    : damaged("its checksum is wrong");
}

// The replies to `count` commands; the first error of the server, if it has one.
Status receive_all(RespClient& client, std::size_t count, std::vector<Reply>& replies,
                   const Deadline& deadline, const ReplyLimits& limits = {}) {
  replies.assign(count, {});
  Status refused;
  for (Reply& reply : replies) {
    if (Status come = client.receive(limits, reply, deadline); !come) return come;
    if (reply.is_error() && refused) {
      refused = Status::io_error("the server says: ", printable(reply.text));
    }
  }
  return refused;
}

}  // namespace

// ---- Reading ----------------------------------------------------------------------------------

void RemoteStore::read(std::span<RecordRead> reads) {
  const Deadline end = deadline();
  std::vector<bool> done(reads.size(), false);  // as it is where nothing is tried
  const Status status = connections_.run(end, [&](RespClient& client) {
    done.assign(reads.size(), false);
    return read_all(client, reads, done, end);
  });
  if (status) return;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (!done[i]) reads[i].status = status;
  }
}

Status RemoteStore::read_all(RespClient& client, std::span<RecordRead> reads,
                             std::vector<bool>& done, const Deadline& deadline) {
  std::deque<Arriving> arriving;  // those asked for, the first of them being read
  std::uint64_t ahead = 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    Commands commands;
    while (next < reads.size() && (next == i || ahead < kBytesAhead)) {
      const RecordHeader& record = reads[next].record->header;
      arriving.emplace_back(reads[next]);
      ahead += arriving.back().bytes;
      const std::uint64_t parts = arriving.back().is_as(record) ? parts_of(record) : 0;
      for (std::uint64_t part = 0; part < parts; ++part) {
        commands.add({"GET", name_of(record, part)});
      }
      ++next;
    }
    if (Status sent = client.send(commands, deadline); !sent) return sent;
    Arriving& now = arriving.front();
    const RecordHeader& record = reads[i].record->header;
    const std::string name = name_of(record, 0);
    const std::uint64_t parts = now.is_as(record) ? parts_of(record) : 0;
    Status status;
    if (parts == 0) status = Status::corruption(name, ": it is of another length than its state");
    for (std::uint64_t part = 0; part < parts; ++part) {
      const std::vector<iovec> pieces = now.stream->take(part_bytes_);
      const auto size = client.receive_into(pieces, deadline);
      if (!size && client.is_broken()) return size.status();
      if (!size) status = size.status();
      if (!size || !status) continue;
      if (!*size) {
        status = Status::not_found(name, ": it has gone");
      } else if (**size != persist::total_bytes(pieces)) {
        status = Status::corruption(name_of(record, part), ": ", **size, " bytes, expected ",
                                    persist::total_bytes(pieces));
      } else {
        now.add(pieces);
      }
    }
    reads[i].status = status ? check(now, reads[i], name) : status;
    done[i] = true;
    ahead -= now.bytes;
    arriving.pop_front();
  }
  return Status::ok();
}

// ---- Writing ----------------------------------------------------------------------------------

// Watches the record until it is written, or is there.
Status RemoteStore::check_presence(RespClient& client, const RecordHeader& record, bool& present,
                                   const Deadline& deadline) {
  const std::string name = name_of(record, 0);
  Commands commands;
  commands.add({"WATCH", name}).add({"STRLEN", name});
  if (Status sent = client.send(commands, deadline); !sent) return sent;
  std::vector<Reply> replies;
  const Status refused = receive_all(client, commands.count(), replies, deadline);
  if (client.is_broken()) return refused;
  present = refused && replies[1].kind == Reply::Kind::kInteger && replies[1].integer > 0;
  if (refused && !present) return Status::ok();
  commands = Commands();
  commands.add({"UNWATCH"});
  if (present && options_.ttl_ms > 0) {
    for (std::uint64_t part = 0; part < parts_of(record); ++part) {
      commands.add({"PEXPIRE", name_of(record, part), std::to_string(options_.ttl_ms)});
    }
  }
  if (Status sent = client.send(commands, deadline); !sent) return sent;
  std::vector<Reply> ignored;
  const Status unwatched = receive_all(client, commands.count(), ignored, deadline);
  return client.is_broken() ? unwatched : refused;
}

// All parts at once, and the first only where there is none, which the others follow.
Status RemoteStore::write(RespClient& client, const RecordHeader& record,
                          std::span<const iovec> stream, bool& present, const Deadline& deadline) {
  const std::uint64_t parts = parts_of(record);
  PieceStream pieces({stream.begin(), stream.end()});
  Commands commands;
  commands.add({"MULTI"});
  const std::string ttl = std::to_string(options_.ttl_ms);
  for (std::uint64_t part = 0; part < parts; ++part) {
    const bool is_first = part == 0;
    commands.begin(std::size_t{3} + (is_first ? 1 : 0) + (options_.ttl_ms > 0 ? 2 : 0));
    commands.word("SET").word(name_of(record, part)).word(pieces.take(part_bytes_));
    if (is_first) commands.word("NX");
    if (options_.ttl_ms > 0) commands.word("PX").word(ttl);
  }
  commands.add({"EXEC"});
  if (Status sent = client.send(commands, deadline); !sent) return sent;
  ReplyLimits limits;
  limits.items = parts;
  std::vector<Reply> replies;
  if (Status refused = receive_all(client, commands.count(), replies, deadline, limits); !refused) {
    return refused;
  }
  const Reply& done = replies.back();
  if (done.kind == Reply::Kind::kNil) {  // somebody else has written it meanwhile
    present = true;
    return Status::ok();
  }
  if (done.kind != Reply::Kind::kArray || done.items.size() != parts) {
    return Status::io_error("no answer to EXEC");
  }
  for (const Reply& each : done.items) {
    if (each.is_error()) return Status::io_error("the server says: ", printable(each.text));
  }
  present = done.items.front().is_nil();
  return Status::ok();
}

Status RemoteStore::append(RecordHeader record, std::span<const std::int32_t> tokens,
                           std::span<const iovec> payload, std::string_view owner) {
  record.segment = 0;
  record.offset = 0;
  record.tokens = tokens.size();
  record.payload_bytes = persist::total_bytes(payload);
  record.tokens_crc = crc32c(0, tokens.data(), tokens.size_bytes());
  for (const iovec& piece : payload) {
    record.payload_crc = crc32c(record.payload_crc, piece.iov_base, piece.iov_len);
  }
  record.owner = sha256(owner);
  record.owner_bytes = static_cast<std::uint32_t>(owner.size());
  if (parts_of(record) > kMostParts) {
    return Status::out_of_capacity("a record of ", record.payload_bytes,
                                   " bytes is too long for a server");
  }
  const RecordHeaderBytes header = encode(record);
  std::vector<iovec> stream = {piece_of(header.data(), header.size()),
                               piece_of(tokens.data(), tokens.size_bytes()),
                               piece_of(owner.data(), owner.size())};
  stream.insert(stream.end(), payload.begin(), payload.end());
  const Deadline end = deadline();
  bool present = false;
  bool refused = false;
  const Status status = connections_.run(end, [&](RespClient& client) {
    present = false;
    Status done = check_presence(client, record, present, end);
    if (done && !present) done = write(client, record, stream, present, end);
    refused = !done && !client.is_broken();
    return done;
  });
  const std::lock_guard lock(mutex_);
  stats_.round_trips += present ? 1 : 2;
  stats_.refused_writes += refused;
  if (!status) return status;
  trust_for_a_while();
  remember(record);
  if (present) {
    ++stats_.present_records;
  } else {
    ++stats_.written_records;
    stats_.written_bytes += persist::total_bytes(stream);
  }
  return status;
}

// ---- Erasing ----------------------------------------------------------------------------------

Result<std::uint64_t> RemoteStore::erase(const TierErasure& erasure) {
  {
    const std::lock_guard lock(mutex_);
    forget_all();
  }
  const Deadline end = Deadline::after_ms(kEraseMs);
  std::uint64_t erased = 0;
  const Status status = connections_.run(end, [&](RespClient& client) {
    std::string cursor = "0";
    do {
      const auto page = erase_page(client, cursor, erasure, end);
      if (!page) return page.status();
      erased += *page;
    } while (cursor != "0");
    return Status::ok();
  });
  const std::lock_guard lock(mutex_);
  stats_.erased_records += erased;
  if (status) return erased;
  stats_.last_error = status.message();
  return status;
}

// The records that one call of SCAN tells of. What does not say whose it is goes as well.
Result<std::uint64_t> RemoteStore::erase_page(RespClient& client, std::string& cursor,
                                              const TierErasure& erasure,
                                              const Deadline& deadline) {
  Commands commands;
  commands.add({"SCAN", cursor, "MATCH", options_.key_prefix + "1:{*}*.0", "COUNT", kScanCount});
  if (Status sent = client.send(commands, deadline); !sent) return sent;
  const ReplyLimits limits{.line_bytes = 64, .items = kMostScanned};
  std::vector<Reply> replies;
  if (Status come = receive_all(client, 1, replies, deadline, limits); !come) return come;
  const std::vector<Reply>& page = replies.front().items;
  if (page.size() != 2 || page[0].kind != Reply::Kind::kBulk) {
    return Status::io_error("no answer to SCAN");
  }
  cursor = page[0].text;
  const std::vector<Reply>& names = page[1].items;
  const std::string last = std::to_string(kRecordHeaderBytes - 1);
  commands = Commands();
  for (const Reply& name : names) commands.add({"GETRANGE", name.text, "0", last});
  if (Status sent = client.send(commands, deadline); !sent) return sent;
  std::vector<Reply> heads;
  if (Status come = receive_all(client, names.size(), heads, deadline); client.is_broken()) {
    return come;
  }
  std::vector<std::optional<RecordHeader>> headers(names.size());
  commands = Commands();
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::uint64_t first = 0;
    std::uint64_t bytes = 0;
    RecordHeaderBytes header;
    if (heads[i].text.size() == header.size()) {
      std::memcpy(header.data(), heads[i].text.data(), header.size());
      headers[i] = persist::decode_record(header, 0, 0);
    }
    if (headers[i] && parts_of(*headers[i]) > kMostParts) headers[i].reset();
    if (headers[i]) first = headers[i]->owner_offset();
    if (headers[i]) bytes = headers[i]->owner_bytes;
    commands.add({"GETRANGE", names[i].text, std::to_string(first),
                  std::to_string(first + std::max<std::uint64_t>(bytes, 1) - 1)});
  }
  if (Status sent = client.send(commands, deadline); !sent) return sent;
  std::vector<Reply> owners;
  const ReplyLimits owner_limits{.bulk_bytes = persist::kMaxOwnerBytes};
  if (Status come = receive_all(client, names.size(), owners, deadline, owner_limits);
      client.is_broken()) {
    return come;
  }
  commands = Commands();
  std::uint64_t records = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view owner = owners[i].text;
    const bool known = headers[i] && sha256(owner) == headers[i]->owner;
    if (known && !(erasure.space(owner) && erasure.tenant(owner))) continue;
    ++records;
    const std::string stem = names[i].text.substr(0, names[i].text.size() - 1);
    const std::uint64_t parts = headers[i] ? parts_of(*headers[i]) : 1;
    for (std::uint64_t part = 0; part < parts; ++part) {
      commands.add({"UNLINK", stem + std::to_string(part)});
    }
  }
  if (Status sent = client.send(commands, deadline); !sent) return sent;
  std::vector<Reply> gone;
  if (Status come = receive_all(client, commands.count(), gone, deadline); !come) return come;
  return records;
}

}  // namespace kvcache::remote
