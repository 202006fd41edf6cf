// Every pointer of every call of the C face as NULL, every enumeration with numbers it does not
// have, every struct with sizes it cannot have: an error that says so, never a crash.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "c_world.h"

namespace {

// One call with argument `at` changed.
template <std::size_t at, typename... Parameters>
kvcache_status call_with(kvcache_status (*function)(Parameters...), const auto& change) {
  World world;
  std::tuple<Parameters...> arguments{world.give<Parameters>()...};
  change(std::get<at>(arguments));
  return std::apply(function, arguments);
}

template <std::size_t at, typename... Parameters>
void sweep_argument(const char* name, kvcache_status (*function)(Parameters...), bool may_be_null) {
  using T = std::tuple_element_t<at, std::tuple<Parameters...>>;
  SCOPED_TRACE(std::string(name) + ", argument " + std::to_string(at));
  if constexpr (std::is_pointer_v<T>) {
    const kvcache_status status = call_with<at>(function, [](T& value) { value = nullptr; });
    EXPECT_NE(status, KVCACHE_INTERNAL) << kvcache_last_error();
    if (!may_be_null) {
      EXPECT_EQ(status, KVCACHE_INVALID_ARGUMENT) << kvcache_last_error();
      EXPECT_NE(std::string(kvcache_last_error()).find(" is NULL"), std::string::npos)
          << kvcache_last_error();
    }
  }
  if constexpr (std::is_enum_v<T>) {
    for (const int wrong : {-1, 99, INT32_MAX, INT32_MIN}) {
      const auto change = [&](T& value) { value = static_cast<T>(wrong); };
      EXPECT_EQ(call_with<at>(function, change), KVCACHE_INVALID_ARGUMENT) << wrong;
    }
  }
  if constexpr (std::is_pointer_v<T> && Sized<std::remove_pointer_t<T>>) {
    using Struct = std::remove_cv_t<std::remove_pointer_t<T>>;
    for (const std::size_t wrong : {std::size_t{0}, std::size_t{1}, sizeof(Struct) - 8,
                                    sizeof(Struct) + 1, std::size_t{8192}, SIZE_MAX}) {
      const auto change = [&](T& value) { const_cast<Struct*>(value)->struct_size = wrong; };
      const kvcache_status status = call_with<at>(function, change);
      EXPECT_TRUE(status != KVCACHE_OK && status != KVCACHE_INTERNAL)
          << wrong << ": " << kvcache_last_error();
    }
  }
}

// `may_be_null`: numbers of arguments that may.
template <typename... Parameters>
void sweep(const char* name, kvcache_status (*function)(Parameters...),
           std::initializer_list<std::size_t> may_be_null) {
  const auto allowed = [&](std::size_t at) {
    return std::find(may_be_null.begin(), may_be_null.end(), at) != may_be_null.end();
  };
  [&]<std::size_t... at>(std::index_sequence<at...>) {
    (sweep_argument<at>(name, function, allowed(at)), ...);
  }(std::index_sequence_for<Parameters...>());
}

#define SWEEP(function, ...) sweep(#function, function, {__VA_ARGS__})

TEST(CArguments, OfACache) {
  SWEEP(kvcache_cache_create);
  SWEEP(kvcache_cache_stats);
  SWEEP(kvcache_cache_plan);
  SWEEP(kvcache_cache_group_count);
  SWEEP(kvcache_cache_group_stats);
  SWEEP(kvcache_cache_sequence_bytes);
  SWEEP(kvcache_cache_pages);
  SWEEP(kvcache_cache_resize);
  SWEEP(kvcache_cache_reserve);
  SWEEP(kvcache_cache_explain, 3);
  SWEEP(kvcache_cache_pin, 3, 4);
  SWEEP(kvcache_pin_read);
  SWEEP(kvcache_pin_renew, 1);
  SWEEP(kvcache_cache_set_quota, 2);
  SWEEP(kvcache_cache_tenants);
  SWEEP(kvcache_tenants_read);
  SWEEP(kvcache_cache_erase);
  SWEEP(kvcache_cache_drop_expired);
  SWEEP(kvcache_cache_clear);
  SWEEP(kvcache_cache_bump_epoch, 1);
}

TEST(CArguments, OfFilesAndEvents) {
  SWEEP(kvcache_cache_save, 4, 5);
  SWEEP(kvcache_cache_load, 2, 3);
  SWEEP(kvcache_cache_prefetch, 3, 4);
  SWEEP(kvcache_cache_flush_disk, 1);
  SWEEP(kvcache_cache_disk_stats);
  SWEEP(kvcache_cache_flush_remote, 1);
  SWEEP(kvcache_cache_remote_stats);
  SWEEP(kvcache_cache_take_events);
  SWEEP(kvcache_cache_events_snapshot);
  SWEEP(kvcache_cache_lose_events);
  SWEEP(kvcache_events_read);
}

TEST(CArguments, OfASequence) {
  SWEEP(kvcache_sequence_open, 3, 4);
  SWEEP(kvcache_sequence_close, 1);
  SWEEP(kvcache_sequence_tokens);
  SWEEP(kvcache_sequence_extend);
  SWEEP(kvcache_sequence_write);
  SWEEP(kvcache_sequence_read);
  SWEEP(kvcache_sequence_write_layers);
  SWEEP(kvcache_sequence_read_layers);
  SWEEP(kvcache_sequence_written);
  SWEEP(kvcache_sequence_written_records);
  SWEEP(kvcache_sequence_write_records);
  SWEEP(kvcache_sequence_read_records);
  SWEEP(kvcache_sequence_state);
  SWEEP(kvcache_sequence_advance);
  SWEEP(kvcache_sequence_prepare);
  SWEEP(kvcache_sequence_advance_in_place);
  SWEEP(kvcache_sequence_block_table);
  SWEEP(kvcache_sequence_snapshot);
  SWEEP(kvcache_sequence_mark);
  SWEEP(kvcache_sequence_prefill_stops);
  SWEEP(kvcache_sequence_publish);
  SWEEP(kvcache_sequence_fork);
  SWEEP(kvcache_sequence_truncate);
  SWEEP(kvcache_sequence_shift);
  SWEEP(kvcache_sequence_record);
  SWEEP(kvcache_sequence_rollback);
  SWEEP(kvcache_sequence_recorded);
}

TEST(CArguments, OfRowsOfAnEngine) {
  SWEEP(kvcache_sequence_import_rows, 7);
  SWEEP(kvcache_sequence_export_rows, 7);
  SWEEP(kvcache_sequence_views);
  SWEEP(kvcache_page_views_read);
}

TEST(CArguments, OfAPool) {
  SWEEP(kvcache_pool_create);
  SWEEP(kvcache_pool_allocate);
  SWEEP(kvcache_pool_retain);
  SWEEP(kvcache_pool_free);
  SWEEP(kvcache_pool_refs);
  SWEEP(kvcache_pool_data);
  SWEEP(kvcache_pool_pin);
  SWEEP(kvcache_pool_memory);
  SWEEP(kvcache_pool_stats);
}

TEST(CArguments, OfHiddenRowsAndDrafts) {
  SWEEP(kvcache_hidden_capture_create);
  SWEEP(kvcache_hidden_capture_begin);
  SWEEP(kvcache_hidden_capture_write);
  SWEEP(kvcache_hidden_capture_rows);
  SWEEP(kvcache_hidden_capture_consume);
  SWEEP(kvcache_hidden_capture_release);
  SWEEP(kvcache_hidden_capture_read);
  SWEEP(kvcache_hidden_bands_create);
  SWEEP(kvcache_hidden_bands_store);
  SWEEP(kvcache_hidden_bands_accepted);
  SWEEP(kvcache_accept_stash_create);
  SWEEP(kvcache_accept_stash_store, 7);
  SWEEP(kvcache_accept_stash_rows);
  SWEEP(kvcache_accept_stash_row);
  SWEEP(kvcache_accept_stash_catch_up);
  SWEEP(kvcache_drafts_create);
  SWEEP(kvcache_drafts_put, 4);
  SWEEP(kvcache_drafts_take, 3);
  SWEEP(kvcache_drafts_put_back);
  SWEEP(kvcache_drafts_clear);
  SWEEP(kvcache_drafts_pending);
}

TEST(CArguments, OfPromptLookup) {
  SWEEP(kvcache_lookup_create, 0);
  SWEEP(kvcache_lookup_observe);
  SWEEP(kvcache_lookup_truncate);
  SWEEP(kvcache_lookup_find);
  SWEEP(kvcache_lookup_propose, 3);
  SWEEP(kvcache_lookup_settle);
  SWEEP(kvcache_lookup_abandon);
  SWEEP(kvcache_lookup_propose_batch);
  SWEEP(kvcache_lookup_settle_batch);
  SWEEP(kvcache_lookup_read);
  SWEEP(kvcache_lookup_cache_create, 0);
  SWEEP(kvcache_lookup_cache_scope);
  SWEEP(kvcache_lookup_cache_drop);
  SWEEP(kvcache_lookup_cache_read);
  SWEEP(kvcache_lookup_scope_insert);
  SWEEP(kvcache_lookup_scope_find);
  SWEEP(kvcache_lookup_scope_tokens);
}

TEST(CArguments, OfABatch) {
  SWEEP(kvcache_batch_create);
  SWEEP(kvcache_batch_lengths);
  SWEEP(kvcache_batch_extend, 3);
  SWEEP(kvcache_batch_prepare, 1);
  SWEEP(kvcache_batch_write, 3);
  SWEEP(kvcache_batch_read, 3);
  SWEEP(kvcache_batch_advance, 1);
  SWEEP(kvcache_batch_advance_in_place, 1);
  SWEEP(kvcache_batch_block_table);
  SWEEP(kvcache_batch_copy_block_table);
}

TEST(CArguments, OfAVerify) {
  SWEEP(kvcache_sequence_begin_verify, 3);
  SWEEP(kvcache_verify_rows);
  SWEEP(kvcache_verify_write);
  SWEEP(kvcache_verify_write_records);
  SWEEP(kvcache_verify_state);
  SWEEP(kvcache_verify_live);
  SWEEP(kvcache_verify_pending);
  SWEEP(kvcache_verify_stash);
  SWEEP(kvcache_verify_commit);
  SWEEP(kvcache_verify_commit_path);
  SWEEP(kvcache_verify_rollback);
}

TEST(CArguments, OfABatchVerify) {
  SWEEP(kvcache_batch_begin_verify, 3, 4);
  SWEEP(kvcache_batch_verify_rows);
  SWEEP(kvcache_batch_verify_write);
  SWEEP(kvcache_batch_verify_write_records);
  SWEEP(kvcache_batch_verify_state);
  SWEEP(kvcache_batch_verify_live);
  SWEEP(kvcache_batch_verify_pending);
  SWEEP(kvcache_batch_verify_stash);
  SWEEP(kvcache_batch_verify_commit);
  SWEEP(kvcache_batch_verify_commit_paths);
  SWEEP(kvcache_batch_verify_rollback);
}

TEST(CArguments, OfTablesAndTrees) {
  SWEEP(kvcache_verify_table_create);
  SWEEP(kvcache_verify_table_pointers);
  SWEEP(kvcache_carry_table_create);
  SWEEP(kvcache_carry_table_layer);
  SWEEP(kvcache_carry_table_live);
  SWEEP(kvcache_tree_create);
  SWEEP(kvcache_tree_read);
  SWEEP(kvcache_tree_retrieval_indices);
  SWEEP(kvcache_tree_mask);
  SWEEP(kvcache_tree_bias);
  SWEEP(kvcache_tree_packed_mask);
  SWEEP(kvcache_tree_accept);
}

TEST(CArguments, NothingIsDestroyedAndCountedOfNull) {
  kvcache_cache_destroy(nullptr);
  kvcache_sequence_destroy(nullptr);
  kvcache_batch_destroy(nullptr);
  kvcache_verify_destroy(nullptr);
  kvcache_batch_verify_destroy(nullptr);
  kvcache_tree_destroy(nullptr);
  kvcache_verify_table_destroy(nullptr);
  kvcache_carry_table_destroy(nullptr);
  kvcache_pin_destroy(nullptr);
  kvcache_reservation_destroy(nullptr);
  kvcache_tenants_destroy(nullptr);
  kvcache_events_destroy(nullptr);
  kvcache_page_views_destroy(nullptr);
  kvcache_pool_destroy(nullptr);
  kvcache_block_pin_destroy(nullptr);
  kvcache_hidden_capture_destroy(nullptr);
  kvcache_hidden_bands_destroy(nullptr);
  kvcache_accept_stash_destroy(nullptr);
  kvcache_drafts_destroy(nullptr);
  kvcache_lookup_destroy(nullptr);
  kvcache_lookup_cache_destroy(nullptr);
  kvcache_lookup_scope_destroy(nullptr);
  EXPECT_EQ(kvcache_sequence_cached_tokens(nullptr), 0U);
  EXPECT_EQ(kvcache_sequence_matched_tokens(nullptr), 0U);
  EXPECT_EQ(kvcache_sequence_length(nullptr), 0U);
  EXPECT_EQ(kvcache_tenants_count(nullptr), 0U);
  EXPECT_EQ(kvcache_events_count(nullptr), 0U);
  EXPECT_EQ(kvcache_page_views_count(nullptr), 0U);
  EXPECT_EQ(kvcache_abi(), static_cast<uint32_t>(KVCACHE_ABI));
  EXPECT_STRNE(kvcache_version(), "");
  EXPECT_STREQ(kvcache_status_name(KVCACHE_IO_ERROR), "I/O error");
  EXPECT_STREQ(kvcache_status_name(static_cast<kvcache_status>(99)), "unknown status");
}

// ---- In a child of fork() -----------------------------------------------------------------------

// Calls with what the parent has made; `reads`: of what never changes.
class Child {
 public:
  explicit Child(World& world) : world_(world) {}

