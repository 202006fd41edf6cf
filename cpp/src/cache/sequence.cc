#include "kvcache/sequence.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cache/cache_core.h"

namespace kvcache {

using arena::ItemId;
using arena::kNoItem;
using sequence::RowsAhead;

std::shared_ptr<SequenceCore> SequenceCore::create(std::shared_ptr<CacheCore> cache) {
  return {new SequenceCore(std::move(cache)), DeleteInOwnProcess()};
}

Status SequenceCore::check_open() const {
  if (Status status = mutex.check_process(); !status) return status;
  return state ? Status::ok() : closed();
}

Status SequenceCore::check_idle(std::string_view call) const {
  if (Status status = check_open(); !status) return status;
  if (!verify) return Status::ok();
  return Status::invalid_argument(call, ": a verify session of ", verify->rows(), " rows at ",
                                  verify->start(), " is open; commit() it or roll it back first");
}

std::byte* SequenceCore::state_now() {
  std::byte* slot = state->slot_bytes();
  stash.flush(slot);
  return slot;
}

std::byte* SequenceCore::state_to_replace() {
  stash.drop();
  return state->slot_bytes();
}

void SequenceCore::tell_policy(const CloseOptions& options) {
  const std::uint64_t length = state->length();
  evict::Completion facts;
  cache->tell_time(options.now_ms);
  facts.now_ms = CacheCore::now_ms(options.now_ms);
  facts.prompt_tokens = prompt_tokens;
  facts.output_tokens = options.output_tokens.value_or(length - std::min(length, prompt_tokens));
  facts.hint = hint;
  facts.session_closed = options.session_closed;
  cache->index.complete(state->space(), std::span(state->tokens()).first(length), facts);
}

StateView pin_tensor(const std::shared_ptr<CacheCore>& cache, arena::Pool& pool, ItemId item,
                     const FixedComponent& component) {
  {
    const std::lock_guard lock(cache->mutex);
    pool.retain(item);
  }
  StateView view;
  view.component = &component;
  view.data = pool.data(item) + component.offset;
  view.pin = std::shared_ptr<void>(view.data, [cache, &pool, item](void*) {
    const std::lock_guard lock(cache->mutex);
    if (cache->mutex.is_own_process()) pool.release(item);
  });
  return view;
}

Sequence::Sequence(std::shared_ptr<SequenceCore> core) : core_(std::move(core)) {}
Sequence::Sequence(Sequence&&) noexcept = default;

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this != &other) {
    close();
    core_ = std::move(other.core_);
  }
  return *this;
}

Sequence::~Sequence() { close(); }

void Sequence::close(const CloseOptions& options) {
  if (!core_) return;
  const std::lock_guard own(core_->mutex);
  if (!core_->check_open()) return;
  core_->write_last();
  const std::lock_guard lock(core_->cache->mutex);
  core_->tell_policy(options);
  if (core_->verify) core_->verify->release();
  core_->verify.reset();
  core_->stash.release();
  core_->state->release();
  core_->state.reset();
  --core_->cache->counters.open_sequences;
  core_->cache->index.trim(core_->tenant);
  core_->cache->trim_ledger();
}

Status Sequence::check_process() const {
  return core_ ? core_->mutex.check_process() : Status::ok();
}

bool Sequence::is_open() const {
  if (!core_) return false;
  const std::lock_guard own(core_->mutex);
  return core_->check_open().is_ok();
}

Status Sequence::check_open() const {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  return core_->check_open();
}

std::uint64_t Sequence::cached_tokens() const { return core_ ? core_->cached_tokens : 0; }
std::uint64_t Sequence::matched_tokens() const { return core_ ? core_->matched_tokens : 0; }

std::uint64_t Sequence::length() const {
  if (!core_) return 0;
  const std::lock_guard own(core_->mutex);
  return core_->check_open() ? core_->state->length() : 0;
}

Result<std::uint64_t> Sequence::written(std::int32_t layer) const {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_open(); !status) return status;
  if (const auto refs = core_->cache->layers.paged(layer); !refs) return refs.status();
  return core_->state->written(layer);
}

std::vector<std::int32_t> Sequence::tokens() const {
  if (!core_) return {};
  const std::lock_guard own(core_->mutex);
  return core_->check_open() ? core_->state->tokens() : std::vector<std::int32_t>();
}

Status Sequence::extend(std::span<const std::int32_t> tokens, std::span<const MediaSpan> media) {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("extend"); !status) return status;
  sequence::SequenceState& state = *core_->state;
  const std::uint64_t known = state.tokens().size();
  if (Status status = check_media(media, known, known + tokens.size()); !status) return status;
  state.extend(tokens, media);
  return Status::ok();
}

