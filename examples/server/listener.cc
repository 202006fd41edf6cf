#include "listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace server {
namespace {

using kvcache::Result;
using kvcache::Status;

constexpr std::size_t kMostLine = 1 << 20;
constexpr std::size_t kMostConnections = 256;
constexpr std::string_view kTooMany =
    "{\"id\": 0, \"error\": \"out_of_capacity\", \"message\": \"too many connections\"}\n";
constexpr std::string_view kTooLong =
    "{\"id\": 0, \"error\": \"invalid_argument\", \"message\": \"a line of more than 1 MiB\"}\n";

bool send_all(int socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::create(std::uint16_t port, Handler handler) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return Status::io_error("socket: ", std::strerror(errno));
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket, generic, size) != 0 || ::listen(socket, 128) != 0 ||
      ::getsockname(socket, generic, &size) != 0) {
    Status status = Status::io_error("127.0.0.1:", port, ": ", std::strerror(errno));
    ::close(socket);
    return status;
  }
  return std::unique_ptr<Listener>(
      new Listener(socket, ntohs(address.sin_port), std::move(handler)));
}

Listener::Listener(int socket, std::uint16_t port, Handler handler)
    : socket_(socket),
      port_(port),
      handler_(std::move(handler)),
      thread_([this] { accept_all(); }) {}

Listener::~Listener() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (const Connection& connection : connections_) {
      if (!connection.ended) ::shutdown(connection.socket, SHUT_RD);
    }
  }
  ::shutdown(socket_, SHUT_RDWR);
  thread_.join();
  for (Connection& connection : connections_) connection.thread.join();
  ::close(socket_);
}

void Listener::accept_all() {
  while (true) {
    const int socket = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    const int error = errno;
    join_ended();
    const std::lock_guard lock(mutex_);
    if (stop_) {
      if (socket >= 0) ::close(socket);
      return;
    }
    if (socket < 0) {
      if (error == EMFILE || error == ENFILE) std::this_thread::yield();  // others may end
      continue;
    }
    const int yes = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connections_.size() >= kMostConnections) {
      (void)send_all(socket, kTooMany);
      ::close(socket);
      continue;
    }
    Connection& connection = connections_.emplace_back();
    connection.socket = socket;
    connection.thread = std::thread([this, &connection] { serve(connection); });
  }
}

void Listener::join_ended() {
  std::list<Connection> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto next = std::next(it);
      if (it->ended) ended.splice(ended.end(), connections_, it);
      it = next;
    }
  }
  for (Connection& connection : ended) connection.thread.join();
}

void Listener::serve(Connection& connection) {
  std::string buffer;
  char bytes[1 << 16];
  while (true) {
    std::size_t end = buffer.find('\n');
    if (end == std::string::npos) {
      if (buffer.size() > kMostLine) {
        (void)send_all(connection.socket, kTooLong);
        break;
      }
      const ssize_t count = ::recv(connection.socket, bytes, sizeof bytes, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      buffer.append(bytes, static_cast<std::size_t>(count));
      continue;
    }
    const std::string answer = handler_(std::string_view(buffer).substr(0, end)) + "\n";
    buffer.erase(0, end + 1);
    if (!send_all(connection.socket, answer)) break;
  }
  const std::lock_guard lock(mutex_);
  ::close(connection.socket);
  connection.ended = true;
}

}  // namespace server
