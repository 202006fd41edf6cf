// One live handle of each type of the C face, and whatever else its calls take: for tests that make
// each call with something wrong.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "c_toy.h"

namespace {

inline void destroy(kvcache_cache* handle) { kvcache_cache_destroy(handle); }
inline void destroy(kvcache_sequence* handle) { kvcache_sequence_destroy(handle); }
inline void destroy(kvcache_batch* handle) { kvcache_batch_destroy(handle); }
inline void destroy(kvcache_verify* handle) { kvcache_verify_destroy(handle); }
inline void destroy(kvcache_batch_verify* handle) { kvcache_batch_verify_destroy(handle); }
inline void destroy(kvcache_tree* handle) { kvcache_tree_destroy(handle); }
inline void destroy(kvcache_verify_table* handle) { kvcache_verify_table_destroy(handle); }
inline void destroy(kvcache_carry_table* handle) { kvcache_carry_table_destroy(handle); }
inline void destroy(kvcache_pin* handle) { kvcache_pin_destroy(handle); }
inline void destroy(kvcache_reservation* handle) { kvcache_reservation_destroy(handle); }
inline void destroy(kvcache_tenants* handle) { kvcache_tenants_destroy(handle); }
inline void destroy(kvcache_events* handle) { kvcache_events_destroy(handle); }
inline void destroy(kvcache_page_views* handle) { kvcache_page_views_destroy(handle); }
inline void destroy(kvcache_pool* handle) { kvcache_pool_destroy(handle); }
inline void destroy(kvcache_block_pin* handle) { kvcache_block_pin_destroy(handle); }
inline void destroy(kvcache_hidden_capture* handle) { kvcache_hidden_capture_destroy(handle); }
inline void destroy(kvcache_hidden_bands* handle) { kvcache_hidden_bands_destroy(handle); }
inline void destroy(kvcache_accept_stash* handle) { kvcache_accept_stash_destroy(handle); }
inline void destroy(kvcache_drafts* handle) { kvcache_drafts_destroy(handle); }
inline void destroy(kvcache_lookup* handle) { kvcache_lookup_destroy(handle); }
inline void destroy(kvcache_lookup_cache* handle) { kvcache_lookup_cache_destroy(handle); }
inline void destroy(kvcache_lookup_scope* handle) { kvcache_lookup_scope_destroy(handle); }
inline void destroy(const void*) {}  // an address that was answered

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
    keep_parts(cache, sequences[0]);
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
      } else if constexpr (std::is_same_v<T, kvcache_lookup* const*>) {
        return lookups_.data();
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
  void keep_parts(kvcache_cache* cache, kvcache_sequence* sequence) {
    keep(kvcache_sequence_views, sequence, 0, uint64_t{0}, uint64_t{2});
    kvcache_pool_options blocks = {};
    blocks.struct_size = sizeof blocks;
    blocks.blocks = 4;
    blocks.block_bytes = 64;
    kvcache_pool* pool = keep(kvcache_pool_create, &blocks);
    std::array<int32_t, 2> ids = {};
    EXPECT_EQ(kvcache_pool_allocate(pool, ids.data(), 2), KVCACHE_OK);
    kvcache_block_pin*& pin = std::get<kvcache_block_pin*>(handles_);
    void* data = nullptr;
    EXPECT_EQ(kvcache_pool_pin(pool, 0, &pin, &data), KVCACHE_OK);
    cleanups_.push_back([&pin] { destroy(pin); });
    kvcache_hidden_options rows = {};
    rows.struct_size = sizeof rows;
    rows.rows = rows.width = 4;
    rows.cache = cache;
    keep(kvcache_hidden_capture_create, &rows);
    keep(kvcache_hidden_bands_create, &rows, uint64_t{2});
    keep(kvcache_accept_stash_create, &rows, uint64_t{1});
    keep(kvcache_drafts_create, uint64_t{4}, uint64_t{1});
    lookups_ = {keep(kvcache_lookup_create, nullptr)};
    kvcache_lookup_cache* lookups = keep(kvcache_lookup_cache_create, nullptr);
    kvcache_lookup_key key = {};
    key.struct_size = sizeof key;
    keep(kvcache_lookup_cache_scope, lookups, &key);
  }

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
             kvcache_pin*, kvcache_reservation*, kvcache_tenants*, kvcache_events*,
             kvcache_page_views*, kvcache_pool*, kvcache_block_pin*, kvcache_hidden_capture*,
             kvcache_hidden_bands*, kvcache_accept_stash*, kvcache_drafts*, kvcache_lookup*,
             kvcache_lookup_cache*, kvcache_lookup_scope*>
      handles_;
  std::array<kvcache_sequence*, 2> sequences_ = {};
  std::array<kvcache_lookup*, 1> lookups_ = {};
  std::array<uint64_t, 512> numbers_ = {};
  std::vector<std::function<void()>> cleanups_;
};

}  // namespace
