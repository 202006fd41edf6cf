// Sockets as a program wants them that starts other programs and does not die of SIGPIPE.
// os_sockets_linux.cc is for Linux, os_sockets_posix.cc for every other system, macOS among them;
// the build chooses one (KVCACHE_PORTABLE). The calls answer -1 with the reason in errno.
// Thread safety: thread-safe.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

namespace kvcache::remote::os {

// A stream socket that never blocks and is closed when another program takes the process over.
int open_socket(int family);
// sendmsg() to such a socket; a connection that is closed is EPIPE and no signal.
ssize_t send(int socket, const msghdr& message);

}  // namespace kvcache::remote::os
