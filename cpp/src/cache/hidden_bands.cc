#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/process.h"
#include "cache/hidden_memory.h"
#include "cache/sequence_moment.h"
#include "kvcache/hidden_capture.h"

namespace kvcache {

struct HiddenBands::State {
  State(const HiddenRowsOptions& given, std::uint64_t count, speculate::HiddenRows memory)
      : options(given), bands(count), hidden(std::move(memory)) {}

  const HiddenRowsOptions options;
  const std::uint64_t bands;
  mutable ProcessMutex mutex;  // guards what follows; taken before that of a sequence
  speculate::HiddenRows hidden;
  std::vector<SequenceMoment> stored;  // of each band, whose rows are those of its verify

  // The bands of a store(), whose verifies are open. Takes the sequences' locks.
  Result<std::vector<SequenceMoment>> check(std::span<const Sequence* const> sequences,
                                            std::uint64_t hidden_rows,
                                            std::span<const std::uint64_t> offsets) const {
    std::vector<SequenceMoment> found(sequences.size());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::string call = "store: sequence " + std::to_string(i);
      if (offsets[i] > offsets[i + 1] || offsets[i + 1] > hidden_rows ||
          offsets[i + 1] - offsets[i] > options.rows) {
        return Status::invalid_argument(call, ": a band is up to ", options.rows, " of the ",
                                        hidden_rows, " rows, got ", offsets[i], "..",
                                        offsets[i + 1]);
      }
      auto moment = SequenceMoment::of(*sequences[i], call);
      if (!moment) return moment.status();
      if (!moment->is_verifying()) {
        return Status::invalid_argument(call, ": no verify of it is open; a band is stored before ",
                                        "commit()");
      }
      if (moment->is_branching()) {
        return Status::unsupported(call,
                                   ": the drafts are a tree, whose accepted rows are not the "
                                   "first of its band; gather them by an AcceptStash");
      }
      if (offsets[i + 1] - offsets[i] != moment->rows()) {
        return Status::invalid_argument(call, ": its verify has ", moment->rows(),
                                        " rows, but its band would have ",
                                        offsets[i + 1] - offsets[i], " (", offsets[i], "..",
                                        offsets[i + 1], "); give the offsets of the verify");
      }
      found[i] = *std::move(moment);
    }
    return found;
  }
};

HiddenBands::HiddenBands(std::shared_ptr<State> state) : state_(std::move(state)) {}
HiddenBands::~HiddenBands() = default;

Result<std::unique_ptr<HiddenBands>> HiddenBands::create(std::uint64_t bands,
                                                         const HiddenRowsOptions& options) {
  const auto rows = checked_mul(bands, options.rows);
  if (!rows) {
    return Status::invalid_argument("hidden bands: ", bands, " bands of ", options.rows,
                                    " rows are more than 2^64 rows");
  }
  auto memory = hidden_memory("hidden bands", *rows, options);
  if (!memory) return memory.status();
  std::shared_ptr<State> state(new State(options, bands, std::move(memory).value()),
                               DeleteInOwnProcess());
  return std::unique_ptr<HiddenBands>(new HiddenBands(std::move(state)));
}

Status HiddenBands::store(std::span<const Sequence* const> sequences, const HiddenView& hidden,
                          std::span<const std::uint64_t> offsets) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  if (sequences.size() > state_->bands || offsets.size() != sequences.size() + 1) {
    return Status::invalid_argument("store: up to ", state_->bands,
                                    " sequences and an offset more, ", "got ", sequences.size(),
                                    " and ", offsets.size());
  }
  if (Status status = state_->hidden.check("store", hidden); !status) return status;
  if (Status status = SequenceMoment::check_distinct(sequences, "store"); !status) return status;
  const std::lock_guard lock(state_->mutex);
  auto stored = state_->check(sequences, hidden.rows, offsets);
  if (!stored) return stored.status();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    state_->hidden.put(i * state_->options.rows, hidden, offsets[i], (*stored)[i].rows());
  }
  state_->stored = std::move(stored).value();
  return Status::ok();
}

Result<HiddenView> HiddenBands::accepted(std::uint64_t band) const {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  if (band >= state_->stored.size()) {
    return Status::invalid_argument("accepted: band ", band, " was not stored: the latest store() ",
                                    "had ", state_->stored.size(), " sequences");
  }
  const SequenceMoment& held = state_->stored[band];
  const auto kept = held.kept_rows("accepted", "band " + std::to_string(band));
  if (!kept) return kept.status();
  return state_->hidden.view(band * state_->options.rows, *kept);
}

Status HiddenBands::check_process() const { return state_->mutex.check_process(); }

std::uint64_t HiddenBands::stored() const {
  if (!state_->mutex.is_own_process()) return 0;
  const std::lock_guard lock(state_->mutex);
  return state_->stored.size();
}

std::uint64_t HiddenBands::bytes() const {
  return state_->mutex.is_own_process() ? state_->hidden.bytes() : 0;
}

std::uint64_t HiddenBands::bands() const { return state_->bands; }
const HiddenRowsOptions& HiddenBands::options() const { return state_->options; }

}  // namespace kvcache
