// One connection to a Valkey or Redis server. Everything ends by its deadline, commands go out as
// many at a time as there are, and large values move between the stream and the memory they are
// for. What the server sends is taken for nothing more than bytes.
// Thread safety: thread-compatible.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/status.h"
#include "remote/commands.h"
#include "remote/connect.h"
#include "remote/deadline.h"
#include "remote/resp_reply.h"
#include "remote/stream.h"
#include "remote/tls.h"

namespace kvcache::remote {

struct Login {
  std::string user;
  std::string password;
  std::uint32_t database = 0;
  std::shared_ptr<const TlsContext> tls = nullptr;  // none: in the clear
};

class RespClient {
 public:
  // Connects, in TLS where the login says so, and logs in. kIoError: nobody answers in time, the
  // server is not who it should be, or refuses the login.
  // kCorruption: who answers speaks no RESP.
  static Result<std::unique_ptr<RespClient>> connect(const Address& address, const Login& login,
                                                     const Deadline& deadline, bool& timed_out);
  // Over a stream that is connected already.
  explicit RespClient(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}

  // Sends all commands. kIoError: they have not gone in time, or the server has said something that
  // no command asked for; the connection is of no more use.
  Status send(const Commands& commands, const Deadline& deadline);
  // The next reply. kIoError: none in time. kCorruption: none at all. After either the connection
  // is of no more use; an error of the server is a reply.
  Status receive(const ReplyLimits& limits, Reply& reply, const Deadline& deadline);
  // The next reply, which is to be a string of as many bytes as `pieces` have, into them. What is
  // found of it: its length, which may be another one, with nothing read into the pieces, or none.
  // kIoError, kCorruption: as receive(), and is_broken() tells whether the connection is of use;
  // an error of the server is kIoError.
  Result<std::optional<std::uint64_t>> receive_into(std::span<const iovec> pieces,
                                                    const Deadline& deadline);

  // Whether what comes next is unknown.
  bool is_broken() const { return broken_; }
  bool has_timed_out() const { return timed_out_; }
  // Whether it has served before, so that the server may have closed it since.
  bool is_kept() const { return kept_; }
  void keep() { kept_ = true; }
  // The first error among the server's replies since the last call, or "".
  std::string take_refusal() { return std::exchange(refusal_, {}); }
  // To wait for, together with others; and whether more has come already than was taken.
  int file() const { return stream_->file(); }
  bool has_more() const { return begin_ < end_ || stream_->has_more(); }
  // Bytes that have come so far.
  std::uint64_t received_bytes() const { return received_; }

 private:
  Status log_in(const Login& login, const Deadline& deadline);
  Status broken(Status status);
  Status check_quiet(const Deadline& deadline);
  Result<std::size_t> take_in(std::span<const iovec> pieces, const Deadline& deadline);
  Status check_time(const Deadline& deadline);
  Status fill(const Deadline& deadline);
  Status take_line(std::string& line, const Deadline& deadline);
  Status read_exactly(std::span<const iovec> pieces, const Deadline& deadline);
  Status skip(std::uint64_t bytes, const Deadline& deadline);
  Result<std::optional<std::uint64_t>> take_value(std::span<const iovec> pieces,
                                                  const Deadline& deadline);
  std::string_view pending() const { return {buffer_.data() + begin_, end_ - begin_}; }

  std::unique_ptr<Stream> stream_;
  std::vector<char> buffer_ = std::vector<char>(16 << 10);  // [begin, end): come and not used
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t received_ = 0;
  std::size_t awaited_ = 0;  // replies to what was sent
  std::string refusal_;
  bool kept_ = false;
  bool broken_ = false;
  bool timed_out_ = false;
};

}  // namespace kvcache::remote
