// What finished sequences said, for prompt lookup by later ones: n-grams shared across requests,
// but never across scopes. A scope is a model, tokenizer, adapter and tenant; its tokens lie in a
// ring of fixed size, newest last, so that the oldest go first. When memory for one more scope is
// short, the scope that was used longest ago is dropped whole.
//
// Thread safety: thread-safe; calls on different scopes run side by side. In a child of fork()
// every call is kInvalidArgument, every count 0.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvcache/status.h"

namespace kvcache {

struct PromptLookupCacheOptions {
  std::uint64_t memory_bytes = std::uint64_t{64} << 20;  // of all scopes
  std::uint64_t scope_bytes = std::uint64_t{1} << 20;    // of one: half slots, half tokens or more
  std::uint64_t match = 3;                               // tokens of a match, up to 64
};

// Sequences share n-grams when all four are equal.
struct PromptLookupScopeKey {
  std::string model;
  std::string tokenizer;
  std::string adapter;
  std::string tenant;
};

// A name for one scope of a cache, which stays valid when the scope is dropped: it is empty then.
class PromptLookupScope {
 public:
  // Learns a finished sequence, without the parts that the scope predicts already. Give only
  // sequences that ended without an error, whole. kInvalidArgument: a negative id.
  // kOutOfCapacity: no memory; scopes may have been dropped.
  Status insert(std::span<const std::int32_t> tokens);
  // Copies what followed the last `match` tokens of `history` to `drafts` and returns how much.
  Result<std::uint64_t> find(std::span<const std::int32_t> history,
                             std::span<std::int32_t> drafts) const;
  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  std::uint64_t tokens() const;  // that it keeps; 0 when it was dropped or never filled

 private:
  friend class PromptLookupCache;
  struct State;
  PromptLookupScope(std::shared_ptr<State> state, std::string key);
  std::shared_ptr<State> state_;
  std::string key_;
};

class PromptLookupCache {
 public:
  // kInvalidArgument: scope_bytes below 8192 or above memory_bytes or 2^33, or no valid match.
  static Result<std::unique_ptr<PromptLookupCache>> create(const PromptLookupCacheOptions& options);
  ~PromptLookupCache();

  // Takes no memory before the first insert().
  PromptLookupScope scope(const PromptLookupScopeKey& key) const;
  // Drops a scope, as when a tenant leaves. False when it holds nothing.
  Result<bool> drop(const PromptLookupScopeKey& key);

  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  std::uint64_t scopes() const;  // that hold tokens
  std::uint64_t bytes() const;   // that they take
  const PromptLookupCacheOptions& options() const;

 private:
  explicit PromptLookupCache(std::shared_ptr<PromptLookupScope::State> state);
  std::shared_ptr<PromptLookupScope::State> state_;
};

}  // namespace kvcache