Status Sequence::write(std::int32_t layer, std::uint64_t start,
                       std::span<const codec::RowsView> components) {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("write"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  if (Status status = cache.check_backing("write"); !status) return status;
  if (Status status = state.check_write(layer, start, components); !status) return status;
  const RowsAhead rows{&state, start, start + components[0].tokens};
  if (Status status = cache.take_pages({&rows, 1}, cache.layers.groups({&layer, 1})); !status) {
    return status;
  }
  return state.encode(layer, start, components);
}

Status Sequence::read(std::int32_t layer, std::uint64_t start,
                      std::span<const codec::MutableRowsView> components) const {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_open(); !status) return status;
  if (Status status = core_->cache->check_backing("read"); !status) return status;
  if (Status status = core_->state->check_rows(layer, components); !status) return status;
  const std::uint64_t tokens = components[0].tokens;
  if (tokens > UINT64_MAX - start) return Status::invalid_argument("read: positions overflow");
  if (Status status = core_->state->check_read(layer, start, start + tokens); !status) {
    return status;
  }
  return core_->state->decode(layer, start, components);
}

Result<StateView> Sequence::state(std::int32_t layer, std::string_view name) const {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("state"); !status) return status;
  const std::shared_ptr<CacheCore> cache = core_->cache;
  if (Status status = cache->check_backing("state"); !status) return status;
  const auto component = cache->layers.fixed(layer, name);
  if (!component) return component.status();
  core_->state_now();
  return pin_tensor(cache, *cache->pools.slots, core_->state->slot(), **component);
}

Status Sequence::advance(std::uint64_t positions) {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("advance"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  if (!cache.backing && positions > 0 && positions <= state.tokens().size() - state.length()) {
    const RowsAhead rows{&state, state.length(), state.length() + positions};
    if (Status status = cache.take_pages({&rows, 1}, cache.groups); !status) return status;
  }
  return state.advance(positions, cache.backing);
}

Status Sequence::publish() {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("publish"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  const std::uint64_t end = state.publishable();
  const prefix::PathNames names = core_->path_names(end);
  core_->write_behind(end);
  const std::lock_guard lock(cache.mutex);
  cache.insert(state.space(), std::span(state.tokens()).first(end), state.block_tables(end),
               state.snapshots(), names, core_->ttl_ms, core_->tenant);
  state.mark_seen(end);
  state.forget_snapshots();
  return Status::ok();
}

Result<Sequence> Sequence::fork() {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("fork"); !status) return status;
  CacheCore& cache = *core_->cache;
  auto child = SequenceCore::create(core_->cache);
  {
    const std::lock_guard lock(cache.mutex);
    if (Status status = cache.check_sequences(); !status) return status;
    auto state = core_->state->fork(cache);
    if (!state) return state.status();
    child->state.emplace(std::move(state).value());
    ++cache.counters.open_sequences;
  }
  child->cached_tokens = core_->cached_tokens;
  child->matched_tokens = core_->matched_tokens;
  child->prompt_tokens = core_->prompt_tokens;
  child->hint = core_->hint;
  child->ttl_ms = core_->ttl_ms;
  child->tenant = core_->tenant;
  child->branches = core_->branches;
  child->resident_snapshots = core_->resident_snapshots;
  child->marks = core_->marks;
  child->chain = core_->chain;
  child->tier_chain = core_->tier_chain;
  child->last_boundary = core_->last_boundary;
  child->published = core_->published;
  if (const std::byte* slot = core_->state_now(); slot != nullptr) {
    std::memcpy(child->state->slot_bytes(), slot, cache.plan.slot_bytes());
  }
  return Sequence(std::move(child));
}

Status Sequence::truncate(std::uint64_t position) {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_idle("truncate"); !status) return status;
  CacheCore& cache = *core_->cache;
  sequence::SequenceState& state = *core_->state;
  if (Status status = state.check_truncate("truncate", position); !status) return status;
  arena::SnapshotRef source;
  {
    const std::lock_guard lock(cache.mutex);
    if (cache.plan.has_fixed_state() && position != 0 && position != state.length()) {
      std::uint64_t nearest = 0;
      const auto consider = [&](const arena::SnapshotRef& ref) {
        if (ref.item == kNoItem || ref.position > position) return;
        nearest = std::max(nearest, ref.position);
        const bool better = source.item == kNoItem || ref.format < source.format;
        if (ref.position == position && better) source = ref;
      };
      for (const arena::SnapshotRef& held : state.snapshots()) consider(held);
      cache.tell_time({});
      consider(cache.index.find_snapshot(
          state.space(), std::span(state.tokens()).first(state.length()), position));
      if (source.item == kNoItem) {
        return Status::unsupported("truncate to ", position, ": the fixed-size state is at ",
                                   state.length(), " and the nearest snapshot below is at ",
                                   nearest, "; take a snapshot() where you may rewind to");
      }
      cache.pools.of(source).retain(source.item);
    }
  }
  const bool restart = position == 0 && state.length() > 0;
  if (state.slot_bytes() != nullptr && source.item != kNoItem) {
    cache.restore(source, core_->state_to_replace());
  } else if (state.slot_bytes() != nullptr && restart) {
    std::memset(core_->state_to_replace(), 0, cache.plan.slot_bytes());
  }
  const std::lock_guard lock(cache.mutex);
  if (source.item != kNoItem) cache.pools.of(source).release(source.item);
  state.truncate(position);
  core_->forget_after(position);
  return Status::ok();
}

}  // namespace kvcache
