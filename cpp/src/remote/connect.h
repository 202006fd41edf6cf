// A connected socket to a server, within a deadline, names included. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "kvcache/status.h"
#include "remote/deadline.h"

namespace kvcache::remote {

// Where a server listens: at `socket`, the path of a Unix socket, or else at host and port.
struct Address {
  std::string host;
  std::uint16_t port = 0;
  std::string socket;

  std::string text() const;
};

// Closes its descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int file) : file_(file) {}
  Socket(Socket&& other) noexcept : file_(other.file_) { other.file_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int file() const { return file_; }

 private:
  int file_ = -1;
};

// Whether `file` is ready for `events` of poll(), by the deadline; kIoError: it is not, and
// `timed_out` says whether time ran out.
Status wait_for(int file, short events, const Deadline& deadline, bool& timed_out);

// A socket that does not block and is not inherited. A name is looked up by a thread, which goes on
// alone where the system takes longer than the deadline. kIoError: nobody answers there, or not in
// time, which `timed_out` tells.
Result<Socket> connect_to(const Address& address, const Deadline& deadline, bool& timed_out);

}  // namespace kvcache::remote
