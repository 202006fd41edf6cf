// Carries a failed Status from C++ to Python; bind_status.cc turns it into the right class.
#pragma once

#include <exception>
#include <utility>

#include "kvcache/status.h"

namespace kvcache::bindings {

// A plain C++ exception, so that it may be thrown while the GIL is released.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  const Status& status() const { return status_; }
  const char* what() const noexcept override { return status_.message().c_str(); }

 private:
  Status status_;
};

inline void unwrap(Status status) {
  if (!status.is_ok()) throw StatusError(std::move(status));
}

template <typename T>
T unwrap(Result<T> result) {
  if (!result.is_ok()) throw StatusError(result.status());
  return std::move(result).value();
}

// `handle`, unless it belongs to another process: for calls that return no status of their own.
template <typename Handle>
Handle& own(Handle& handle) {
  unwrap(handle.check_process());
  return handle;
}

// A getter that answers 0 in another process, where this one has an error.
template <typename Handle, typename Value>
auto own_getter(Value (Handle::*get)() const) {
  return [get](const Handle& handle) { return (own(handle).*get)(); };
}

}  // namespace kvcache::bindings
