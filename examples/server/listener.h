// Lines over TCP on the loopback interface: a thread for each connection, one request at a time.
// Thread safety: Listener is thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "kvcache/status.h"

namespace server {

class Listener {
 public:
  // Answers one line, without its end, by another.
  using Handler = std::function<std::string(std::string_view line)>;

  // Listens on 127.0.0.1; `port` 0 chooses one. kIoError: the system refuses.
  static kvcache::Result<std::unique_ptr<Listener>> create(std::uint16_t port, Handler handler);
  // Ends the connections and waits for their threads, which finish the requests they have.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  struct Connection {
    int socket = -1;
    bool ended = false;
    std::thread thread;
  };

  Listener(int socket, std::uint16_t port, Handler handler);

  void accept_all();
  void join_ended();
  void serve(Connection& connection);

  const int socket_;
  const std::uint16_t port_;
  const Handler handler_;
  std::mutex mutex_;
  std::list<Connection> connections_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace server
