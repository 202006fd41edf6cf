// What a batch shares between its calls and the verify sessions over it. "Own" means the locks of
// the batch and of all its sequences, which a BatchLock holds.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cache/cache_core.h"
#include "kvcache/batch.h"

namespace kvcache {

// The batch's table of one group, and what of each sequence it shows.
struct ShownTable {
  struct Row {
    std::uint64_t version = UINT64_MAX;  // none
    std::size_t blocks = 0;
  };
  std::shared_ptr<std::vector<std::int32_t>> entries;
  std::size_t columns = 0;
  std::vector<Row> rows;
};

struct BatchCore {
  std::shared_ptr<CacheCore> cache;
  std::vector<std::shared_ptr<SequenceCore>> members;  // by row
  std::vector<SequenceCore*> order;                    // how they are locked: by address
  mutable ProcessMutex mutex;
  std::vector<ShownTable> shown;           // by group
  std::vector<sequence::RowsAhead> ahead;  // of the call that runs

  // Own. kInvalidArgument: a sequence is closed; or does not take part in changes by `call` either.
  Status check_open() const;
  Status check_idle(std::string_view call) const;
  // kInvalidArgument: not one number for each sequence.
  Status check_size(const char* name, std::size_t size) const;
  Status check_counts(std::span<const std::uint64_t> counts) const;  // or none at all
  // Likewise; or the sum of the counts is not what the caller has brought.
  Status check_total(std::span<const std::uint64_t> counts, const char* name,
                     std::uint64_t brought) const;
};

// The batch's lock and those of all its sequences, which are of the same process; in a child of it,
// nothing.
class BatchLock {
 public:
  explicit BatchLock(const BatchCore& core) : core_(core), own_(core.mutex.is_own_process()) {
    if (!own_) return;
    core_.mutex.own().lock();
    for (SequenceCore* member : core_.order) member->mutex.own().lock();
  }
  BatchLock(const BatchLock&) = delete;
  BatchLock& operator=(const BatchLock&) = delete;
  ~BatchLock() {
    if (!own_) return;
    for (SequenceCore* member : core_.order) member->mutex.own().unlock();
    core_.mutex.own().unlock();
  }

 private:
  const BatchCore& core_;
  const bool own_;
};

// Whom of the batch a failure concerns.
inline Status in_row(std::size_t row, const Status& status) {
  return status.prefixed("sequences[" + std::to_string(row) + "]: ");
}

// `counts` has one number for each row, or is empty for 1 each.
inline std::uint64_t count_of(std::span<const std::uint64_t> counts, std::size_t row) {
  return counts.empty() ? 1 : counts[row];
}

// The rows of one sequence among those of all. View: codec::RowsView or codec::MutableRowsView.
template <typename View>
std::vector<View> slice(std::span<const View> components, std::size_t offset, std::size_t count) {
  using Byte =
      std::conditional_t<std::is_same_v<View, codec::RowsView>, const std::byte, std::byte>;
  std::vector<View> rows(components.begin(), components.end());
  for (View& view : rows) {
    view.data =
        static_cast<Byte*>(view.data) + static_cast<std::ptrdiff_t>(offset) * view.token_stride;
    view.tokens = count;
  }
  return rows;
}

}  // namespace kvcache
