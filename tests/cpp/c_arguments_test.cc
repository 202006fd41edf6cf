// Every pointer of every call of the C face as NULL, every enumeration with numbers it does not
// have, every struct with sizes it cannot have: an error that says so, never a crash.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdio>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "c_toy.h"

namespace {

void destroy(kvcache_cache* handle) { kvcache_cache_destroy(handle); }
void destroy(kvcache_sequence* handle) { kvcache_sequence_destroy(handle); }
void destroy(kvcache_batch* handle) { kvcache_batch_destroy(handle); }
void destroy(kvcache_verify* handle) { kvcache_verify_destroy(handle); }
void destroy(kvcache_batch_verify* handle) { kvcache_batch_verify_destroy(handle); }
void destroy(kvcache_tree* handle) { kvcache_tree_destroy(handle); }
void destroy(kvcache_verify_table* handle) { kvcache_verify_table_destroy(handle); }
void destroy(kvcache_carry_table* handle) { kvcache_carry_table_destroy(handle); }
void destroy(kvcache_pin* handle) { kvcache_pin_destroy(handle); }
void destroy(kvcache_reservation* handle) { kvcache_reservation_destroy(handle); }
void destroy(kvcache_tenants* handle) { kvcache_tenants_destroy(handle); }
void destroy(kvcache_events* handle) { kvcache_events_destroy(handle); }
void destroy(const void*) {}  // an address that was answered

template <typename T>
concept Sized = requires(T* value) { value->struct_size; };

// Whatever a call takes: one live handle of each type, structs, room for answers.
class World {
 public:
  World() {
    kvcache_options options = toy_options();
    options.event_capacity = 100;
    options.stash_rows = 4;
    kvcache_cache* cache = keep(toy_cache, &options);
    const std::array<int32_t, 3> tokens = {1, 2, 3};
    EXPECT_EQ(toy_serve(cache, tokens.data(), 3, nullptr, nullptr), 0);
    std::array<kvcache_sequence*, 4> sequences = {};
    for (kvcache_sequence*& sequence : sequences) {  // one token of each waits
      sequence =
          keep(kvcache_sequence_open, cache, tokens.data(), std::size_t{3}, nullptr, nullptr);
    }
    sequences_ = {sequences[0], sequences[1]};
    keep(kvcache_batch_create, sequences_.data(), std::size_t{1});
    kvcache_batch* verified = nullptr;
    EXPECT_EQ(kvcache_batch_create(&sequences[2], 1, &verified), KVCACHE_OK);
    const std::array<uint64_t, 1> counts = {2};
    keep(kvcache_batch_begin_verify, verified, tokens.data(), std::size_t{2}, counts.data(),
         nullptr);
    kvcache_batch_destroy(verified);
    keep(kvcache_sequence_begin_verify, sequences[3], tokens.data(), std::size_t{2}, nullptr);
    const std::array<int32_t, 2> parents = {-1, 0};
    keep(kvcache_tree_create, parents.data(), std::size_t{2});
    keep(kvcache_verify_table_create, cache, uint64_t{2}, uint64_t{2});
    keep(kvcache_carry_table_create, cache, uint64_t{2});
    keep(kvcache_cache_pin, cache, tokens.data(), std::size_t{3}, nullptr, nullptr);
    keep(kvcache_cache_reserve, cache, uint64_t{1});
    keep(kvcache_cache_tenants, cache);
    keep(kvcache_cache_take_events, cache);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    while (!cleanups_.empty()) {
      cleanups_.back()();
      cleanups_.pop_back();
    }
  }

  template <typename T>
  T give() {
    if constexpr (!std::is_pointer_v<T>) {
      return std::is_enum_v<T> ? T{} : static_cast<T>(std::is_unsigned_v<T> ? 1 : 0);
    } else {
      using Pointee = std::remove_pointer_t<T>;
      using Plain = std::remove_cv_t<Pointee>;
      if constexpr (std::is_same_v<T, kvcache_sequence* const*>) {
        return sequences_.data();
      } else if constexpr (std::is_same_v<Plain, char>) {
        return "attention.keys";
      } else if constexpr (std::is_pointer_v<Plain>) {
        return slot<Plain>();
      } else if constexpr (std::is_arithmetic_v<Plain> || std::is_void_v<Plain>) {
        return reinterpret_cast<T>(numbers_.data());
      } else if constexpr (requires { sizeof(Plain); }) {
        return structure<Plain>();
      } else {
        return std::get<Plain*>(handles_);
      }
    }
  }

