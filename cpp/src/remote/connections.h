// Connections to one server, made when they are needed and kept: what several threads do with it at
// once, and what happens when it does not answer.
// Thread safety: thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "remote/breaker.h"
#include "remote/resp_client.h"

namespace kvcache::remote {

struct ConnectionStats {
  bool is_suspended = false;  // of several servers: one of them
  std::uint64_t connects = 0;
  std::uint64_t failures = 0;
  std::uint64_t timeouts = 0;
  std::uint64_t refused_operations = 0;
  std::uint64_t losses = 0;

  ConnectionStats& operator+=(const ConnectionStats& other);
};

class Connections {
 public:
  // What is asked of every new connection before it is used.
  using Greeting = std::function<Status(RespClient&, const Deadline&)>;
  // At most `most` at a time; who finds none waits for one, by its deadline.
  Connections(Address address, Login login, std::size_t most, Greeting greeting = {});

  // A connection of somebody's own until it goes to end(). Without that, somebody has left in the
  // middle of something, and it is closed.
  class Loan {
   public:
    Loan(Loan&& other) noexcept;
    Loan& operator=(Loan&&) = delete;
    ~Loan();
    RespClient& client() const { return *client_; }
    // Whether it was kept, and turns out to have been closed meanwhile: a new one may do better.
    bool is_outdated() const;

   private:
    friend class Connections;
    Loan(Connections& owner, std::unique_ptr<RespClient> client);

    Connections* owner_;
    std::unique_ptr<RespClient> client_;
    std::uint64_t received_before_;
  };
  // kIoError: there is none in time; or it is not tried, because the last failure was a moment ago.
  // `again`: after one that was outdated; a new one.
  Result<Loan> lend(const Deadline& deadline, bool again = false);
  // How an operation over it ended, with the server's name where it did not end well. One that left
  // the connection broken is a failure of the server.
  Status end(Loan loan, Status status);

  // An operation over one connection. It is called again where the first one was outdated.
  using Operation = std::function<Status(RespClient&)>;
  Status run(const Deadline& deadline, const Operation& operation);

  // A connection that was lost is counted: whatever was known of the server may have changed.
  ConnectionStats stats() const;
  bool is_suspended() const { return breaker_.is_open(); }
  const Address& address() const { return address_; }

 private:
  Result<std::unique_ptr<RespClient>> take(const Deadline& deadline, bool fresh, bool& timed_out);
  void give_back(std::unique_ptr<RespClient> client);
  Status fail(Status status, bool timed_out);

  const Address address_;
  const Login login_;
  const std::size_t most_;
  const Greeting greeting_;
  Breaker breaker_;

  mutable std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<RespClient>> idle_;
  std::size_t taken_ = 0;
  ConnectionStats stats_;
  std::string last_failure_;
};

}  // namespace kvcache::remote
