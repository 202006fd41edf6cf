#include "kvcache/prompt_lookup.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/process.h"
#include "speculate/lookup_window.h"
#include "speculate/ngram_index.h"

namespace kvcache {

using speculate::LookupWindow;
using speculate::NgramIndex;
using Tokens = std::span<const std::int32_t>;

struct PromptLookupIndex::State {
  explicit State(const PromptLookupOptions& given)
      : options(given),
        index(given.min_match, given.max_match, given.history_tokens),
        window(given.max_drafts, given.max_pause) {}

  const PromptLookupOptions options;
  mutable ProcessMutex mutex;  // guards what follows
  NgramIndex index;
  LookupWindow window;

  // Locked.
  std::uint64_t find(Tokens history, std::span<std::int32_t> drafts) const {
    const auto match = index.find(history, options.occurrence == Occurrence::kEarliest);
    if (match.length == 0) return 0;
    const std::uint64_t there = history.size() - match.end;
    std::uint64_t count = std::min<std::uint64_t>(drafts.size(), there);
    std::copy_n(history.data() + match.end, count, drafts.data());
    if (options.occurrence != Occurrence::kRepeating) return count;
    for (; count < drafts.size(); ++count) drafts[count] = drafts[count - there];
    return count;
  }

  template <typename Read>
  std::uint64_t count(const Read& read) const {
    if (!mutex.is_own_process()) return 0;
    const std::lock_guard lock(mutex);
    return read();
  }
};

namespace {

constexpr std::uint64_t kMaxDrafts = 1 << 16;
constexpr std::uint64_t kMost = UINT32_MAX;

Status check(const PromptLookupOptions& options) {
  if (options.min_match == 0 || options.min_match > options.max_match ||
      options.max_match > NgramIndex::kMaxLength) {
    return Status::invalid_argument("1 <= min_match <= max_match <= ", NgramIndex::kMaxLength,
                                    " must hold, got ", options.min_match, " and ",
                                    options.max_match);
  }
  if (options.max_match - options.min_match >= NgramIndex::kMaxLengths) {
    return Status::invalid_argument("at most ", NgramIndex::kMaxLengths,
                                    " lengths of n-grams are indexed, got ", options.min_match,
                                    "..", options.max_match, "; raise min_match");
  }
  struct Count {
    const char* name;
    std::uint64_t value, least, most;
  };
  for (const Count& count : {Count{"max_drafts", options.max_drafts, 1, kMaxDrafts},
                             Count{"history_tokens", options.history_tokens, 1, kMost},
                             Count{"max_pause", options.max_pause, 0, kMost}}) {
    if (count.value < count.least || count.value > count.most) {
      return Status::invalid_argument(count.name, " must be ", count.least, "..", count.most,
                                      ", got ", count.value);
    }
  }
  return Status::ok();
}

}  // namespace

PromptLookupIndex::PromptLookupIndex(std::shared_ptr<State> state) : state_(std::move(state)) {}
PromptLookupIndex::~PromptLookupIndex() = default;

Result<std::unique_ptr<PromptLookupIndex>> PromptLookupIndex::create(
    const PromptLookupOptions& options) {
  if (Status status = check(options); !status) return status;
  std::shared_ptr<State> state(new State(options), DeleteInOwnProcess());
  if (options.reserve) {
    if (Status status = state->index.reserve(); !status) return status;
  }
  return std::unique_ptr<PromptLookupIndex>(new PromptLookupIndex(std::move(state)));
}

const PromptLookupOptions& PromptLookupIndex::options() const { return state_->options; }

Status PromptLookupIndex::observe(Tokens history) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  return state_->index.observe(history);
}

Status PromptLookupIndex::truncate(std::uint64_t length) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  state_->index.truncate(length);
  return Status::ok();
}

Result<std::uint64_t> PromptLookupIndex::find(Tokens history,
                                              std::span<std::int32_t> drafts) const {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  return state_->find(history, drafts);
}

Result<std::uint64_t> PromptLookupIndex::propose(Tokens history, std::span<std::int32_t> drafts,
                                                 const PromptLookupScope* shared) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  LookupWindow& window = state_->window;
  if (window.in_flight() != 0) {
    return Status::invalid_argument("propose: ", window.in_flight(),
                                    " drafts are in flight; settle() or abandon() them first");
  }
  if (Status status = state_->index.observe(history); !status) return status;
  if (!window.begin()) return std::uint64_t{0};
  drafts = drafts.first(std::min<std::uint64_t>(drafts.size(), window.window()));
  std::uint64_t count = state_->find(history, drafts);
  if (count == 0 && shared != nullptr) {
    const auto found = shared->find(history, drafts);
    if (!found) return found.status();
    count = *found;
  }
  window.propose(count);
  return count;
}