 private:
  template <typename... Parameters>
  using Made = std::remove_pointer_t<
      std::tuple_element_t<sizeof...(Parameters) - 1, std::tuple<Parameters...>>>;

  // The first handle of its type that a call makes is given to others.
  template <typename... Parameters, typename... Arguments>
  Made<Parameters...> keep(kvcache_status (*make)(Parameters...), Arguments... arguments) {
    using Handle = Made<Parameters...>;
    Handle* address = slot<Handle>();
    EXPECT_EQ(make(arguments..., address), KVCACHE_OK) << kvcache_last_error();
    if (std::get<Handle>(handles_) == nullptr) std::get<Handle>(handles_) = *address;
    return *address;
  }

  // Where a call puts an address; a handle there is freed.
  template <typename Pointer>
  Pointer* slot() {
    auto address = std::make_shared<Pointer>(nullptr);
    cleanups_.push_back([address] { destroy(*address); });
    return address.get();
  }

  // A zeroed struct of its size, with zeros behind it.
  template <typename Struct>
  Struct* structure() {
    auto bytes = std::make_shared<std::array<std::max_align_t, 8192 / sizeof(std::max_align_t)>>();
    cleanups_.push_back([bytes] {});
    auto* result = reinterpret_cast<Struct*>(bytes.get());
    if constexpr (Sized<Struct>) result->struct_size = sizeof(Struct);
    return result;
  }

  std::tuple<kvcache_cache*, kvcache_sequence*, kvcache_batch*, kvcache_verify*,
             kvcache_batch_verify*, kvcache_tree*, kvcache_verify_table*, kvcache_carry_table*,
             kvcache_pin*, kvcache_reservation*, kvcache_tenants*, kvcache_events*>
      handles_;
  std::array<kvcache_sequence*, 2> sequences_ = {};
  std::array<uint64_t, 512> numbers_ = {};
  std::vector<std::function<void()>> cleanups_;
};

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
  EXPECT_EQ(kvcache_sequence_cached_tokens(nullptr), 0U);
  EXPECT_EQ(kvcache_sequence_matched_tokens(nullptr), 0U);
  EXPECT_EQ(kvcache_sequence_length(nullptr), 0U);
  EXPECT_EQ(kvcache_tenants_count(nullptr), 0U);
  EXPECT_EQ(kvcache_events_count(nullptr), 0U);
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
                  kvcache_cache_take_events, kvcache_cache_events_snapshot,
                  kvcache_cache_lose_events, kvcache_cache_group_stats);
    child.refuses(kvcache_sequence_open, kvcache_sequence_close, kvcache_sequence_tokens,
                  kvcache_sequence_extend, kvcache_sequence_write, kvcache_sequence_read,
                  kvcache_sequence_write_records, kvcache_sequence_read_records,
                  kvcache_sequence_state, kvcache_sequence_advance, kvcache_sequence_prepare,
                  kvcache_sequence_advance_in_place, kvcache_sequence_block_table,
                  kvcache_sequence_snapshot, kvcache_sequence_mark, kvcache_sequence_prefill_stops,
                  kvcache_sequence_publish, kvcache_sequence_fork, kvcache_sequence_truncate,
                  kvcache_sequence_shift, kvcache_sequence_record, kvcache_sequence_rollback,
                  kvcache_sequence_begin_verify);
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
    child.reads(kvcache_cache_group_count, kvcache_cache_sequence_bytes, kvcache_verify_rows,
                kvcache_batch_verify_rows, kvcache_tree_accept);
    world.reset();  // freeing is fine
    _exit(child.result());
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the first call that was not as expected";
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

}  // namespace
