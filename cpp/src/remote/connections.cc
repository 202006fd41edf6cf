#include "remote/connections.h"

#include <utility>

namespace kvcache::remote {

ConnectionStats& ConnectionStats::operator+=(const ConnectionStats& other) {
  is_suspended = is_suspended || other.is_suspended;
  connects += other.connects;
  failures += other.failures;
  timeouts += other.timeouts;
  refused_operations += other.refused_operations;
  losses += other.losses;
  return *this;
}

Connections::Loan::Loan(Connections& owner, std::unique_ptr<RespClient> client)
    : owner_(&owner),
      client_(std::move(client)),
      received_before_(client_ ? client_->received_bytes() : 0) {}

Connections::Loan::Loan(Loan&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      client_(std::move(other.client_)),
      received_before_(other.received_before_) {}

Connections::Loan::~Loan() {
  if (owner_ != nullptr) owner_->give_back(nullptr);
}

bool Connections::Loan::is_outdated() const {
  return client_->is_broken() && client_->is_kept() && !client_->has_timed_out() &&
         client_->received_bytes() == received_before_;
}

Connections::Connections(Address address, Login login, std::size_t most, Greeting greeting)
    : address_(std::move(address)),
      login_(std::move(login)),
      most_(most),
      greeting_(std::move(greeting)) {
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
  Loan place(*this, nullptr);
  auto client = RespClient::connect(address_, login_, deadline, timed_out);
  if (client && greeting_) {
    if (Status status = greeting_(**client, deadline); !status) {
      timed_out = (*client)->has_timed_out();
      return status.prefixed(address_.text() + ": ");
    }
  }
  if (client) place.owner_ = nullptr;  // it is the caller's to give back
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
      ++stats_.losses;
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

Result<Connections::Loan> Connections::lend(const Deadline& deadline, bool again) {
  if (!again && !breaker_.may_try()) {
    const std::lock_guard lock(mutex_);
    ++stats_.refused_operations;
    return Status::io_error("left alone for a while after a failure: ", last_failure_);
  }
  bool timed_out = false;
  auto client = take(deadline, again, timed_out);
  if (!client) return fail(client.status(), timed_out);
  return Loan(*this, std::move(client).value());
}

Status Connections::end(Loan loan, Status status) {
  const bool broken = loan.client_->is_broken();
  const bool timed_out = loan.client_->has_timed_out();
  loan.owner_ = nullptr;
  give_back(std::move(loan.client_));
  if (!broken) {
    breaker_.succeed();
    return status;
  }
  return fail(status.prefixed(address_.text() + ": "), timed_out);
}

Status Connections::run(const Deadline& deadline, const Operation& operation) {
  for (bool again = false;; again = true) {
    auto loan = lend(deadline, again);
    if (!loan) return loan.status();
    Status status = operation(loan->client());
    if (!loan->is_outdated()) return end(std::move(loan).value(), std::move(status));
  }
}

ConnectionStats Connections::stats() const {
  const std::lock_guard lock(mutex_);
  ConnectionStats stats = stats_;
  stats.is_suspended = breaker_.is_open();
  return stats;
}

}  // namespace kvcache::remote
