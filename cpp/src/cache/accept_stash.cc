#include "kvcache/accept_stash.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/process.h"
#include "cache/hidden_memory.h"
#include "cache/sequence_moment.h"

namespace kvcache {
namespace {

constexpr std::uint64_t kMostCatchUp = 4;

struct Stored {
  SequenceMoment moment;
  std::uint64_t catch_up = 0;  // rows
};

std::string name_of(std::uint64_t row) { return "stash row " + std::to_string(row); }

}  // namespace

struct AcceptStash::State {
  State(const AcceptStashOptions& given, speculate::HiddenRows memory)
      : options(given), hidden(std::move(memory)) {}

  const AcceptStashOptions options;
  mutable ProcessMutex mutex;    // guards what follows; taken before that of a sequence
  speculate::HiddenRows hidden;  // [rows], then [rows, catch_up]
  std::vector<Stored> stored;

  // Locked. Why stash row `index` cannot be read.
  Status check(std::string_view call, std::uint64_t index) const {
    if (index >= stored.size()) {
      return Status::invalid_argument(call, ": ", name_of(index), " was not stored: the latest ",
                                      "store() had ", stored.size(), " sequences");
    }
    return stored[index].moment.check_same(call, name_of(index));
  }
  std::uint64_t first_catch_up(std::uint64_t index) const {
    return options.rows + index * options.catch_up;
  }
};

AcceptStash::AcceptStash(std::shared_ptr<State> state) : state_(std::move(state)) {}
AcceptStash::~AcceptStash() = default;

Result<std::unique_ptr<AcceptStash>> AcceptStash::create(const AcceptStashOptions& options) {
  if (options.catch_up > kMostCatchUp) {
    return Status::invalid_argument("accept stash: catch_up must be 0..", kMostCatchUp, ", got ",
                                    options.catch_up);
  }
  const auto rows = checked_mul(options.rows, 1 + options.catch_up);
  if (!rows) {
    return Status::invalid_argument("accept stash: ", options.rows, " rows and ", options.catch_up,
                                    " catch-up rows of each are more than 2^64 rows");
  }
  auto memory = hidden_memory("accept stash", *rows, options);
  if (!memory) return memory.status();
  std::shared_ptr<State> state(new State(options, std::move(memory).value()), DeleteInOwnProcess());
  return std::unique_ptr<AcceptStash>(new AcceptStash(std::move(state)));
}

namespace {

// The moments of the sequences, whose verdicts are there.
Result<std::vector<Stored>> settled(std::span<const Sequence* const> sequences) {
  std::vector<Stored> found(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::string call = "store: sequence " + std::to_string(i);
    auto moment = SequenceMoment::of(*sequences[i], call);
    if (!moment) return moment.status();
    if (moment->is_verifying()) {
      return Status::invalid_argument(call, ": its verify is open; commit() it first");
    }
    found[i].moment = *std::move(moment);
  }
  return found;
}

Status check_counts(std::span<const std::uint64_t> catch_up, std::span<const std::uint64_t> counts,
                    std::uint64_t most) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > most) {
      return Status::invalid_argument("store: sequence ", i, ": at most ", most,
                                      " catch-up rows, got ", counts[i]);
    }
    total += counts[i];
  }
  if (total == catch_up.size()) return Status::ok();
  return Status::invalid_argument("store: the counts of catch-up rows make ", total, ", got ",
                                  catch_up.size());
}

Status check_indices(std::string_view name, std::span<const std::uint64_t> rows,
                     std::uint64_t there) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < there) continue;
    return Status::invalid_argument("store: ", name, "[", i, "]: there are ", there,
                                    " hidden rows, got ", rows[i]);
  }
  return Status::ok();
}

}  // namespace

Status AcceptStash::store(std::span<const Sequence* const> sequences, const HiddenView& hidden,
                          std::span<const std::uint64_t> rows,
                          std::span<const std::uint64_t> catch_up,
                          std::span<const std::uint64_t> catch_counts) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const AcceptStashOptions& options = state_->options;
  if (sequences.size() > options.rows || rows.size() != sequences.size() ||
      (!catch_counts.empty() && catch_counts.size() != sequences.size())) {
    return Status::invalid_argument("store: up to ", options.rows, " sequences with a row each, ",
                                    "got ", sequences.size(), " sequences, ", rows.size(),
                                    " rows and ", catch_counts.size(), " counts");
  }
  if (Status status = state_->hidden.check("store", hidden); !status) return status;
  if (Status status = check_indices("rows", rows, hidden.rows); !status) return status;
  if (Status status = check_indices("catch_up", catch_up, hidden.rows); !status) return status;
  if (Status status = check_counts(catch_up, catch_counts, options.catch_up); !status) {
    return status;
  }
  if (Status status = SequenceMoment::check_distinct(sequences, "store"); !status) return status;
  const std::lock_guard lock(state_->mutex);
  auto stored = settled(sequences);
  if (!stored) return stored.status();
  auto next = catch_up.begin();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    state_->hidden.put(i, hidden, rows[i], 1);
    if (catch_counts.empty()) continue;
    (*stored)[i].catch_up = catch_counts[i];
    for (std::uint64_t k = 0; k < catch_counts[i]; ++k) {
      state_->hidden.put(state_->first_catch_up(i) + k, hidden, *next++, 1);
    }
  }
  state_->stored = std::move(stored).value();
  return Status::ok();
}

Result<HiddenView> AcceptStash::rows(std::uint64_t count) const {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  if (count > state_->stored.size()) return state_->check("rows", count - 1);
  for (std::uint64_t index = 0; index < count; ++index) {
    if (Status status = state_->check("rows", index); !status) return status;
  }
  return state_->hidden.view(0, count);
}

Result<HiddenView> AcceptStash::row(std::uint64_t index) const {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  if (Status status = state_->check("row", index); !status) return status;
  return state_->hidden.view(index, 1);
}

Result<HiddenView> AcceptStash::catch_up(std::uint64_t index) const {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  if (Status status = state_->check("catch_up", index); !status) return status;
  return state_->hidden.view(state_->first_catch_up(index), state_->stored[index].catch_up);
}

Status AcceptStash::check_process() const { return state_->mutex.check_process(); }

std::uint64_t AcceptStash::stored() const {
  if (!state_->mutex.is_own_process()) return 0;
  const std::lock_guard lock(state_->mutex);
  return state_->stored.size();
}

std::uint64_t AcceptStash::bytes() const {
  return state_->mutex.is_own_process() ? state_->hidden.bytes() : 0;
}

const AcceptStashOptions& AcceptStash::options() const { return state_->options; }

}  // namespace kvcache