Status PromptLookupIndex::settle(std::uint64_t accepted) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  LookupWindow& window = state_->window;
  if (window.in_flight() == 0 || accepted > window.in_flight()) {
    return Status::invalid_argument("settle: ", accepted, " accepted of ", window.in_flight(),
                                    " drafts in flight");
  }
  window.settle(accepted);
  return Status::ok();
}

Status PromptLookupIndex::abandon() {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  state_->window.abandon();
  return Status::ok();
}

// ---- Batches ------------------------------------------------------------------------------------

namespace {

// kInvalidArgument: not `numbers` for each, or an index that is null or there twice.
Status check_indexes(std::string_view call, std::span<PromptLookupIndex* const> indexes,
                     std::initializer_list<std::size_t> numbers) {
  for (const std::size_t number : numbers) {
    if (number == indexes.size()) continue;
    return Status::invalid_argument(call, ": ", indexes.size(), " indexes, but ", number,
                                    " numbers");
  }
  std::vector<std::pair<const PromptLookupIndex*, std::size_t>> order;
  for (std::size_t i = 0; i < indexes.size(); ++i) order.emplace_back(indexes[i], i);
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i].first == nullptr) {
      return Status::invalid_argument(call, ": index ", order[i].second, " is none");
    }
    if (i == 0 || order[i].first != order[i - 1].first) continue;
    return Status::invalid_argument(call, ": indexes ", order[i - 1].second, " and ",
                                    order[i].second, " are the same");
  }
  return Status::ok();
}

std::string in_index(std::size_t index) { return "index " + std::to_string(index) + ": "; }

// Forgets the drafts of the indexes that have proposed, unless the whole batch has.
struct Proposed {
  std::span<PromptLookupIndex* const> indexes;
  std::size_t count = 0;

  ~Proposed() {
    for (std::size_t i = 0; i < count; ++i) static_cast<void>(indexes[i]->abandon());
  }
};

}  // namespace

Status PromptLookupIndex::propose_batch(std::span<PromptLookupIndex* const> indexes,
                                        std::span<const Tokens> histories,
                                        std::span<const std::uint64_t> most,
                                        std::vector<std::int32_t>& drafts,
                                        std::span<std::uint64_t> counts) {
  Status status = check_indexes("propose", indexes, {histories.size(), most.size(), counts.size()});
  if (!status) return status;
  drafts.clear();
  Proposed proposed{indexes};
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    const std::size_t first = drafts.size();
    drafts.resize(first + std::min(most[i], indexes[i]->options().max_drafts));
    const auto count = indexes[i]->propose(histories[i], std::span(drafts).subspan(first));
    if (!count) {
      drafts.clear();
      return count.status().prefixed(in_index(i));
    }
    proposed.count = i + 1;
    drafts.resize(first + *count);
    counts[i] = *count;
  }
  proposed.count = 0;
  return Status::ok();
}

Status PromptLookupIndex::settle_batch(std::span<PromptLookupIndex* const> indexes,
                                       std::span<const std::uint64_t> accepted) {
  if (Status status = check_indexes("settle", indexes, {accepted.size()}); !status) return status;
  std::vector<State*> states;  // by address, which is the order of their locks
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    states.push_back(indexes[i]->state_.get());
    if (Status status = states.back()->mutex.check_process(); !status) return status;
  }
  std::sort(states.begin(), states.end(), std::less<>());
  std::vector<std::unique_lock<ProcessMutex>> locks;
  locks.reserve(states.size());
  for (State* state : states) locks.emplace_back(state->mutex);
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    const std::uint64_t in_flight = indexes[i]->state_->window.in_flight();
    if (accepted[i] <= in_flight) continue;
    return Status::invalid_argument(in_index(i), "settle: ", accepted[i], " accepted of ",
                                    in_flight, " drafts in flight");
  }
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    LookupWindow& window = indexes[i]->state_->window;
    if (window.in_flight() > 0) window.settle(accepted[i]);
  }
  return Status::ok();
}

// ---- What an index knows ------------------------------------------------------------------------

Status PromptLookupIndex::check_process() const { return state_->mutex.check_process(); }

std::uint64_t PromptLookupIndex::observed() const {
  return state_->count([this] { return state_->index.observed(); });
}
std::uint64_t PromptLookupIndex::window() const {
  return state_->count([this] { return state_->window.window(); });
}
std::uint64_t PromptLookupIndex::pause() const {
  return state_->count([this] { return state_->window.pause(); });
}
std::uint64_t PromptLookupIndex::in_flight() const {
  return state_->count([this] { return state_->window.in_flight(); });
}
std::uint64_t PromptLookupIndex::entries() const {
  return state_->count([this] { return state_->index.entries(); });
}
std::uint64_t PromptLookupIndex::bytes() const {
  return state_->count([this] { return state_->index.bytes(); });
}

}  // namespace kvcache