  void refuses(auto... functions) {
    const auto refuse = [this](auto function) {
      const kvcache_status status = call(function);
      const bool told = std::string(kvcache_last_error()).find("fork()") != std::string::npos;
      if (status != KVCACHE_INVALID_ARGUMENT || !told) wrong();
    };
    (refuse(functions), ...);
  }
  void reads(auto... functions) {
    const auto read = [this](auto function) {
      if (call(function) != KVCACHE_OK) wrong();
    };
    (read(functions), ...);
  }
  // The number of the first call that was not as expected, or 0.
  int result() const { return first_; }

 private:
  template <typename... Parameters>
  kvcache_status call(kvcache_status (*function)(Parameters...)) {
    ++calls_;
    std::tuple<Parameters...> arguments{world_.give<Parameters>()...};
    return std::apply(function, arguments);
  }
  void wrong() {
    if (first_ == 0) first_ = calls_;
    std::fprintf(stderr, "call %d: %s\n", calls_, kvcache_last_error());
  }

  World& world_;
  int calls_ = 0;
  int first_ = 0;
};

TEST(CArguments, AChildIsRefusedButReadsWhatNeverChanges) {
  std::optional<World> world;
  world.emplace();
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    Child child(*world);
    child.refuses(kvcache_cache_stats, kvcache_cache_pages, kvcache_cache_resize,
                  kvcache_cache_reserve, kvcache_cache_explain, kvcache_cache_pin, kvcache_pin_read,
                  kvcache_pin_renew, kvcache_cache_set_quota, kvcache_cache_tenants,
                  kvcache_cache_erase, kvcache_cache_drop_expired, kvcache_cache_clear,
                  kvcache_cache_bump_epoch, kvcache_cache_save, kvcache_cache_load,
                  kvcache_cache_prefetch, kvcache_cache_flush_disk, kvcache_cache_disk_stats,
                  kvcache_cache_flush_remote, kvcache_cache_remote_stats, kvcache_cache_take_events,
                  kvcache_cache_events_snapshot, kvcache_cache_lose_events,
                  kvcache_cache_group_stats);
    child.refuses(
        kvcache_sequence_open, kvcache_sequence_close, kvcache_sequence_tokens,
        kvcache_sequence_extend, kvcache_sequence_write, kvcache_sequence_read,
        kvcache_sequence_write_records, kvcache_sequence_read_records, kvcache_sequence_state,
        kvcache_sequence_advance, kvcache_sequence_prepare, kvcache_sequence_advance_in_place,
        kvcache_sequence_block_table, kvcache_sequence_snapshot, kvcache_sequence_mark,
        kvcache_sequence_prefill_stops, kvcache_sequence_publish, kvcache_sequence_fork,
        kvcache_sequence_truncate, kvcache_sequence_shift, kvcache_sequence_record,
        kvcache_sequence_rollback, kvcache_sequence_begin_verify, kvcache_sequence_written,
        kvcache_sequence_written_records, kvcache_sequence_recorded, kvcache_sequence_views);
    child.refuses(
        kvcache_batch_create, kvcache_batch_lengths, kvcache_batch_extend, kvcache_batch_prepare,
        kvcache_batch_write, kvcache_batch_read, kvcache_batch_advance,
        kvcache_batch_advance_in_place, kvcache_batch_block_table, kvcache_verify_write,
        kvcache_verify_write_records, kvcache_verify_state, kvcache_verify_live,
        kvcache_verify_pending, kvcache_verify_stash, kvcache_verify_commit,
        kvcache_verify_commit_path, kvcache_verify_rollback, kvcache_batch_begin_verify,
        kvcache_batch_verify_write, kvcache_batch_verify_write_records, kvcache_batch_verify_state,
        kvcache_batch_verify_live, kvcache_batch_verify_pending, kvcache_batch_verify_stash,
        kvcache_batch_verify_commit, kvcache_batch_verify_commit_paths,
        kvcache_batch_verify_rollback, kvcache_verify_table_pointers, kvcache_carry_table_layer,
        kvcache_carry_table_live);
    child.refuses(kvcache_pool_allocate, kvcache_pool_retain, kvcache_pool_free, kvcache_pool_refs,
                  kvcache_pool_data, kvcache_pool_pin, kvcache_pool_memory, kvcache_pool_stats,
                  kvcache_hidden_capture_begin, kvcache_hidden_capture_rows,
                  kvcache_hidden_capture_consume, kvcache_hidden_capture_release,
                  kvcache_hidden_capture_read, kvcache_hidden_capture_write,
                  kvcache_hidden_bands_store, kvcache_hidden_bands_accepted,
                  kvcache_accept_stash_store, kvcache_accept_stash_rows, kvcache_accept_stash_row,
                  kvcache_accept_stash_catch_up, kvcache_drafts_put, kvcache_drafts_take,
                  kvcache_drafts_put_back, kvcache_drafts_clear, kvcache_drafts_pending);
    child.refuses(kvcache_lookup_observe, kvcache_lookup_truncate, kvcache_lookup_find,
                  kvcache_lookup_propose, kvcache_lookup_propose_batch, kvcache_lookup_settle,
                  kvcache_lookup_abandon, kvcache_lookup_settle_batch, kvcache_lookup_read,
                  kvcache_lookup_cache_scope, kvcache_lookup_cache_drop, kvcache_lookup_cache_read,
                  kvcache_lookup_scope_insert, kvcache_lookup_scope_find,
                  kvcache_lookup_scope_tokens, kvcache_batch_copy_block_table);
    child.reads(kvcache_cache_plan, kvcache_tree_read, kvcache_page_views_read,
                kvcache_cache_group_count, kvcache_cache_sequence_bytes, kvcache_verify_rows,
                kvcache_batch_verify_rows, kvcache_tree_accept);
    world.reset();  // freeing is fine
    _exit(child.result());
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the first call that was not as expected";
}

void nonsense_parts(World& world) {
  auto* const pool = world.give<kvcache_pool*>();
  auto* const lookup = world.give<kvcache_lookup*>();
  auto* const scope = world.give<kvcache_lookup_scope*>();
  auto* const sequence = world.give<kvcache_sequence*>();
  auto* const capture = world.give<kvcache_hidden_capture*>();
  auto* const stash = world.give<kvcache_accept_stash*>();
  const uint64_t most = UINT64_MAX;
  const std::array<int32_t, 2> odd = {INT32_MIN, INT32_MAX};
  kvcache_page_views* views = nullptr;
  kvcache_block_pin* pin = nullptr;
  kvcache_drafts* drafts = nullptr;
  kvcache_hidden_rows rows = {};
  void* data = nullptr;
  uint32_t refs = 7;
  uint64_t kept = 7;
  EXPECT_NE(kvcache_sequence_views(sequence, 0, most - 1, most, &views), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_views(sequence, 0, 2, 1, &views), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_views(sequence, INT32_MIN, 0, 1, &views), KVCACHE_OK);
  for (const int32_t id : odd) {
    EXPECT_EQ(kvcache_pool_refs(pool, id, &refs), KVCACHE_INVALID_ARGUMENT);
    EXPECT_EQ(kvcache_pool_data(pool, id, &data), KVCACHE_INVALID_ARGUMENT);
    EXPECT_EQ(kvcache_pool_pin(pool, id, &pin, &data), KVCACHE_INVALID_ARGUMENT);
    EXPECT_EQ(kvcache_pool_free(pool, &id, 1), KVCACHE_INVALID_ARGUMENT);
    EXPECT_EQ(kvcache_pool_retain(pool, &id, 1), KVCACHE_INVALID_ARGUMENT);
    EXPECT_EQ(kvcache_lookup_scope_insert(scope, odd.data(), 1), KVCACHE_INVALID_ARGUMENT);
  }
  EXPECT_EQ(kvcache_lookup_settle(lookup, most), KVCACHE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcache_lookup_truncate(lookup, most), KVCACHE_OK);
  EXPECT_EQ(kvcache_drafts_create(most, most, &drafts), KVCACHE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcache_hidden_capture_begin(capture, sequence), KVCACHE_OK);
  rows = {.data = &rows, .dtype = KVCACHE_BF16, .rows = 1, .width = 4, .row_stride = 8};
  EXPECT_NE(kvcache_hidden_capture_write(capture, most, &rows, &kept), KVCACHE_OK);
  rows.width = most;
  EXPECT_NE(kvcache_hidden_capture_write(capture, 2, &rows, &kept), KVCACHE_OK);
  EXPECT_NE(kvcache_accept_stash_rows(stash, most, &rows), KVCACHE_OK);
  EXPECT_EQ(refs, 7U);
  EXPECT_EQ(kept, 7U);
  EXPECT_EQ(data, nullptr);
}

TEST(CArguments, NonsenseNumbersAreErrors) {
  World world;
  auto* const cache = world.give<kvcache_cache*>();
  auto* const sequence = world.give<kvcache_sequence*>();
  auto* const batch = world.give<kvcache_batch*>();
  auto* const verify = world.give<kvcache_verify*>();
  const uint64_t most = UINT64_MAX;
  const float element = 0;
  const kvcache_rows row = {const_cast<float*>(&element), KVCACHE_F32, 1, 1, 1, 4, 4};
  kvcache_rows odd = row;
  uint64_t number = 0;
  void* data = nullptr;
  kvcache_reservation* reservation = nullptr;
  kvcache_verify_table* table = nullptr;
  kvcache_carry_table* carry = nullptr;
  kvcache_batch* none = nullptr;
  kvcache_sequence* missing = nullptr;
  std::array<int32_t, 4> pages = {};
  EXPECT_NE(kvcache_sequence_advance(sequence, most), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_prepare(sequence, most), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_advance_in_place(sequence, most), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_truncate(sequence, most), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_rollback(sequence, most), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_shift(sequence, most, most), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_mark(sequence, most, KVCACHE_MARK_TURN), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_block_table(sequence, SIZE_MAX, pages.data(), 4, &number), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_write(sequence, INT32_MIN, most, &row, 1), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_write(sequence, 0, 0, &row, SIZE_MAX), KVCACHE_OK);
  EXPECT_NE(kvcache_sequence_state(sequence, INT32_MAX, TOY_STATE, &data, &number), KVCACHE_OK);
  odd.dtype = static_cast<kvcache_dtype>(77);
  EXPECT_EQ(kvcache_sequence_write(sequence, 0, 0, &odd, 1), KVCACHE_INVALID_ARGUMENT);
  EXPECT_STREQ(kvcache_last_error(), "dtype of components[0] is 77, expected 0..8");
  odd = row;
  odd.data = nullptr;
  EXPECT_EQ(kvcache_sequence_write(sequence, 0, 0, &odd, 1), KVCACHE_INVALID_ARGUMENT);
  EXPECT_NE(kvcache_batch_prepare(batch, &most), KVCACHE_OK);
  EXPECT_NE(kvcache_batch_advance(batch, &most), KVCACHE_OK);
  EXPECT_NE(kvcache_batch_create(&missing, 1, &none), KVCACHE_OK);
  EXPECT_NE(kvcache_batch_create(&missing, SIZE_MAX, &none), KVCACHE_OK);
  EXPECT_NE(kvcache_verify_state(verify, most, 1, TOY_STATE, &data, &number), KVCACHE_OK);
  EXPECT_NE(kvcache_verify_commit(verify, most, &number), KVCACHE_OK);
  EXPECT_NE(kvcache_cache_resize(cache, most), KVCACHE_OK);
  EXPECT_NE(kvcache_cache_resize(cache, 0), KVCACHE_OK);
  EXPECT_NE(kvcache_cache_reserve(cache, most, &reservation), KVCACHE_OK);
  EXPECT_NE(kvcache_cache_sequence_bytes(cache, most, most, &number), KVCACHE_OK);
  EXPECT_NE(kvcache_verify_table_create(cache, most, most, &table), KVCACHE_OK);
  EXPECT_NE(kvcache_carry_table_create(cache, most, &carry), KVCACHE_OK);
  nonsense_parts(world);
  EXPECT_EQ(number, 0U);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(kvcache_sequence_length(sequence), 2U);
}

TEST(CArguments, AStructOfANewerCallerIsReadAsFarAsItIsKnown) {
  World world;
  auto* const cache = world.give<kvcache_cache*>();
  auto* const stats = world.give<kvcache_stats*>();
  auto* const rest = reinterpret_cast<uint64_t*>(stats + 1);
  stats->struct_size += sizeof *rest;
  *rest = 7;
  ASSERT_EQ(kvcache_cache_stats(cache, stats), KVCACHE_OK);
  EXPECT_EQ(stats->struct_size, sizeof *stats + sizeof *rest);
  EXPECT_EQ(stats->open_sequences, 4U);
  EXPECT_EQ(*rest, 0U);

  auto* const space = world.give<kvcache_space*>();
  auto* const why = world.give<kvcache_explanation*>();
  const int32_t token = 1;
  auto* const more = reinterpret_cast<uint64_t*>(space + 1);
  space->struct_size += sizeof *more;
  EXPECT_EQ(kvcache_cache_explain(cache, &token, 1, space, why), KVCACHE_OK);
  *more = 1;
  EXPECT_EQ(kvcache_cache_explain(cache, &token, 1, space, why), KVCACHE_UNSUPPORTED);
  EXPECT_NE(std::string(kvcache_last_error()).find("space has a value at byte 72"),
            std::string::npos)
      << kvcache_last_error();
}

// Its struct ends where what the library has learned since begins, and is read no further.
TEST(CArguments, AStructOfAnOlderCallerGetsTheDefaultsOfWhatItLacks) {
  kvcache_options options = toy_options();
  options.struct_size = offsetof(kvcache_options, remote);
  options.remote = reinterpret_cast<const kvcache_remote_options*>(&options);
  kvcache_cache* cache = nullptr;
  ASSERT_EQ(toy_cache(&options, &cache), KVCACHE_OK) << kvcache_last_error();
  EXPECT_EQ(kvcache_cache_flush_remote(cache, nullptr), KVCACHE_UNSUPPORTED);
  kvcache_cache_destroy(cache);
  options.struct_size -= sizeof(void*);
  EXPECT_EQ(toy_cache(&options, &cache), KVCACHE_INVALID_ARGUMENT);
}

}  // namespace
