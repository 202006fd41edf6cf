#include "remote/stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/iovecs.h"
#include "remote/os_sockets.h"

namespace kvcache::remote {
namespace {

bool is_to_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

Status SocketStream::send(std::vector<iovec> pieces, const Deadline& deadline, bool& timed_out) {
  std::span<iovec> left(pieces);
  while (!left.empty()) {
    msghdr message{};
    message.msg_iov = left.data();
    message.msg_iovlen = std::min(left.size(), kMostPieces);
    const ssize_t sent = os::send(socket_.file(), message);
    if (sent >= 0) {
      left = drop_front(left, static_cast<std::size_t>(sent));
      if (deadline.has_passed() && !left.empty()) {
        timed_out = true;
        return Status::io_error("not sent within ", deadline.ms(), " ms");
      }
      continue;
    }
    if (errno == EINTR) continue;
    if (!is_to_wait(errno)) return Status::io_error("send: ", std::strerror(errno));
    if (Status status = wait_for(socket_.file(), POLLOUT, deadline, timed_out); !status) {
      return status.prefixed("not sent: ");
    }
  }
  return Status::ok();
}

Result<std::size_t> SocketStream::receive(std::span<const iovec> pieces, const Deadline& deadline,
                                          bool& timed_out) {
  for (;;) {
    const auto count = static_cast<int>(std::min(pieces.size(), kMostPieces));
    const ssize_t got = ::readv(socket_.file(), pieces.data(), count);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) return closed_by_server();
    if (errno == EINTR) continue;
    if (!is_to_wait(errno)) return Status::io_error("receive: ", std::strerror(errno));
    if (Status status = wait_for(socket_.file(), POLLIN, deadline, timed_out); !status) {
      return status.prefixed("no answer: ");
    }
  }
}

Result<std::size_t> SocketStream::peek(std::span<char> bytes, const Deadline& deadline) {
  const ssize_t got = ::recv(socket_.file(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got == 0) return closed_by_server();
  return static_cast<std::size_t>(std::max<ssize_t>(got, 0));  // or sending tells what is wrong
}

}  // namespace kvcache::remote
