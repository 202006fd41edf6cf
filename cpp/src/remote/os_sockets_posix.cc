#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "remote/os_sockets.h"

namespace kvcache::remote::os {
namespace {

// An option of the socket where there is one, since the flag is missing there or newer.
#if defined(SO_NOSIGPIPE)
constexpr int kSendFlags = 0;
bool silence(int socket) {
  const int on = 1;
  return setsockopt(socket, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on)) == 0;
}
#else
constexpr int kSendFlags = MSG_NOSIGNAL;
bool silence(int socket) { return true; }
#endif

bool prepare(int socket) {
  const int flags = fcntl(socket, F_GETFL);
  return fcntl(socket, F_SETFD, FD_CLOEXEC) == 0 && flags != -1 &&
         fcntl(socket, F_SETFL, flags | O_NONBLOCK) == 0 && silence(socket);
}

}  // namespace

int open_socket(int family) {
  const int socket = ::socket(family, SOCK_STREAM, 0);
  if (socket < 0 || prepare(socket)) return socket;
  const int error = errno;
  ::close(socket);
  errno = error;
  return -1;
}

ssize_t send(int socket, const msghdr& message) { return ::sendmsg(socket, &message, kSendFlags); }

}  // namespace kvcache::remote::os
