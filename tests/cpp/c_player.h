// Makes calls of the C face in any order, on handles that are freed in any order, with numbers of
// any size.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <vector>

#include "c_toy.h"

namespace {

constexpr std::size_t kMostHandles = 6;
constexpr std::size_t kMostTokens = 40;

// Handles of one type; a random one of them, or none.
template <typename Handle>
struct Pool {
  void (*destroy)(Handle*) = nullptr;
  std::vector<Handle*> all = {};
};

class Player {
 public:
  explicit Player(unsigned seed) : random_(seed) {
    for (std::size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<int32_t>(i % 7);
  }
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;
  virtual ~Player() {
    free_later(caches_), free_later(sequences_), free_later(batches_), free_later(verifies_);
    free_later(batch_verifies_), free_later(pins_), free_later(reservations_);
    free_later(trees_), free_later(tables_), free_later(carries_), free_later(events_);
    free_later(tenants_);
    std::shuffle(left_.begin(), left_.end(), random_);
    for (const auto& each : left_) each();
  }

  void play() {
    const kvcache_status status = any_call();
    EXPECT_NE(status, KVCACHE_INTERNAL) << kvcache_last_error();
    EXPECT_TRUE(status == KVCACHE_OK || *kvcache_last_error() != '\0');
  }

 protected:
  std::size_t below(std::size_t end) { return random_() % end; }
  bool rarely() { return below(12) == 0; }

  uint64_t number() {
    constexpr std::array<uint64_t, 10> kOdd = {0,
                                               1,
                                               63,
                                               uint64_t{1} << 31,
                                               uint64_t{1} << 32,
                                               INT64_MAX,
                                               uint64_t{1} << 63,
                                               UINT64_MAX - 1,
                                               UINT64_MAX,
                                               65};
    return rarely() ? kOdd[below(kOdd.size())] : below(8);
  }
  int32_t layer() {
    return rarely() ? static_cast<int32_t>(number()) : static_cast<int32_t>(below(2));
  }
  const char* name() {
    constexpr std::array<const char*, 4> kNames = {TOY_STATE, "attention.keys", "", "\xff\xfe"};
    return rarely() ? kNames[below(4)] : TOY_STATE;
  }
  const int32_t* tokens() { return tokens_.data(); }
  std::size_t some_tokens() { return below(kMostTokens); }
  const uint64_t* counts() {
    for (uint64_t& each : counts_) each = number();
    return below(3) == 0 ? nullptr : counts_.data();
  }
  const kvcache_rows* rows(std::size_t count) {
    toy_components(&rows_, 0, count, components_.data());
    components_[2] = components_[0];
    if (rarely()) components_[0].tokens = number() % kToyMost;
    if (rarely()) components_[1].heads = number() % 3;
    if (rarely()) components_[1].width = number() % (kToyWidth + 1);
    if (rarely()) components_[1].dtype = static_cast<kvcache_dtype>(number() % 12);
    return components_.data();
  }
  std::size_t components() { return rarely() ? below(4) : 2; }

  template <typename Handle>
  Handle* one(const Pool<Handle>& pool) {
    return pool.all.empty() || (rarely() && rarely()) ? nullptr : pool.all[below(pool.all.size())];
  }
  template <typename Handle, typename Make>
  kvcache_status make(Pool<Handle>& pool, const Make& call) {
    Handle* handle = nullptr;
    const kvcache_status status = call(&handle);
    EXPECT_EQ(handle != nullptr, status == KVCACHE_OK);
    if (handle != nullptr) pool.all.push_back(handle);
    if (pool.all.size() > kMostHandles) drop(pool);
    return status;
  }
  // By the base's destructor, in any order.
  template <typename Handle>
  void free_later(const Pool<Handle>& pool) {
    for (Handle* each : pool.all) {
      left_.push_back([each, destroy = pool.destroy] { destroy(each); });
    }
  }
  template <typename Handle>
  kvcache_status drop(Pool<Handle>& pool) {
    if (pool.all.empty()) return KVCACHE_OK;
    std::swap(pool.all[below(pool.all.size())], pool.all.back());
    pool.destroy(pool.all.back());
    pool.all.pop_back();
    return KVCACHE_OK;
  }

  virtual kvcache_status any_call() {
    switch (below(10)) {
      case 0:
        return cache_call();
      case 1:
        return making_call();
      case 2:
        return stored_call();
      case 3:
      case 4:
      case 5:
        return sequence_call();
      case 6:
      case 7:
        return batch_call();
      case 8:
        return verify_call();
      default:
        return batch_verify_call();
    }
  }

  kvcache_status cache_call() {
    kvcache_stats stats = {};
    stats.struct_size = sizeof stats;
    kvcache_page_memory memory = {};
    memory.struct_size = sizeof memory;
    uint64_t out = 0;
    switch (below(9)) {
      case 0:
        return make(caches_, [&](kvcache_cache** handle) {
          kvcache_options options = toy_options();
          options.memory_bytes = 1 << (16 + below(5));
          options.ring_depth = static_cast<uint32_t>(below(3));
          options.stash_rows = static_cast<uint32_t>(below(3)) * 4;
          options.plain_keys = static_cast<uint32_t>(below(2));
          options.ledger = rarely();
          options.event_capacity = below(2) * 50;
          options.ttl_ms = number();
          return toy_cache_of(below(3) == 0 ? KVCACHE_F32 : KVCACHE_F16, &options, handle);
        });
      case 1:
        return rarely() ? drop(caches_) : kvcache_cache_stats(one(caches_), &stats);
      case 2:
        return kvcache_cache_pages(one(caches_), layer(), "attention.keys", &memory);
      case 3:
        return kvcache_cache_sequence_bytes(one(caches_), number(), number(), &out);
      case 4:
        return kvcache_cache_resize(one(caches_), uint64_t{1} << (14 + below(8)));
      case 5:
        return kvcache_cache_bump_epoch(one(caches_), rarely() ? nullptr : "w");
      case 6:
        return rarely() ? kvcache_cache_clear(one(caches_)) : KVCACHE_OK;
      case 7:
        return kvcache_cache_drop_expired(one(caches_), &out);
      default:
        return kvcache_cache_lose_events(one(caches_));
    }
  }

  kvcache_status making_call() {
    kvcache_cache* const cache = one(caches_);
    switch (below(10)) {
      case 0:
        return make(pins_, [&](kvcache_pin** out) {
          const uint64_t lease = number();
          kvcache_pin_options options = {};
          options.struct_size = sizeof options;
          options.lease_ms = below(2) == 0 ? nullptr : &lease;
          return kvcache_cache_pin(cache, tokens(), some_tokens(), nullptr, &options, out);
        });
      case 1:
        return make(reservations_, [&](kvcache_reservation** out) {
          return kvcache_cache_reserve(cache, number() << below(20), out);
        });
      case 2:
        return make(trees_, [&](kvcache_tree** out) {
          std::array<int32_t, 4> parents = {-1, 0, static_cast<int32_t>(below(4)),
                                            static_cast<int32_t>(below(5)) - 1};
          return kvcache_tree_create(parents.data(), below(5), out);
        });
      case 3:
        return make(tables_, [&](kvcache_verify_table** out) {
          return kvcache_verify_table_create(cache, number(), number(), out);
        });
      case 4:
        return make(carries_, [&](kvcache_carry_table** out) {
          return kvcache_carry_table_create(cache, number(), out);
        });
      case 5:
        return make(events_, [&](kvcache_events** out) {
          return below(2) == 0 ? kvcache_cache_take_events(cache, out)
                               : kvcache_cache_events_snapshot(cache, out);
        });
      case 6:
        return make(tenants_,
                    [&](kvcache_tenants** out) { return kvcache_cache_tenants(cache, out); });
      case 7:
        return drop(pins_);
      case 8:
        return drop(reservations_);
      default:
        return below(2) == 0 ? drop(tables_) : drop(carries_);
    }
  }

  kvcache_status stored_call() {
    kvcache_event event = {};
    event.struct_size = sizeof event;
    kvcache_tenant_usage usage = {};
    usage.struct_size = sizeof usage;
    kvcache_explanation why = {};
    why.struct_size = sizeof why;
    kvcache_erase_filter filter = {};
    filter.struct_size = sizeof filter;
    filter.tokens = tokens();
    filter.token_count = some_tokens();
    uint64_t out = 0;
    std::array<uint8_t, 64> mask = {};
    int32_t bonus = 0;
    std::size_t length = 0;
    std::array<int32_t, 8> path = {};
    switch (below(8)) {
      case 0:
        return kvcache_events_read(one(events_), number(), &event);
      case 1:
        return kvcache_tenants_read(one(tenants_), number(), &usage);
      case 2:
        return kvcache_cache_explain(one(caches_), tokens(), some_tokens(), nullptr, &why);
      case 3:
        return rarely() ? kvcache_cache_erase(one(caches_), &filter, &out) : KVCACHE_OK;
      case 4: {
        std::array<int32_t, 16> paths = {};
        if (below(2) == 0) {
          return kvcache_tree_retrieval_indices(one(trees_), paths.data(), below(16), &length);
        }
        return kvcache_tree_mask(one(trees_), number(), mask.data(), below(64));
      }
      case 5:
        return kvcache_tree_accept(one(trees_), tokens(), tokens() + 1, path.data(), below(8),
                                   &length, &bonus);
      case 6:
        return kvcache_pin_renew(one(pins_), nullptr);
      default: {
        kvcache_share quota = {static_cast<double>(below(3)) / 2, nullptr};
        return kvcache_cache_set_quota(one(caches_), below(2) == 0 ? "a" : "b",
                                       rarely() ? nullptr : &quota);
      }
    }
  }

  kvcache_status sequence_call() {
    kvcache_sequence* const sequence = one(sequences_);
    kvcache_open_options options = {};
    options.struct_size = sizeof options;
    options.tenant = below(2) == 0 ? "a" : nullptr;
    void* data = nullptr;
    uint64_t bytes = 0;
    switch (below(19)) {
      case 0:
      case 1:
        return make(sequences_, [&](kvcache_sequence** out) {
          return kvcache_sequence_open(one(caches_), tokens(), some_tokens(), nullptr, &options,
                                       out);
        });
      case 2:
        return rarely() ? kvcache_sequence_close(sequence, nullptr) : drop(sequences_);
      case 3:
        return make(sequences_,
                    [&](kvcache_sequence** out) { return kvcache_sequence_fork(sequence, out); });
      case 4:
        return kvcache_sequence_extend(sequence, tokens(), below(6), nullptr, 0);
      case 5:
      case 6: {
        const std::size_t count = below(6);
        const uint64_t start = rarely() ? number() : kvcache_sequence_length(sequence);
        return kvcache_sequence_write(sequence, layer(), start, rows(count), components());
      }
      case 7:
        return kvcache_sequence_read(sequence, layer(), number(), rows(below(6)), components());
      case 8: {
        const kvcache_status status =
            kvcache_sequence_state(sequence, layer(), name(), &data, &bytes);
        if (status == KVCACHE_OK && data != nullptr) memset(data, 0, bytes);
        return status;
      }
      case 9:
      case 10:
        return kvcache_sequence_advance(sequence, number());
      case 11:
        return below(2) == 0 ? kvcache_sequence_prepare(sequence, number())
                             : kvcache_sequence_advance_in_place(sequence, number());
      default:
        return rarer_sequence_call(sequence);
    }
  }

  kvcache_status rarer_sequence_call(kvcache_sequence* sequence) {
    std::array<int32_t, kMostTokens> list = {};
    std::array<uint64_t, 16> stops = {};
    std::size_t length = 0;
    switch (below(8)) {
      case 0:
        return kvcache_sequence_block_table(sequence, number(), list.data(), below(kMostTokens),
                                            &length);
      case 1:
        return kvcache_sequence_snapshot(sequence, static_cast<kvcache_snapshot_format>(below(4)));
      case 2:
        return below(2) == 0
                   ? kvcache_sequence_mark(sequence, number(), KVCACHE_MARK_TURN)
                   : kvcache_sequence_prefill_stops(sequence, stops.data(), below(16), &length);
      case 3:
        return kvcache_sequence_publish(sequence);
      case 4:
        return kvcache_sequence_truncate(sequence, number());
      case 5:
        return kvcache_sequence_shift(sequence, number(), number());
      case 6:
        return below(2) == 0 ? kvcache_sequence_recorded(sequence, stops.data(), below(16), &length)
                             : kvcache_sequence_written(sequence, layer(), stops.data());
      default:
        return below(2) == 0 ? kvcache_sequence_record(sequence)
                             : kvcache_sequence_rollback(sequence, number());
    }
  }

  kvcache_status batch_call() {
    kvcache_batch* const batch = one(batches_);
    std::array<kvcache_sequence*, kMostHandles> members = {};
    std::array<uint64_t, kMostHandles> lengths = {};
    const int32_t* table = nullptr;
    std::size_t columns = 0;
    switch (below(9)) {
      case 0:
      case 1:
        return make(batches_, [&](kvcache_batch** out) {
          const std::size_t count = below(4);
          for (std::size_t i = 0; i < count; ++i) members[i] = one(sequences_);
          return kvcache_batch_create(members.data(), count, out);
        });
      case 2:
        return drop(batches_);
      case 3:
        return kvcache_batch_lengths(batch, lengths.data());
      case 4:
        return kvcache_batch_extend(batch, tokens(), below(8), counts());
      case 5: {
        counts();
        const std::array<uint64_t, kMostHandles> starts = counts_;
        return kvcache_batch_write(batch, layer(), starts.data(), counts(), rows(below(8)),
                                   components());
      }
      case 6:
        return below(2) == 0 ? kvcache_batch_prepare(batch, counts())
                             : kvcache_batch_advance_in_place(batch, counts());
      case 7:
        return kvcache_batch_advance(batch, counts());
      default: {
        std::array<int32_t, 64> copied = {};
        const std::size_t group = rarely() ? number() : 0;
        return below(2) == 0
                   ? kvcache_batch_block_table(batch, group, &table, &columns)
                   : kvcache_batch_copy_block_table(batch, group, copied.data(),
                                                    rarely() ? number() : 16, 16 * below(4));
      }
    }
  }

  kvcache_verify_options verify_options() {
    static constexpr std::array<int32_t, 4> kParents = {-1, 0, 0, 1};
    kvcache_verify_options options = {};
    options.struct_size = sizeof options;
    options.strategy = static_cast<kvcache_verify_strategy>(below(3));
    if (rarely()) options.parents = kParents.data();
    if (options.parents != nullptr) options.parent_count = below(5);
    return options;
  }
  kvcache_stash_inputs stash_inputs() {
    rows(below(6));
    kvcache_stash_inputs inputs = {};
    inputs.struct_size = sizeof inputs;
    inputs.gate = &components_[0];
    inputs.left = rarely() ? nullptr : &components_[1];
    inputs.right = &components_[2];
    return inputs;
  }

  kvcache_status verify_call() {
    kvcache_verify* const verify = one(verifies_);
    void* data = nullptr;
    const void* live = nullptr;
    uint64_t out = 0;
    kvcache_run_rows run = {};
    run.struct_size = sizeof run;
    kvcache_pending_rows pending = {};
    pending.struct_size = sizeof pending;
    const kvcache_stash_inputs inputs = stash_inputs();
    std::array<int32_t, 3> path = {0, static_cast<int32_t>(below(4)),
                                   static_cast<int32_t>(below(4))};
    switch (below(11)) {
      case 0:
      case 1:
      case 2:
        return make(verifies_, [&](kvcache_verify** handle) {
          const kvcache_verify_options options = verify_options();
          return kvcache_sequence_begin_verify(one(sequences_), tokens(), below(5), &options,
                                               handle);
        });
      case 3:
        return drop(verifies_);
      case 4:
        return kvcache_verify_rows(verify, &run);
      case 5:
        return kvcache_verify_write(verify, layer(), rows(below(6)), components());
      case 6: {
        const kvcache_status status =
            kvcache_verify_state(verify, number(), layer(), name(), &data, &out);
        if (status == KVCACHE_OK) memset(data, 0, out);
        return status;
      }
      case 7:
        return kvcache_verify_live(verify, layer(), name(), &live, &out);
      case 8:
        return below(2) == 0 ? kvcache_verify_pending(verify, layer(), name(), &pending)
                             : kvcache_verify_stash(verify, layer(), name(), &inputs);
      case 9:
        return below(2) == 0 ? kvcache_verify_commit(verify, number(), &out)
                             : kvcache_verify_commit_path(verify, path.data(), below(4), &out);
      default:
        return kvcache_verify_rollback(verify);
    }
  }

  kvcache_status batch_verify_call() {
    kvcache_batch_verify* const verify = one(batch_verifies_);
    void* data = nullptr;
    const void* live = nullptr;
    uint64_t out = 0;
    std::array<uint64_t, kMostHandles> lengths = {};
    kvcache_run_rows run = {};
    run.struct_size = sizeof run;
    const kvcache_stash_inputs inputs = stash_inputs();
    switch (below(10)) {
      case 0:
      case 1:
      case 2:
        return make(batch_verifies_, [&](kvcache_batch_verify** handle) {
          kvcache_verify_options options = verify_options();
          options.table = below(2) == 0 ? nullptr : one(tables_);
          options.carry = below(3) != 0 ? nullptr : one(carries_);
          return kvcache_batch_begin_verify(one(batches_), tokens(), below(6), counts(), &options,
                                            handle);
        });
      case 3:
        return drop(batch_verifies_);
      case 4:
        return kvcache_batch_verify_rows(verify, &run);
      case 5:
        return kvcache_batch_verify_write(verify, layer(), rows(below(8)), components());
      case 6: {
        const kvcache_status status =
            kvcache_batch_verify_state(verify, number(), number(), layer(), name(), &data, &out);
        if (status == KVCACHE_OK) memset(data, 0, out);
        return status;
      }
      case 7:
        return below(2) == 0
                   ? kvcache_batch_verify_live(verify, number(), layer(), name(), &live, &out)
                   : kvcache_batch_verify_stash(verify, layer(), name(), &inputs);
      case 8: {
        static_cast<void>(counts());
        const auto in_place = static_cast<uint32_t>(below(2));
        return below(2) == 0
                   ? kvcache_batch_verify_commit(verify, counts_.data(), in_place, lengths.data())
                   : kvcache_batch_verify_commit_paths(verify, tokens(), below(5), counts_.data(),
                                                       in_place, lengths.data());
      }
      default:
        return kvcache_batch_verify_rollback(verify);
    }
  }

  std::mt19937 random_;
  std::vector<std::function<void()>> left_;
  std::array<int32_t, 2 * kMostTokens> tokens_ = {};
  std::array<uint64_t, kMostHandles> counts_ = {};
  toy_rows rows_ = {};
  std::array<kvcache_rows, 4> components_ = {};
  Pool<kvcache_cache> caches_{kvcache_cache_destroy};
  Pool<kvcache_sequence> sequences_{kvcache_sequence_destroy};
  Pool<kvcache_batch> batches_{kvcache_batch_destroy};
  Pool<kvcache_verify> verifies_{kvcache_verify_destroy};
  Pool<kvcache_batch_verify> batch_verifies_{kvcache_batch_verify_destroy};
  Pool<kvcache_pin> pins_{kvcache_pin_destroy};
  Pool<kvcache_reservation> reservations_{kvcache_reservation_destroy};
  Pool<kvcache_tree> trees_{kvcache_tree_destroy};
  Pool<kvcache_verify_table> tables_{kvcache_verify_table_destroy};
  Pool<kvcache_carry_table> carries_{kvcache_carry_table_destroy};
  Pool<kvcache_events> events_{kvcache_events_destroy};
  Pool<kvcache_tenants> tenants_{kvcache_tenants_destroy};
};

}  // namespace
