#include "kvcache/hidden_capture.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "base/process.h"
#include "cache/hidden_memory.h"
#include "cache/sequence_moment.h"

namespace kvcache {
namespace {

constexpr std::string_view kWhat = "the capture";

}  // namespace

struct HiddenCapture::State {
  State(const HiddenRowsOptions& given, speculate::HiddenRows memory)
      : options(given), hidden(std::move(memory)) {}

  const HiddenRowsOptions options;
  mutable ProcessMutex mutex;  // guards what follows; taken before that of a sequence
  speculate::HiddenRows hidden;
  std::optional<SequenceMoment> owner;
  std::uint64_t position = 0;  // of the first row
  std::uint64_t captured = 0;
  std::uint64_t seen = 0;  // rows that were written, kept or not

  // Locked. The owner's length; with `complete`, only when all rows are of positions below it.
  Result<std::uint64_t> check(std::string_view call, bool complete) const {
    if (!owner) return Status::invalid_argument(call, ": begin() a capture first");
    auto length = owner->idle_length(call, kWhat);
    if (!length || !complete || *length >= position + captured) return length;
    return Status::invalid_argument(call, ": rows up to position ", position + captured,
                                    " were written, but the sequence is at ", *length,
                                    "; advance() it first");
  }
};

HiddenCapture::HiddenCapture(std::shared_ptr<State> state) : state_(std::move(state)) {}
HiddenCapture::~HiddenCapture() = default;

Result<std::unique_ptr<HiddenCapture>> HiddenCapture::create(const HiddenRowsOptions& options) {
  auto memory = hidden_memory("hidden capture", options.rows, options);
  if (!memory) return memory.status();
  std::shared_ptr<State> state(new State(options, std::move(memory).value()), DeleteInOwnProcess());
  return std::unique_ptr<HiddenCapture>(new HiddenCapture(std::move(state)));
}

Status HiddenCapture::begin(const Sequence& sequence) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  auto moment = SequenceMoment::of(sequence, "begin");
  if (!moment) return moment.status();
  const auto& owner = state_->owner;
  if (owner && !owner->same_sequence(*moment) && owner->is_open()) {
    return Status::invalid_argument("begin: the capture of another sequence holds ",
                                    state_->captured, " rows; release() it first");
  }
  state_->position = moment->length();
  state_->captured = state_->seen = 0;
  state_->owner = *std::move(moment);
  return Status::ok();
}

Result<std::uint64_t> HiddenCapture::write(std::uint64_t position, const HiddenView& rows) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  if (Status status = state_->hidden.check("write", rows); !status) return status;
  const std::lock_guard lock(state_->mutex);
  if (const auto length = state_->check("write", false); !length) return length.status();
  if (position != state_->position + state_->seen) {
    return Status::invalid_argument("write: the next row is that of position ",
                                    state_->position + state_->seen, ", got ", position);
  }
  const std::uint64_t room = state_->hidden.rows() - state_->captured;
  const std::uint64_t kept = std::min(rows.rows, room);
  state_->hidden.put(state_->captured, rows, 0, kept);
  state_->captured += kept;
  state_->seen += rows.rows;
  return kept;
}

Result<HiddenView> HiddenCapture::rows() const {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  if (const auto length = state_->check("rows", true); !length) return length.status();
  return state_->hidden.view(0, state_->captured);
}

Status HiddenCapture::consume() {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  if (const auto length = state_->check("consume", true); !length) return length.status();
  state_->position += state_->seen;
  state_->captured = state_->seen = 0;
  return Status::ok();
}

Status HiddenCapture::release() {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  state_->owner.reset();
  state_->position = state_->captured = state_->seen = 0;
  return Status::ok();
}

Status HiddenCapture::check_process() const { return state_->mutex.check_process(); }

std::uint64_t HiddenCapture::captured() const {
  if (!state_->mutex.is_own_process()) return 0;
  const std::lock_guard lock(state_->mutex);
  return state_->captured;
}

std::uint64_t HiddenCapture::position() const {
  if (!state_->mutex.is_own_process()) return 0;
  const std::lock_guard lock(state_->mutex);
  return state_->position;
}

std::uint64_t HiddenCapture::bytes() const {
  return state_->mutex.is_own_process() ? state_->hidden.bytes() : 0;
}

const HiddenRowsOptions& HiddenCapture::options() const { return state_->options; }

}  // namespace kvcache
