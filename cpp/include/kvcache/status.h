// How every fallible call of the library answers: a Status, or a Result<T> that holds one or a T.
// Nothing throws across the public API. Thread safety: values, thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace kvcache {

// The numbers are shared with the C ABI and never reused.
enum class StatusCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's mistake: a value or a call out of order
  kNotFound = 2,         // an id, handle or name that is not live
  kOutOfCapacity = 3,    // a budget is full; nothing was changed
  kCorruption = 4,       // a file or record is not what it claims to be
  kUnsupported = 5,      // understood, but not possible for this model or build
  kIoError = 6,          // the operating system refused
  kNonFinite = 7,        // NaN or infinity where the storage format allows none
  kInternal = 8,         // a bug of ours
};

class [[nodiscard]] Status {
 public:
  Status() = default;

  static Status ok() { return Status(); }
  template <typename... Parts>
  static Status invalid_argument(const Parts&... parts) {
    return make(StatusCode::kInvalidArgument, parts...);
  }
  template <typename... Parts>
  static Status not_found(const Parts&... parts) {
    return make(StatusCode::kNotFound, parts...);
  }
  template <typename... Parts>
  static Status out_of_capacity(const Parts&... parts) {
    return make(StatusCode::kOutOfCapacity, parts...);
  }
  template <typename... Parts>
  static Status corruption(const Parts&... parts) {
    return make(StatusCode::kCorruption, parts...);
  }
  template <typename... Parts>
  static Status unsupported(const Parts&... parts) {
    return make(StatusCode::kUnsupported, parts...);
  }
  template <typename... Parts>
  static Status io_error(const Parts&... parts) {
    return make(StatusCode::kIoError, parts...);
  }
  template <typename... Parts>
  static Status non_finite(const Parts&... parts) {
    return make(StatusCode::kNonFinite, parts...);
  }
  template <typename... Parts>
  static Status internal(const Parts&... parts) {
    return make(StatusCode::kInternal, parts...);
  }

  bool is_ok() const { return code_ == StatusCode::kOk; }
  explicit operator bool() const { return is_ok(); }
  StatusCode code() const { return code_; }
  // What happened, the numbers, and the knob to turn. Empty when ok.
  const std::string& message() const { return message_; }
  // The same with text before its message, such as which of many it concerns.
  Status prefixed(const std::string& text) const {
    Status status = *this;
    status.message_.insert(0, text);
    return status;
  }

 private:
  template <typename... Parts>
  static Status make(StatusCode code, const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    Status status;
    status.code_ = code;
    status.message_ = std::move(text).str();
    return status;
  }

  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: a value converts, as in a return
  Result(Status status) : status_(std::move(status)) {
    if (status_.is_ok()) status_ = Status::internal("Result built from an ok Status");
  }

  bool is_ok() const { return value_.has_value(); }
  explicit operator bool() const { return is_ok(); }
  const Status& status() const { return status_; }

  // REQUIRES: is_ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace kvcache
