#include "remote/os_sockets.h"

namespace kvcache::remote::os {

int open_socket(int family) {
  return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

ssize_t send(int socket, const msghdr& message) {
  return ::sendmsg(socket, &message, MSG_NOSIGNAL);
}

}  // namespace kvcache::remote::os
