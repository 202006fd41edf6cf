// Requests of tenants, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "content.h"
#include "kvcache/cache.h"

namespace kvcache::tenants {

using content::Tokens;

constexpr std::uint64_t kBlock = 4;

inline Tokens numbered(std::int32_t first, std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<std::int32_t>(i);
  return tokens;
}

inline Tokens first(const Tokens& tokens, std::size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

// Attention of one kind alone: a block is one page, whose bytes are known.
inline std::vector<StateDecl> attention() { return {content::keys(0)}; }

inline std::unique_ptr<Cache> make(std::vector<StateDecl> decls, CacheOptions options = {},
                                   std::uint64_t memory = 64 << 20) {
  auto plan = StatePlan::create(std::move(decls), {memory, kBlock, 64, 3});
  EXPECT_TRUE(plan.is_ok()) << plan.status().message();
  return Cache::create(std::move(plan).value(), options).value();
}

inline EraseFilter of(const std::string& tenant, std::optional<std::string> space = {}) {
  EraseFilter filter;
  filter.tenant = tenant;
  filter.name = std::move(space);
  return filter;
}

inline OpenOptions by(const std::string& tenant) {
  OpenOptions options;
  options.hints.tenant = tenant;
  return options;
}

// Completes and publishes a prompt without bytes that anybody reads.
inline Sequence run(Cache& cache, const Tokens& tokens, const std::string& tenant,
                    const PrefixSpace& space = {}) {
  Sequence sequence = cache.open(tokens, space, by(tenant)).value();
  const std::uint64_t start = sequence.length();
  std::vector<float> rows = content::rows_of(tokens, start, tokens.size(), 0);
  const auto view = content::view_of<codec::RowsView>(rows.data(), tokens.size() - start);
  EXPECT_TRUE(sequence.write(0, start, {&view, 1}).is_ok());
  EXPECT_TRUE(sequence.advance(tokens.size() - start).is_ok());
  EXPECT_TRUE(sequence.publish().is_ok());
  return sequence;
}

inline void store(Cache& cache, const Tokens& tokens, const std::string& tenant,
                  const PrefixSpace& space = {}) {
  run(cache, tokens, tenant, space);
}

inline TenantUsage usage(const Cache& cache, const std::string& name) {
  for (const TenantUsage& tenant : cache.tenants()) {
    if (tenant.name == name) return tenant;
  }
  return {};
}

inline std::uint64_t page_bytes(const Cache& cache) { return cache.plan().groups()[0].page_bytes; }

inline std::uint64_t stored(const Cache& cache, const Tokens& tokens,
                            const PrefixSpace& space = {}) {
  return cache.explain(tokens, space)->matched_tokens;
}

}  // namespace kvcache::tenants
