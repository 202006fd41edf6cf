#include "kvcache/prompt_lookup_cache.h"

#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/process.h"
#include "speculate/ngram_index.h"
#include "speculate/ngram_ring.h"

namespace kvcache {

using speculate::NgramIndex;
using speculate::NgramRing;
using Tokens = std::span<const std::int32_t>;

namespace {

constexpr std::uint64_t kMaxScopeBytes = std::uint64_t{1} << 33;

struct Store {
  Store(std::uint64_t bytes, std::uint64_t match) : ring(bytes, match) {}
  std::mutex mutex;  // taken without that of the cache, and guards the ring
  NgramRing ring;
};

// Lengths first, so that no two keys read the same.
std::string key_text(const PromptLookupScopeKey& key) {
  std::string text;
  for (const std::string* part : {&key.model, &key.tokenizer, &key.adapter, &key.tenant}) {
    text += std::to_string(part->size());
    text += ':';
    text += *part;
  }
  return text;
}

}  // namespace

struct PromptLookupScope::State {
  explicit State(const PromptLookupCacheOptions& given) : options(given) {}

  using Entry = std::pair<const std::string, std::shared_ptr<Store>>;

  const PromptLookupCacheOptions options;
  mutable ProcessMutex mutex;  // guards what follows, but not what is in a store
  std::list<Entry> stores;     // the one used last first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key;

  // Null when the scope holds nothing. A store that is dropped lives on until its users let go.
  std::shared_ptr<Store> use(const std::string& key) {
    const std::lock_guard lock(mutex);
    const auto found = by_key.find(key);
    if (found == by_key.end()) return nullptr;
    stores.splice(stores.begin(), stores, found->second);
    return found->second->second;
  }

  Result<std::shared_ptr<Store>> use_or_make(const std::string& key) {
    if (auto store = use(key)) return store;
    const std::lock_guard lock(mutex);
    if (const auto found = by_key.find(key); found != by_key.end()) return found->second->second;
    while ((stores.size() + 1) * options.scope_bytes > options.memory_bytes) {
      by_key.erase(stores.back().first);
      stores.pop_back();
    }
    auto store = std::make_shared<Store>(options.scope_bytes, options.match);
    if (!store->ring.has_memory()) {
      return Status::out_of_capacity("insert: the system has no memory for a scope of ",
                                     options.scope_bytes, " bytes; lower scope_bytes");
    }
    std::list<Entry> made;  // linked in only when nothing can fail any more
    made.emplace_front(key, store);
    by_key.emplace(key, made.begin());
    stores.splice(stores.begin(), made);
    return store;
  }
};

PromptLookupScope::PromptLookupScope(std::shared_ptr<State> state, std::string key)
    : state_(std::move(state)), key_(std::move(key)) {}

Status PromptLookupScope::insert(Tokens tokens) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0) {
      return Status::invalid_argument("insert: id ", tokens[i], " at index ", i, " is negative");
    }
  }
  if (tokens.size() <= state_->options.match) return Status::ok();  // nothing follows anything
  const auto store = state_->use_or_make(key_);
  if (!store) return store.status();
  const std::lock_guard lock((*store)->mutex);
  (*store)->ring.insert(tokens);
  return Status::ok();
}

Result<std::uint64_t> PromptLookupScope::find(Tokens history,
                                              std::span<std::int32_t> drafts) const {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const auto store = state_->use(key_);
  if (store == nullptr) return std::uint64_t{0};
  const std::lock_guard lock(store->mutex);
  return store->ring.find(history, drafts);
}

Status PromptLookupScope::check_process() const { return state_->mutex.check_process(); }

std::uint64_t PromptLookupScope::tokens() const {
  if (!state_->mutex.is_own_process()) return 0;
  std::shared_ptr<Store> store;
  {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->by_key.find(key_);
    if (found == state_->by_key.end()) return 0;
    store = found->second->second;
  }
  const std::lock_guard lock(store->mutex);
  return store->ring.tokens();
}

PromptLookupCache::PromptLookupCache(std::shared_ptr<PromptLookupScope::State> state)
    : state_(std::move(state)) {}
PromptLookupCache::~PromptLookupCache() = default;

Result<std::unique_ptr<PromptLookupCache>> PromptLookupCache::create(
    const PromptLookupCacheOptions& options) {
  if (options.scope_bytes < NgramRing::kMinBytes || options.scope_bytes > kMaxScopeBytes) {
    return Status::invalid_argument("scope_bytes must be ", NgramRing::kMinBytes, "..",
                                    kMaxScopeBytes, ", got ", options.scope_bytes);
  }
  if (options.memory_bytes < options.scope_bytes) {
    return Status::invalid_argument("memory_bytes: ", options.memory_bytes,
                                    " hold no scope of scope_bytes = ", options.scope_bytes);
  }
  if (options.match == 0 || options.match > NgramIndex::kMaxLength) {
    return Status::invalid_argument("match must be 1..", NgramIndex::kMaxLength, ", got ",
                                    options.match);
  }
  std::shared_ptr<PromptLookupScope::State> state(new PromptLookupScope::State(options),
                                                  DeleteInOwnProcess());
  return std::unique_ptr<PromptLookupCache>(new PromptLookupCache(std::move(state)));
}

PromptLookupScope PromptLookupCache::scope(const PromptLookupScopeKey& key) const {
  return PromptLookupScope(state_, key_text(key));
}

Result<bool> PromptLookupCache::drop(const PromptLookupScopeKey& key) {
  if (Status status = state_->mutex.check_process(); !status) return status;
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->by_key.find(key_text(key));
  if (found == state_->by_key.end()) return false;
  state_->stores.erase(found->second);
  state_->by_key.erase(found);
  return true;
}

Status PromptLookupCache::check_process() const { return state_->mutex.check_process(); }

std::uint64_t PromptLookupCache::scopes() const {
  if (!state_->mutex.is_own_process()) return 0;
  const std::lock_guard lock(state_->mutex);
  return state_->stores.size();
}

std::uint64_t PromptLookupCache::bytes() const { return scopes() * state_->options.scope_bytes; }

const PromptLookupCacheOptions& PromptLookupCache::options() const { return state_->options; }

}  // namespace kvcache
