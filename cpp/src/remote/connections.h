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
  bool is_suspended = false;
  std::uint64_t connects = 0;
  std::uint64_t failures = 0;
  std::uint64_t timeouts = 0;
  std::uint64_t refused_operations = 0;
};

class Connections {
 public:
  // At most `most` at a time; who finds none waits for one, by its deadline.
  Connections(Address address, Login login, std::size_t most);

  // An operation over one connection. It is called again, with a new connection, where a kept one
  // turns out to have been closed meanwhile. kIoError: not tried, because the last failure was a
  // moment ago; otherwise how the operation ended.
  using Operation = std::function<Status(RespClient&)>;
  Status run(const Deadline& deadline, const Operation& operation);

  // Times that a connection was lost: whatever was known of the server may have changed.
  std::uint64_t losses() const;
  ConnectionStats stats() const;
  const Address& address() const { return address_; }

 private:
  struct Taken;
  Result<std::unique_ptr<RespClient>> take(const Deadline& deadline, bool fresh, bool& timed_out);
  void give_back(std::unique_ptr<RespClient> client);
  Status fail(Status status, bool timed_out);

  const Address address_;
  const Login login_;
  const std::size_t most_;
  Breaker breaker_;

  mutable std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<RespClient>> idle_;
  std::size_t taken_ = 0;
  std::uint64_t losses_ = 0;
  ConnectionStats stats_;
  std::string last_failure_;
};

}  // namespace kvcache::remote
