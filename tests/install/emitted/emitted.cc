// A server whose model came as a header: no JSON at run time. Prints what the layout says, twice:
// from the header's constants and from the plan and the cache that the library makes of it.
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include "hybrid.h"
#include "kvcache/cache.h"
#include "kvcache/version.h"

namespace {

namespace layout = hybrid_layout;

// Constants, and so usable where only constants are.
static_assert(layout::kDeclarations.front().layer == 0);
static_assert(layout::kBlockTokens % 16 == 0);
static_assert(layout::kFingerprint.starts_with("sha256:"));

void print(const char* who, std::string_view fingerprint, std::uint64_t block, std::uint64_t slot,
           std::uint64_t sequence, std::uint64_t memory) {
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf("%s %.*s %llu %llu %llu %llu\n", who, static_cast<int>(fingerprint.size()),
              fingerprint.data(), number(block), number(slot), number(sequence), number(memory));
}

int fail(std::string_view what) {
  std::printf("%.*s\n", static_cast<int>(what.size()), what.data());
  return 1;
}

}  // namespace

int main() {
  print("header", layout::kFingerprint, layout::kBlockBytes, layout::kSlotBytes,
        layout::kSequenceBytes, layout::kMemoryBytes);
  auto plan = layout::plan();
  if (!plan) return fail(plan.status().message());
  const auto sequence_bytes = plan->sequence_bytes(layout::kSequenceTokens, 1);
  if (!sequence_bytes) return fail(sequence_bytes.status().message());
  print("library", plan->fingerprint(), plan->block_bytes(), plan->slot_bytes(), *sequence_bytes,
        plan->options().memory_bytes);

  for (std::size_t i = 0; i < layout::kGroups.size(); ++i) {
    const kvcache::Group& group = plan->groups().at(i);
    const layout::Group& said = layout::kGroups[i];
    if (said.page_bytes != group.page_bytes || said.token_bytes != group.token_bytes ||
        said.window != group.window || said.components != group.components.size()) {
      return fail("the header's groups are not those of the plan");
    }
  }
  kvcache::PlanOptions without_memory = layout::options();
  without_memory.memory_bytes = 0;
  if (layout::plan(without_memory)) return fail("a plan without memory was made");

  kvcache::CacheOptions options;
  options.costs = layout::kCosts;
  const auto cache = kvcache::Cache::create(*std::move(plan), options);
  if (!cache) return fail(cache.status().message());
  // As many as were planned, and not one more.
  const std::vector<std::int32_t> prompt{1, 2, 3};
  std::vector<kvcache::Sequence> sequences;
  for (std::uint32_t i = 0; i < layout::kSequences; ++i) {
    auto opened = (*cache)->open(prompt, {});
    if (!opened) return fail(opened.status().message());
    sequences.push_back(*std::move(opened));
  }
  if ((*cache)->open(prompt, {})) return fail("one sequence too many was opened");
  std::puts("opened");
  return 0;
}
