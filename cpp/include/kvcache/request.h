// What a caller may say about a request, for eviction to learn from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvcache {

// Known when a request arrives. Requests that agree in all fields are learned about together; the
// first dozen kinds are told apart, further ones share a few places.
struct RequestHints {
  std::string tenant;
  std::string kind;                      // "chat", "tool", ...: what kind of turn
  std::optional<double> expected_reuse;  // probability of 0..1 that the request is continued

  bool operator==(const RequestHints&) const = default;
};

struct OpenOptions {
  RequestHints hints;
  // The caller's clock, for replays: 0 or more, never backwards. Without it, a steady clock.
  std::optional<std::uint64_t> now_ms;
  // How long what the sequence publishes is found: milliseconds from publish(), and from each later
  // hit. A prefix that several publish lives as long as the longest says. Without it,
  // CacheOptions::ttl_ms; kForever: until it is evicted.
  std::optional<std::uint64_t> ttl_ms = {};
};

struct CloseOptions {
  // Positions decoded; without it, those past the prompt. For a ledger that runs prompts only.
  std::optional<std::uint64_t> output_tokens;
  bool session_closed = false;  // nobody will continue it
  std::optional<std::uint64_t> now_ms;
};

// Of computing one position: `per_token`, and `per_position` for each position before it. Without
// it every token costs the same.
struct CostModel {
  double flops_per_token = 1.0;
  double flops_per_token_per_position = 0.0;
};

}  // namespace kvcache
