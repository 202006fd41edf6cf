#include "remote/connections.h"

#include <utility>

namespace kvcache::remote {

// A connection on loan. Who does not end leaves it in the middle of something.
struct Connections::Taken {
  Connections& owner;
  std::unique_ptr<RespClient> is;
  bool ended = false;
  bool kept = false;  // its place is somebody else's to give back

  ~Taken() {
    if (!kept) owner.give_back(ended ? std::move(is) : nullptr);
  }
};

Connections::Connections(Address address, Login login, std::size_t most)
    : address_(std::move(address)), login_(std::move(login)), most_(most) {
  idle_.reserve(most_);  // so that giving back cannot fail
}

// A place among `most_` is taken before a connection is made, outside the lock.
Result<std::unique_ptr<RespClient>> Connections::take(const Deadline& deadline, bool fresh,
                                                      bool& timed_out) {
  {
    std::unique_lock lock(mutex_);
    if (!returned_.wait_until(lock, deadline.at(), [&] { return taken_ < most_; })) {
      timed_out = true;
      return Status::io_error(address_.text(), ": no connection was free within ", deadline.ms(),
                              " ms");
    }
    ++taken_;
    if (fresh) idle_.clear();
    if (!idle_.empty()) {
      auto client = std::move(idle_.back());
      idle_.pop_back();
      return client;
    }
    ++stats_.connects;
  }
  Taken place{*this, nullptr};
  auto client = RespClient::connect(address_, login_, deadline, timed_out);
  place.kept = client.is_ok();
  return client;
}

void Connections::give_back(std::unique_ptr<RespClient> client) {
  {
    const std::lock_guard lock(mutex_);
    --taken_;
    if (client && !client->is_broken()) {
      client->keep();
      idle_.push_back(std::move(client));
    } else {
      ++losses_;
    }
  }
  returned_.notify_one();
}

Status Connections::fail(Status status, bool timed_out) {
  breaker_.fail();
  const std::lock_guard lock(mutex_);
  ++stats_.failures;
  stats_.timeouts += timed_out;
  last_failure_ = status.message();
  return status;
}

Status Connections::run(const Deadline& deadline, const Operation& operation) {
  if (!breaker_.may_try()) {
    const std::lock_guard lock(mutex_);
    ++stats_.refused_operations;
    return Status::io_error("left alone for a while after a failure: ", last_failure_);
  }
  for (bool fresh = false;; fresh = true) {
    bool timed_out = false;
    auto taken = take(deadline, fresh, timed_out);
    if (!taken) return fail(taken.status(), timed_out);
    Taken client{*this, std::move(taken).value()};
    const std::uint64_t before = client.is->received_bytes();
    const bool was_kept = client.is->is_kept();
    const Status status = operation(*client.is);
    client.ended = true;
    const bool broken = client.is->is_broken();
    timed_out = client.is->has_timed_out();
    const bool silent = client.is->received_bytes() == before;
    if (!broken) {
      breaker_.succeed();
      return status;
    }
    if (was_kept && silent && !timed_out) continue;
    return fail(status.prefixed(address_.text() + ": "), timed_out);
  }
}

std::uint64_t Connections::losses() const {
  const std::lock_guard lock(mutex_);
  return losses_;
}

ConnectionStats Connections::stats() const {
  const std::lock_guard lock(mutex_);
  ConnectionStats stats = stats_;
  stats.is_suspended = breaker_.is_open();
  return stats;
}

}  // namespace kvcache::remote
