#include "remote/resp_client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/iovecs.h"

namespace kvcache::remote {
namespace {

// A value of another length than was asked for is read past up to here.
constexpr std::uint64_t kMostSkipped = 8 << 20;
constexpr std::size_t kMostLineBytes = 1 << 10;

Result<std::unique_ptr<Stream>> open_stream(const Address& address, const Login& login,
                                            const Deadline& deadline, bool& timed_out) {
  auto socket = connect_to(address, deadline, timed_out);
  if (!socket) return socket.status();
  if (!login.tls) {
    return std::unique_ptr<Stream>(std::make_unique<SocketStream>(std::move(socket).value()));
  }
  auto stream =
      connect_tls(login.tls, std::move(socket).value(), address.host, deadline, timed_out);
  if (!stream) return stream.status().prefixed(address.text() + ": ");
  return stream;
}

}  // namespace

Result<std::unique_ptr<RespClient>> RespClient::connect(const Address& address, const Login& login,
                                                        const Deadline& deadline, bool& timed_out) {
  auto stream = open_stream(address, login, deadline, timed_out);
  if (!stream) return stream.status();
  auto client = std::make_unique<RespClient>(std::move(stream).value());
  if (Status status = client->log_in(login, deadline); !status) {
    timed_out = client->has_timed_out();
    return status.prefixed(address.text() + ": ");
  }
  return client;
}

Status RespClient::log_in(const Login& login, const Deadline& deadline) {
  Commands commands;
  if (!login.password.empty() && !login.user.empty()) {
    commands.add({"AUTH", login.user, login.password});
  } else if (!login.password.empty()) {
    commands.add({"AUTH", login.password});
  }
  if (login.database != 0) commands.add({"SELECT", std::to_string(login.database)});
  if (commands.count() == 0) return Status::ok();
  if (Status status = send(commands, deadline); !status) return status;
  for (std::size_t i = 0; i < commands.count(); ++i) {
    Reply reply;
    if (Status status = receive({}, reply, deadline); !status) return status;
    if (reply.is_error()) {
      return Status::io_error("the server refuses the login: ", printable(reply.text));
    }
  }
  return Status::ok();
}

Status RespClient::broken(Status status) {
  broken_ = true;
  return status;
}

// With no reply to come, nothing may: it would be taken for that to the next command.
Status RespClient::check_quiet(const Deadline& deadline) {
  if (awaited_ > 0) return Status::ok();
  std::array<char, 128> bytes;
  std::string_view said = pending();
  if (said.empty()) {
    const auto come = stream_->peek(bytes, deadline);
    if (!come) return broken(come.status());
    said = {bytes.data(), *come};
  }
  if (said.empty()) return Status::ok();
  return broken(Status::io_error("the server says what nobody asked for: ", printable(said)));
}

Status RespClient::send(const Commands& commands, const Deadline& deadline) {
  if (Status status = check_quiet(deadline); !status) return status;
  awaited_ += commands.count();
  Status status = stream_->send(commands.pieces(), deadline, timed_out_);
  return status ? status : broken(std::move(status));
}

// ---- Receiving --------------------------------------------------------------------------------

// At least a byte, into the front of the pieces.
Result<std::size_t> RespClient::take_in(std::span<const iovec> pieces, const Deadline& deadline) {
  const auto got = stream_->receive(pieces, deadline, timed_out_);
  if (!got) return broken(got.status());
  received_ += *got;
  return got;
}

Status RespClient::fill(const Deadline& deadline) {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
  const iovec piece{buffer_.data() + end_, buffer_.size() - end_};
  const auto got = take_in({&piece, 1}, deadline);
  if (!got) return got.status();
  end_ += *got;
  return check_time(deadline);
}

// More may be missing, and has not come in time.
Status RespClient::check_time(const Deadline& deadline) {
  if (!deadline.has_passed()) return Status::ok();
  timed_out_ = true;
  return broken(Status::io_error("no whole answer within ", deadline.ms(), " ms"));
}

Status RespClient::receive(const ReplyLimits& limits, Reply& reply, const Deadline& deadline) {
  for (;;) {
    const auto used = parse_reply(pending(), limits, reply);
    if (!used) return broken(used.status());
    if (*used) {
      begin_ += **used;
      awaited_ -= awaited_ > 0;
      if (reply.is_error() && refusal_.empty()) refusal_ = reply.text;
      return Status::ok();
    }
    if (Status status = fill(deadline); !status) return status;
  }
}

Status RespClient::take_line(std::string& line, const Deadline& deadline) {
  for (;;) {
    const std::size_t end = pending().find("\r\n");
    if (end != std::string_view::npos && end <= kMostLineBytes) {
      line = pending().substr(0, end);
      begin_ += end + 2;
      return Status::ok();
    }
    if (pending().size() > kMostLineBytes + 1) {
      return broken(Status::corruption("no answer of a Valkey server: a line too long"));
    }
    if (Status status = fill(deadline); !status) return status;
  }
}

// What has come already is copied; the rest goes straight to where it belongs, and what follows it
// into the buffer.
Status RespClient::read_exactly(std::span<const iovec> pieces, const Deadline& deadline) {
  std::vector<iovec> left_pieces(pieces.begin(), pieces.end());
  std::span<iovec> left(left_pieces);
  while (!left.empty() && begin_ < end_) {
    const std::size_t part = std::min(left.front().iov_len, end_ - begin_);
    std::memcpy(left.front().iov_base, buffer_.data() + begin_, part);
    begin_ += part;
    left = drop_front(left, part);
  }
  while (!left.empty()) {
    begin_ = end_ = 0;
    std::array<iovec, kMostPieces> now;
    const std::size_t count = std::min(left.size(), kMostPieces - 1);
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < count; ++i) {
      now[i] = left[i];
      wanted += left[i].iov_len;
    }
    const bool is_rest = count == left.size();
    if (is_rest) now[count] = {buffer_.data(), buffer_.size()};
    const auto got = take_in(std::span(now).first(count + (is_rest ? 1 : 0)), deadline);
    if (!got) return got.status();
    end_ = *got > wanted ? *got - wanted : 0;
    left = drop_front(left, std::min(*got, wanted));
    if (left.empty()) break;
    if (Status status = check_time(deadline); !status) return status;
  }
  return Status::ok();
}

