// Drafts through C: those that wait for a verify, and prompt lookup.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"

using kvcache::PromptLookupIndex;
using kvcache::PromptLookupScopeKey;
using kvcache::Result;
using kvcache::Status;
using kvcache::c_api::answer;
using kvcache::c_api::bytes_from;
using kvcache::c_api::choose;
using kvcache::c_api::entry;
using kvcache::c_api::hand_over;
using kvcache::c_api::inside_each;
using kvcache::c_api::read_enum;
using kvcache::c_api::read_struct;
using kvcache::c_api::some;
using kvcache::c_api::write_struct;

namespace {

Result<kvcache::PromptLookupOptions> options_from(const kvcache_lookup_options* options) {
  const auto from = read_struct("options", options);
  if (!from) return from.status();
  kvcache::PromptLookupOptions to;
  choose(from->min_match, &to.min_match);
  choose(from->max_match, &to.max_match);
  choose(from->max_drafts, &to.max_drafts);
  choose(from->history_tokens, &to.history_tokens);
  choose(from->max_pause, &to.max_pause);
  to.reserve = from->reserve != 0;
  Status status =
      read_enum("occurrence", from->occurrence, KVCACHE_OCCURRENCE_REPEATING, &to.occurrence);
  if (!status) return status;
  return to;
}

Result<PromptLookupScopeKey> key_from(const kvcache_lookup_key* key) {
  const auto from = read_struct("key", key);
  if (!from) return from.status();
  auto model = bytes_from("key.model", from->model);
  if (!model) return model.status();
  auto tokenizer = bytes_from("key.tokenizer", from->tokenizer);
  if (!tokenizer) return tokenizer.status();
  auto adapter = bytes_from("key.adapter", from->adapter);
  if (!adapter) return adapter.status();
  auto tenant = bytes_from("key.tenant", from->tenant);
  if (!tenant) return tenant.status();
  return PromptLookupScopeKey{std::move(model).value(), std::move(tokenizer).value(),
                              std::move(adapter).value(), std::move(tenant).value()};
}

Result<std::vector<PromptLookupIndex*>> indexes_from(kvcache_lookup* const* lookups,
                                                     std::size_t count) {
  return inside_each("lookups", lookups, count,
                     [](kvcache_lookup& lookup) { return lookup.index.get(); });
}

// kInvalidArgument: `capacity` drafts may be fewer than the indexes propose.
Status check_room(const std::vector<PromptLookupIndex*>& indexes, const uint64_t* most,
                  std::size_t capacity) {
  std::uint64_t needed = 0;  // at most 2^16 each
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    needed += std::min(most[i], indexes[i]->options().max_drafts);
  }
  if (needed <= capacity) return Status::ok();
  return Status::invalid_argument("there may be ", needed, " drafts, out has room for ", capacity);
}

}  // namespace

