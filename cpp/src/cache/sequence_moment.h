// Where a sequence stands, remembered by what is good only there: a position, and which verify came
// last. Asking later takes the sequence's lock and says what has ended since.
// Thread safety: a value; thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "kvcache/sequence.h"

namespace kvcache {

class SequenceMoment {
 public:
  SequenceMoment() = default;  // of no sequence

  // `call` begins every error. kInvalidArgument: the sequence is closed or in another process.
  static Result<SequenceMoment> of(const Sequence& sequence, std::string_view call);

  std::uint64_t length() const { return length_; }
  bool is_verifying() const { return verifying_; }  // a verify was open
  bool is_branching() const { return branching_; }  // and its drafts form a tree, not a path
  std::uint64_t rows() const { return rows_; }      // of that verify; 0 without

  // kInvalidArgument: one of the sequences is there twice.
  static Status check_distinct(std::span<const Sequence* const> sequences, std::string_view call);

  // Of the same sequence.
  bool same_sequence(const SequenceMoment& other) const {
    return !core_.owner_before(other.core_) && !other.core_.owner_before(core_);
  }
  // Takes the sequence's lock, as all below. False once it is closed.
  bool is_open() const;
  // Whether it was closed, its length changed or it went back meanwhile.
  bool has_moved() const;
  // kInvalidArgument: the sequence was closed, a later verify has begun, it went back, or its
  // length changed.
  Status check_same(std::string_view call, std::string_view what) const;
  // REQUIRES: is_verifying(). How many rows that verify has kept. kInvalidArgument: it is open
  // still, kept none, or something of the above.
  Result<std::uint64_t> kept_rows(std::string_view call, std::string_view what) const;
  // The length now. kInvalidArgument: the sequence was closed or went back, or a verify is
  // open.
  Result<std::uint64_t> idle_length(std::string_view call, std::string_view what) const;

 private:
  template <typename Answer>
  auto ask(std::string_view call, std::string_view what, const Answer& answer) const
      -> decltype(answer(std::declval<const SequenceCore&>()));

  std::weak_ptr<SequenceCore> core_;
  std::uint64_t serial_ = 0;  // of the latest verify
  std::uint64_t setbacks_ = 0;
  std::uint64_t length_ = 0;
  std::uint64_t rows_ = 0;
  bool verifying_ = false;
  bool branching_ = false;
};

}  // namespace kvcache
