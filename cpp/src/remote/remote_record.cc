// Moving whole records between memory and a server, and taking them out.
#include <algorithm>
#include <array>
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

// A whole erasure, which is no part of serving anybody.
constexpr std::uint64_t kEraseMs = 120'000;
constexpr std::string_view kScanCount = "500";
constexpr std::size_t kMostScanned = 1 << 16;

iovec piece_of(const void* data, std::size_t bytes) { return {const_cast<void*>(data), bytes}; }

// A record on its way into memory, cut into the parts that servers have.
struct Arriving {
  RecordHeaderBytes header{};
  std::string owner;
  std::vector<std::vector<iovec>> parts;
  std::uint64_t bytes = 0;
  std::uint64_t front = 0;  // bytes before the payload that have not come
  std::uint32_t payload_crc = 0;
  std::size_t next = 0;  // part
  bool in_order = true;

  explicit Arriving(const RecordRead& read) : owner(read.record->header.owner_bytes, '\0') {
    front = header.size() + read.tokens.size() * sizeof(std::int32_t) + owner.size();
    bytes = front + persist::total_bytes(read.payload);
  }
  // Whether there is as much room as the header says.
  bool is_as(const RecordHeader& record) const {
    return bytes == kRecordHeaderBytes + record.tokens * sizeof(std::int32_t) + record.owner_bytes +
                        record.payload_bytes;
  }
  // Before the first part is asked for.
  void cut(RecordRead& read, std::uint64_t count, std::uint64_t part_bytes) {
    std::vector<iovec> pieces = {{header.data(), header.size()},
                                 {read.tokens.data(), read.tokens.size() * sizeof(std::int32_t)},
                                 {owner.data(), owner.size()}};
    pieces.insert(pieces.end(), read.payload.begin(), read.payload.end());
    PieceStream stream(std::move(pieces));
    for (std::uint64_t part = 0; part < count; ++part) parts.push_back(stream.take(part_bytes));
  }
  // A part has come, which the processor's cache may still have.
  void add(std::size_t part) {
    in_order = in_order && part == next++;
    for (const iovec& piece : parts[part]) {
      const std::uint64_t skipped = std::min<std::uint64_t>(front, piece.iov_len);
      front -= skipped;
      payload_crc = crc32c(payload_crc, static_cast<const std::byte*>(piece.iov_base) + skipped,
                           piece.iov_len - skipped);
    }
    parts[part] = {};
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
  const std::uint32_t crc = arriving.in_order ? arriving.payload_crc : crc32c(0, read.payload);
  return crc == record.payload_crc ? Status::ok() : damaged("its checksum is wrong");
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

// Each part is a question of its own: while a slot of a cluster moves, some may have gone ahead.
void RemoteStore::read(std::span<RecordRead> reads) {
  struct Part {
    std::size_t read = 0;
    std::uint64_t number = 0;
  };
  const Deadline end = deadline();
  std::vector<Arriving> arriving;
  std::vector<Part> parts;
  std::vector<std::string> names;
  Questions questions;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const RecordHeader& record = reads[i].record->header;
    arriving.emplace_back(reads[i]);
    if (!arriving[i].is_as(record)) {
      reads[i].status =
          Status::corruption(name_of(record, 0), ": it is of another length than its state");
      continue;
    }
    std::uint64_t left = arriving[i].bytes;
    for (std::uint64_t part = 0; part < parts_of(record); ++part) {
      parts.push_back({i, part});
      names.push_back(name_of(record, part));
      questions.bytes.push_back(std::min(left, part_bytes_));
      left -= questions.bytes.back();
    }
  }
  questions.keys.assign(names.begin(), names.end());
  questions.ask = [&](std::size_t i, Commands& commands) {
    Arriving& record = arriving[parts[i].read];
    RecordRead& read = reads[parts[i].read];
    if (record.parts.empty()) record.cut(read, parts_of(read.record->header), part_bytes_);
    commands.add({"GET", names[i]});
  };
  questions.take = [&](std::size_t i, RespClient& client) {
    Arriving& record = arriving[parts[i].read];
    const std::uint64_t number = parts[i].number;
    const auto size = client.receive_into(record.parts[number], end);
    if (!size) return size.status();
    if (!*size) return Status::not_found(names[i], ": it has gone");
    if (**size != questions.bytes[i]) {
      return Status::corruption(names[i], ": ", **size, " bytes, expected ", questions.bytes[i]);
    }
    record.add(number);
    return Status::ok();
  };
  const std::vector<Status> statuses = servers_.ask(questions, end);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (reads[parts[i].read].status) reads[parts[i].read].status = statuses[i];
  }
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (reads[i].status) {
      reads[i].status = check(arriving[i], reads[i], name_of(reads[i].record->header, 0));
    }
  }
}

// ---- Writing ----------------------------------------------------------------------------------

// Watches the record until it is written, or is there.
Status RemoteStore::check_presence(RespClient& client, bool asking, const RecordHeader& record,
                                   bool& present, const Deadline& deadline) {
  const std::string name = name_of(record, 0);
  Commands commands;
  const auto add = [&](std::initializer_list<std::string_view> words) {
    if (asking) commands.add({"ASKING"});
    commands.add(words);
  };
  add({"WATCH", name});
  add({"STRLEN", name});
  if (Status sent = client.send(commands, deadline); !sent) return sent;
  std::vector<Reply> replies;
  const Status refused = receive_all(client, commands.count(), replies, deadline);
  if (client.is_broken()) return refused;
  const Reply& length = replies.back();
  present = refused && length.kind == Reply::Kind::kInteger && length.integer > 0;
  if (refused && !present) return Status::ok();
  commands = Commands();
  commands.add({"UNWATCH"});
  if (present && options_.ttl_ms > 0) {
    for (std::uint64_t part = 0; part < parts_of(record); ++part) {
      add({"PEXPIRE", name_of(record, part), std::to_string(options_.ttl_ms)});
    }
  }
  if (Status sent = client.send(commands, deadline); !sent) return sent;
  std::vector<Reply> ignored;
  const Status unwatched = receive_all(client, commands.count(), ignored, deadline);
  return client.is_broken() ? unwatched : refused;
}

// All parts at once, and the first only where there is none, which the others follow.
Status RemoteStore::write(RespClient& client, bool asking, const RecordHeader& record,
                          std::span<const iovec> stream, bool& present, const Deadline& deadline) {
  const std::uint64_t parts = parts_of(record);
  PieceStream pieces({stream.begin(), stream.end()});
  Commands commands;
  if (asking) commands.add({"ASKING"});
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
  const Status status =
      servers_.visit(name_of(record, 0), end, [&](RespClient& client, bool asking) {
        present = false;
        Status done = check_presence(client, asking, record, present, end);
        if (done && !present) done = write(client, asking, record, stream, present, end);
        refused = !done && !client.is_broken();
        return done;
      });
  const std::lock_guard lock(mutex_);
  stats_.round_trips += present ? 1 : 2;
  stats_.refused_writes += refused;
  stats_.dropped_records += !status && servers_.has_others();
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
  const Status status = servers_.visit_all(end, [&](RespClient& client) {
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
