#include "remote/connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "remote/os_sockets.h"

namespace kvcache::remote {
namespace {

struct Target {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

struct Found {
  int failed = 0;  // as of getaddrinfo()
  std::vector<Target> targets;
};

Found look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Found found;
  found.failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (found.failed != 0) return found;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    Target target;
    if (each->ai_addrlen > sizeof(target.bytes)) continue;
    std::memcpy(&target.bytes, each->ai_addr, each->ai_addrlen);
    target.size = each->ai_addrlen;
    found.targets.push_back(target);
  }
  return found;
}

// What the thread of a lookup shares with who waits for it, maybe in vain.
struct Pending {
  std::mutex mutex;
  std::condition_variable done;
  std::optional<Found> found;
};

Result<std::vector<Target>> resolve(const Address& address, const Deadline& deadline,
                                    bool& timed_out) {
  Found found = look_up(address.host, address.port, AI_NUMERICHOST);
  if (found.failed == 0) return std::move(found.targets);
  const auto pending = std::make_shared<Pending>();
  try {
    std::thread([pending, host = address.host, port = address.port] {
      Found all;
      try {
        all = look_up(host, port, AI_ADDRCONFIG);
      } catch (const std::bad_alloc&) {
        all.failed = EAI_MEMORY;
      }
      const std::lock_guard lock(pending->mutex);
      pending->found = std::move(all);
      pending->done.notify_all();
    }).detach();
  } catch (const std::system_error& error) {
    return Status::io_error(address.text(), ": no thread to look its name up: ", error.what());
  }
  std::unique_lock lock(pending->mutex);
  if (!pending->done.wait_until(lock, deadline.at(), [&] { return pending->found.has_value(); })) {
    timed_out = true;
    return Status::io_error(address.text(), ": its name was not found within ", deadline.ms(),
                            " ms");
  }
  if (pending->found->failed != 0) {
    return Status::io_error(address.text(), ": ", gai_strerror(pending->found->failed));
  }
  return std::move(pending->found->targets);
}

Result<Target> unix_target(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path) || path.find('\0') != path.npos) {
    return Status::io_error(path, ": no path of a socket, which has at most ",
                            sizeof(name.sun_path) - 1, " bytes");
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  Target target;
  std::memcpy(&target.bytes, &name, sizeof(name));
  target.size = sizeof(name);
  return target;
}

Result<Socket> connect_one(const Address& address, const Target& target, const Deadline& deadline,
                           bool& timed_out) {
  const int family = target.bytes.ss_family;
  Socket socket(os::open_socket(family));
  const auto refused = [&](int error) {
    return Status::io_error(address.text(), ": ", std::strerror(error));
  };
  if (socket.file() < 0) return refused(errno);
  const auto* name = reinterpret_cast<const sockaddr*>(&target.bytes);
  if (::connect(socket.file(), name, target.size) != 0) {
    // A Unix socket whose queue is full answers EAGAIN, and there is nothing to wait for.
    if (errno != EINPROGRESS) return refused(errno);
    if (Status status = wait_for(socket.file(), POLLOUT, deadline, timed_out); !status) {
      return status.prefixed(address.text() + ": no connection: ");
    }
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(socket.file(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) return refused(error);
  }
  const int on = 1;
  if (family != AF_UNIX) setsockopt(socket.file(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return socket;
}

}  // namespace

std::string Address::text() const {
  if (!socket.empty()) return socket;
  const bool brackets = host.find(':') != host.npos;
  return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

Socket::~Socket() {
  if (file_ >= 0) ::close(file_);
}

Status wait_for(int file, short events, const Deadline& deadline, bool& timed_out) {
  for (;;) {
    pollfd waiting{file, events, 0};
    const int ready = ::poll(&waiting, 1, deadline.poll_ms());
    if (ready > 0) return Status::ok();  // errors too: the next call tells which
    if (ready < 0 && errno != EINTR) return Status::io_error("poll: ", std::strerror(errno));
    if (ready == 0 && deadline.has_passed()) {
      timed_out = true;
      return Status::io_error("nothing within ", deadline.ms(), " ms");
    }
  }
}

Result<Socket> connect_to(const Address& address, const Deadline& deadline, bool& timed_out) {
  std::vector<Target> targets;
  if (!address.socket.empty()) {
    const auto target = unix_target(address.socket);
    if (!target) return target.status();
    targets.push_back(*target);
  } else {
    auto found = resolve(address, deadline, timed_out);
    if (!found) return found.status();
    targets = std::move(found).value();
  }
  Status status = Status::io_error(address.text(), ": no address");
  for (const Target& target : targets) {
    auto socket = connect_one(address, target, deadline, timed_out);
    if (socket || timed_out) return socket;
    status = socket.status();
  }
  return status;
}

}  // namespace kvcache::remote
