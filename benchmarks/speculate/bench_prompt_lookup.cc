// Prompt lookup from C++: nanoseconds for each decoded token (one new token indexed, one lookup of
// the longest of 1..3 tokens, earliest occurrence) against a scan of the history by the same rule.
//   bench_prompt_lookup [steps]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

#include "kvcache/prompt_lookup.h"

namespace {

using Ids = std::vector<std::int32_t>;
using Tokens = std::span<const std::int32_t>;

constexpr std::size_t kLeast = 1;
constexpr std::size_t kMost = 3;
constexpr std::size_t kDrafts = 8;

Ids random_text(std::size_t tokens) {
  std::mt19937 rng(0);
  Ids ids(tokens);
  for (auto& id : ids) id = static_cast<std::int32_t>(rng() % 50'000);
  return ids;
}

// A page of 500 tokens said again and again, with one token in twenty another one.
Ids repetitive_text(std::size_t tokens) {
  std::mt19937 rng(0);
  const Ids page = random_text(500);
  Ids ids(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    ids[i] = rng() % 20 == 0 ? static_cast<std::int32_t>(rng() % 50'000) : page[i % page.size()];
  }
  return ids;
}

// One pass over the history that extends each place where the last token stood to the left.
std::size_t scan(Tokens history, std::span<std::int32_t> drafts) {
  const std::size_t size = history.size();
  std::size_t best = 0;
  std::size_t found = 0;
  for (std::size_t end = 1; end < size && best < kMost; ++end) {
    std::size_t equal = 0;
    while (equal < std::min(kMost, end) && history[end - 1 - equal] == history[size - 1 - equal]) {
      ++equal;
    }
    if (equal > best && equal >= kLeast) {
      best = equal;
      found = end;
    }
  }
  if (best == 0) return 0;
  const std::size_t count = std::min(drafts.size(), size - found);
  std::copy_n(history.begin() + static_cast<std::ptrdiff_t>(found), count, drafts.begin());
  return count;
}

template <typename Work>
double nanoseconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

template <typename T>
T value_of(kvcache::Result<T> result) {
  if (result) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}

void measure(const char* name, const Ids& text, std::size_t history) {
  const auto index =
      value_of(kvcache::PromptLookupIndex::create({.min_match = kLeast,
                                                   .max_match = kMost,
                                                   .max_drafts = kDrafts,
                                                   .history_tokens = 2 * text.size(),
                                                   .occurrence = kvcache::Occurrence::kEarliest}));
  const double prompt = nanoseconds([&] {
    if (!index->observe(Tokens(text).first(history))) std::exit(1);
  });
  std::vector<double> ours;
  std::vector<double> scans;
  for (std::size_t known = history + 1; known < text.size(); ++known) {
    const Tokens tokens = Tokens(text).first(known);
    Ids mine(kDrafts);
    Ids theirs(kDrafts);
    ours.push_back(nanoseconds([&] {
      if (!index->observe(tokens)) std::exit(1);
      mine.resize(value_of(index->find(tokens, mine)));
    }));
    scans.push_back(nanoseconds([&] { theirs.resize(scan(tokens, theirs)); }));
    if (mine != theirs) {
      std::fprintf(stderr, "the proposals differ at %zu tokens\n", known);
      std::exit(1);
    }
  }
  std::printf("| %zuk | %s | %.0f ns | %.0f ns | %.0f | %.0f ns | %.1f MB |\n", history >> 10, name,
              median(ours), median(scans), median(scans) / median(ours),
              prompt / static_cast<double>(history), static_cast<double>(index->bytes()) / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  const long steps = argc > 1 ? std::atol(argv[1]) : 2000;
  if (steps < 2) return 2;
  std::printf("| history | text | ours | scan | scan / ours | prompt, a token | memory |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  for (const std::size_t history : {std::size_t{8} << 10, std::size_t{128} << 10}) {
    const std::size_t tokens = history + static_cast<std::size_t>(steps);
    measure("random", random_text(tokens), history);
    measure("repetitive", repetitive_text(tokens), history);
  }
}