Status RespClient::skip(std::uint64_t bytes, const Deadline& deadline) {
  while (bytes > 0) {
    const std::size_t part =
        static_cast<std::size_t>(std::min<std::uint64_t>(bytes, end_ - begin_));
    begin_ += part;
    bytes -= part;
    if (bytes == 0) break;
    if (Status status = fill(deadline); !status) return status;
  }
  return Status::ok();
}

Result<std::optional<std::uint64_t>> RespClient::receive_into(std::span<const iovec> pieces,
                                                              const Deadline& deadline) {
  const auto size = take_value(pieces, deadline);
  if (!broken_) awaited_ -= awaited_ > 0;
  return size;
}

Result<std::optional<std::uint64_t>> RespClient::take_value(std::span<const iovec> pieces,
                                                            const Deadline& deadline) {
  std::string line;
  if (Status status = take_line(line, deadline); !status) return status;
  const auto size = parse_bulk_line(line);
  if (!size) {
    if (line.starts_with('-') && refusal_.empty()) refusal_ = line.substr(1);
    // The server's own error is a reply like any other; everything else is none.
    return size.status().code() == StatusCode::kIoError ? size.status() : broken(size.status());
  }
  if (*size < 0) return std::optional<std::uint64_t>();
  const auto bytes = static_cast<std::uint64_t>(*size);
  std::uint64_t wanted = 0;
  for (const iovec& piece : pieces) wanted += piece.iov_len;
  if (bytes != wanted && bytes > kMostSkipped) {
    return broken(Status::corruption("no answer of a Valkey server: a value of ", bytes, " bytes, ",
                                     wanted, " were asked for"));
  }
  Status status = bytes == wanted ? read_exactly(pieces, deadline) : skip(bytes, deadline);
  if (!status) return status;
  char end[2] = {};
  const iovec tail{end, sizeof(end)};
  if (status = read_exactly({&tail, 1}, deadline); !status) return status;
  if (end[0] != '\r' || end[1] != '\n') {
    return broken(Status::corruption("no answer of a Valkey server: a string without an end"));
  }
  return std::optional(bytes);
}

}  // namespace kvcache::remote
