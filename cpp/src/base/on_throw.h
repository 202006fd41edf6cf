// Undoes what a scope has done so far when an exception ends it, such as memory that runs out.
// Thread safety: values.
#pragma once

#include <exception>
#include <utility>

namespace kvcache::base {

template <typename Undo>
class OnThrow {
 public:
  // `undo` must not throw.
  explicit OnThrow(Undo undo) : undo_(std::move(undo)), exceptions_(std::uncaught_exceptions()) {}
  OnThrow(const OnThrow&) = delete;
  OnThrow& operator=(const OnThrow&) = delete;
  ~OnThrow() {
    if (std::uncaught_exceptions() > exceptions_) undo_();
  }

 private:
  Undo undo_;
  const int exceptions_;
};

}  // namespace kvcache::base
