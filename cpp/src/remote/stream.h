// A connection to a server as a stream of bytes, whatever carries it. Calls end by their deadline,
// and `timed_out` tells whether time ran out; after an error the connection is of no more use.
// Thread safety: thread-compatible.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/status.h"
#include "remote/connect.h"
#include "remote/deadline.h"

namespace kvcache::remote {

inline constexpr std::size_t kMostPieces = 256;  // of one system call; the system takes 1,024

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  // All of the pieces. kIoError: they have not gone in time, or cannot.
  virtual Status send(std::vector<iovec> pieces, const Deadline& deadline, bool& timed_out) = 0;
  // What has come, at least a byte, into the front of the pieces: how many bytes. REQUIRES: room
  // for one. kIoError: none in time, or the server has closed the connection.
  virtual Result<std::size_t> receive(std::span<const iovec> pieces, const Deadline& deadline,
                                      bool& timed_out) = 0;
  // The same without taking and without waiting: 0 where nothing has come.
  virtual Result<std::size_t> peek(std::span<char> bytes, const Deadline& deadline) = 0;
  // To wait for by poll(), together with others; and whether something has come that poll() does
  // not tell any more.
  virtual int file() const = 0;
  virtual bool has_more() const = 0;
};

// In the clear, over a socket that is connected.
class SocketStream final : public Stream {
 public:
  explicit SocketStream(Socket socket) : socket_(std::move(socket)) {}

  Status send(std::vector<iovec> pieces, const Deadline& deadline, bool& timed_out) override;
  Result<std::size_t> receive(std::span<const iovec> pieces, const Deadline& deadline,
                              bool& timed_out) override;
  Result<std::size_t> peek(std::span<char> bytes, const Deadline& deadline) override;
  int file() const override { return socket_.file(); }
  bool has_more() const override { return false; }

 private:
  Socket socket_;
};

// The answer to a receive() that found the end.
inline Status closed_by_server() {
  return Status::io_error("the server has closed the connection");
}

}  // namespace kvcache::remote