extern "C" {

// ---- That wait for a verify --------------------------------------------------------------------

kvcache_status kvcache_drafts_create(uint64_t slots, uint64_t positions, kvcache_drafts** out) {
  return entry({{"out", out}}, [&]() -> Status {
    return hand_over(kvcache::DraftTokens::create(slots, positions), out);
  });
}

void kvcache_drafts_destroy(kvcache_drafts* drafts) { delete drafts; }

kvcache_status kvcache_drafts_put(kvcache_drafts* drafts, const kvcache_sequence* sequence,
                                  const int32_t* tokens, size_t token_count,
                                  const float* confidences) {
  return entry(
      {{"drafts", drafts}, {"sequence", sequence}, some("tokens", tokens, token_count)}, [&] {
        const std::size_t sure = confidences == nullptr ? 0 : token_count;
        return drafts->drafts->put(sequence->sequence, {tokens, token_count}, {confidences, sure});
      });
}

kvcache_status kvcache_drafts_take(kvcache_drafts* drafts, const kvcache_sequence* sequence,
                                   int32_t* out, float* out_confidences, size_t capacity,
                                   size_t* out_count, size_t* out_confidence_count) {
  return entry({{"drafts", drafts},
                {"sequence", sequence},
                {"out", out},
                {"out_count", out_count},
                {"out_confidence_count", out_confidence_count}},
               [&]() -> Status {
                 if (capacity < drafts->drafts->positions()) {
                   return Status::invalid_argument("a sequence has up to ",
                                                   drafts->drafts->positions(),
                                                   " drafts, out has room for ", capacity);
                 }
                 const auto taken = drafts->drafts->take(sequence->sequence);
                 if (!taken) return taken.status();
                 std::copy(taken->tokens.begin(), taken->tokens.end(), out);
                 *out_count = taken->tokens.size();
                 *out_confidence_count = taken->confidences.size();
                 if (out_confidences != nullptr) {
                   std::copy(taken->confidences.begin(), taken->confidences.end(), out_confidences);
                 }
                 return Status::ok();
               });
}

kvcache_status kvcache_drafts_put_back(kvcache_drafts* drafts, const kvcache_sequence* sequence) {
  return entry({{"drafts", drafts}, {"sequence", sequence}},
               [&] { return drafts->drafts->put_back(sequence->sequence); });
}

kvcache_status kvcache_drafts_clear(kvcache_drafts* drafts, const kvcache_sequence* sequence) {
  return entry({{"drafts", drafts}, {"sequence", sequence}},
               [&] { return drafts->drafts->clear(sequence->sequence).status(); });
}

kvcache_status kvcache_drafts_pending(const kvcache_drafts* drafts,
                                      const kvcache_sequence* sequence, uint64_t* out) {
  return entry({{"drafts", drafts}, {"sequence", sequence}, {"out", out}},
               [&] { return answer(drafts->drafts->pending(sequence->sequence), out); });
}

// ---- Prompt lookup, of one sequence ------------------------------------------------------------

kvcache_status kvcache_lookup_create(const kvcache_lookup_options* options, kvcache_lookup** out) {
  return entry({{"out", out}}, [&]() -> Status {
    const auto from = options_from(options);
    if (!from) return from.status();
    return hand_over(PromptLookupIndex::create(*from), out);
  });
}

void kvcache_lookup_destroy(kvcache_lookup* lookup) { delete lookup; }

kvcache_status kvcache_lookup_observe(kvcache_lookup* lookup, const int32_t* history,
                                      size_t history_count) {
  return entry({{"lookup", lookup}, some("history", history, history_count)},
               [&] { return lookup->index->observe({history, history_count}); });
}

kvcache_status kvcache_lookup_truncate(kvcache_lookup* lookup, uint64_t length) {
  return entry({{"lookup", lookup}}, [&] { return lookup->index->truncate(length); });
}

kvcache_status kvcache_lookup_find(const kvcache_lookup* lookup, const int32_t* history,
                                   size_t history_count, int32_t* out, size_t capacity,
                                   size_t* out_count) {
  return entry({{"lookup", lookup},
                some("history", history, history_count),
                some("out", out, capacity),
                {"out_count", out_count}},
               [&] {
                 return answer(lookup->index->find({history, history_count}, {out, capacity}),
                               out_count);
               });
}

kvcache_status kvcache_lookup_propose(kvcache_lookup* lookup, const int32_t* history,
                                      size_t history_count, const kvcache_lookup_scope* shared,
                                      int32_t* out, size_t capacity, size_t* out_count) {
  return entry({{"lookup", lookup},
                some("history", history, history_count),
                some("out", out, capacity),
                {"out_count", out_count}},
               [&] {
                 return answer(lookup->index->propose({history, history_count}, {out, capacity},
                                                      shared == nullptr ? nullptr : &shared->scope),
                               out_count);
               });
}

kvcache_status kvcache_lookup_settle(kvcache_lookup* lookup, uint64_t accepted) {
  return entry({{"lookup", lookup}}, [&] { return lookup->index->settle(accepted); });
}

kvcache_status kvcache_lookup_abandon(kvcache_lookup* lookup) {
  return entry({{"lookup", lookup}}, [&] { return lookup->index->abandon(); });
}

kvcache_status kvcache_lookup_propose_batch(kvcache_lookup* const* lookups, size_t count,
                                            const int32_t* const* histories,
                                            const size_t* history_counts, const uint64_t* most,
                                            int32_t* out, size_t capacity, uint64_t* out_counts) {
  return entry({some("lookups", lookups, count), some("histories", histories, count),
                some("history_counts", history_counts, count), some("most", most, count),
                some("out", out, capacity), some("out_counts", out_counts, count)},
               [&]() -> Status {
                 const auto indexes = indexes_from(lookups, count);
                 if (!indexes) return indexes.status();
                 if (Status status = check_room(*indexes, most, capacity); !status) return status;
                 std::vector<std::span<const std::int32_t>> spans;
                 for (std::size_t i = 0; i < count; ++i) {
                   if (histories[i] == nullptr && history_counts[i] > 0) {
                     return Status::invalid_argument("histories[", i, "] is NULL");
                   }
                   spans.emplace_back(histories[i], history_counts[i]);
                 }
                 std::vector<std::int32_t> drafts;
                 std::vector<std::uint64_t> counts(count);
                 Status status = PromptLookupIndex::propose_batch(*indexes, spans, {most, count},
                                                                  drafts, counts);
                 if (!status) return status;
                 std::copy(drafts.begin(), drafts.end(), out);
                 std::copy(counts.begin(), counts.end(), out_counts);
                 return Status::ok();
               });
}

kvcache_status kvcache_lookup_settle_batch(kvcache_lookup* const* lookups, size_t count,
                                           const uint64_t* accepted) {
  return entry({some("lookups", lookups, count), some("accepted", accepted, count)},
               [&]() -> Status {
                 const auto indexes = indexes_from(lookups, count);
                 if (!indexes) return indexes.status();
                 return PromptLookupIndex::settle_batch(*indexes, {accepted, count});
               });
}

kvcache_status kvcache_lookup_read(const kvcache_lookup* lookup, kvcache_lookup_state* out) {
  return entry({{"lookup", lookup}, {"out", out}}, [&]() -> Status {
    const PromptLookupIndex& index = *lookup->index;
    if (Status status = index.check_process(); !status) return status;
    return write_struct(out, {.struct_size = sizeof(kvcache_lookup_state),
                              .observed = index.observed(),
                              .window = index.window(),
                              .pause = index.pause(),
                              .in_flight = index.in_flight(),
                              .entries = index.entries(),
                              .bytes = index.bytes()});
  });
}

// ---- Prompt lookup, by scope -------------------------------------------------------------------

kvcache_status kvcache_lookup_cache_create(const kvcache_lookup_cache_options* options,
                                           kvcache_lookup_cache** out) {
  return entry({{"out", out}}, [&]() -> Status {
    const auto from = read_struct("options", options);
    if (!from) return from.status();
    kvcache::PromptLookupCacheOptions to;
    choose(from->memory_bytes, &to.memory_bytes);
    choose(from->scope_bytes, &to.scope_bytes);
    choose(from->match, &to.match);
    return hand_over(kvcache::PromptLookupCache::create(to), out);
  });
}

void kvcache_lookup_cache_destroy(kvcache_lookup_cache* cache) { delete cache; }

kvcache_status kvcache_lookup_cache_scope(const kvcache_lookup_cache* cache,
                                          const kvcache_lookup_key* key,
                                          kvcache_lookup_scope** out) {
  return entry({{"cache", cache}, {"key", key}, {"out", out}}, [&]() -> Status {
    const auto from = key_from(key);
    if (!from) return from.status();
    if (Status status = cache->cache->check_process(); !status) return status;
    *out = new kvcache_lookup_scope{cache->cache->scope(*from)};
    return Status::ok();
  });
}

kvcache_status kvcache_lookup_cache_drop(kvcache_lookup_cache* cache,
                                         const kvcache_lookup_key* key) {
  return entry({{"cache", cache}, {"key", key}}, [&]() -> Status {
    const auto from = key_from(key);
    return from ? cache->cache->drop(*from).status() : from.status();
  });
}

kvcache_status kvcache_lookup_cache_read(const kvcache_lookup_cache* cache,
                                         kvcache_lookup_cache_state* out) {
  return entry({{"cache", cache}, {"out", out}}, [&]() -> Status {
    if (Status status = cache->cache->check_process(); !status) return status;
    return write_struct(out, {.struct_size = sizeof(kvcache_lookup_cache_state),
                              .scopes = cache->cache->scopes(),
                              .bytes = cache->cache->bytes()});
  });
}

void kvcache_lookup_scope_destroy(kvcache_lookup_scope* scope) { delete scope; }

kvcache_status kvcache_lookup_scope_insert(kvcache_lookup_scope* scope, const int32_t* tokens,
                                           size_t token_count) {
  return entry({{"scope", scope}, some("tokens", tokens, token_count)},
               [&] { return scope->scope.insert({tokens, token_count}); });
}

kvcache_status kvcache_lookup_scope_find(const kvcache_lookup_scope* scope, const int32_t* history,
                                         size_t history_count, int32_t* out, size_t capacity,
                                         size_t* out_count) {
  return entry({{"scope", scope},
                some("history", history, history_count),
                some("out", out, capacity),
                {"out_count", out_count}},
               [&] {
                 return answer(scope->scope.find({history, history_count}, {out, capacity}),
                               out_count);
               });
}

kvcache_status kvcache_lookup_scope_tokens(const kvcache_lookup_scope* scope, uint64_t* out) {
  return entry({{"scope", scope}, {"out", out}}, [&]() -> Status {
    if (Status status = scope->scope.check_process(); !status) return status;
    *out = scope->scope.tokens();
    return Status::ok();
  });
}

}  // extern "C"
