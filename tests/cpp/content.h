// Rows and state that are a function of every token up to their position, as they are in a model: a
// row of another prefix, position or layer can never pass for the right one. For tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kvcache/batch_verify.h"
#include "kvcache/cache.h"
#include "kvcache/verify.h"

namespace kvcache::content {

using Tokens = std::vector<std::int32_t>;

constexpr std::uint64_t kHeads = 2;
constexpr std::uint64_t kWidth = 8;
constexpr std::uint64_t kRow = kHeads * kWidth;
constexpr std::uint64_t kState = 64;
constexpr std::int32_t kPagedLayers = 4;
constexpr std::int32_t kStateLayer = 4;
constexpr const char* kStateName = "state.recurrent";

inline StateDecl keys(std::int32_t layer, std::uint32_t window = 0, bool int8 = false) {
  return {.id = "k" + std::to_string(layer),
          .layer = layer,
          .component = "attention.keys",
          .kind = StateKind::kPagedKv,
          .dtype = int8 ? DType::kI8 : DType::kF16,
          .shape = {kHeads, kWidth},
          .row_scale_bytes = int8 ? 4U : 0U,
          .window = window};
}

// Full, sliding, INT8, and sliding with sinks; and recurrent state.
inline std::vector<StateDecl> decls() {
  StateDecl sinks = keys(3, 5);
  sinks.sinks = 2;
  return {keys(0), keys(1, 6), keys(2, 0, true), sinks,
          StateDecl{.id = "r",
                    .layer = kStateLayer,
                    .component = kStateName,
                    .kind = StateKind::kRecurrent,
                    .dtype = DType::kF32,
                    .shape = {kState},
                    .verify = VerifyRule::kHSteps,
                    .gate = Gate::kElement}};
}

// First position that layer `layer` still sees at `length`; sinks aside.
inline std::uint64_t live_start(std::int32_t layer, std::uint64_t length) {
  const std::uint64_t window = layer == 1 ? 6 : layer == 3 ? 5 : 0;
  return window == 0 || length < window ? 0 : length - (window - 1);
}

inline std::uint32_t mix(std::uint32_t h, std::uint32_t v) {
  return (h ^ v) * 2654435761U + 40503U;
}

inline std::uint32_t prefix_value(const Tokens& tokens, std::uint64_t end) {
  std::uint32_t h = 1;
  for (std::uint64_t i = 0; i < end; ++i) h = mix(h, static_cast<std::uint32_t>(tokens[i]));
  return h;
}

// Small integers with one 127 in each head: both storage formats keep them exactly.
inline std::vector<float> rows_of(const Tokens& tokens, std::uint64_t start, std::uint64_t stop,
                                  std::int32_t layer) {
  std::vector<float> rows;
  for (std::uint64_t p = start; p < stop; ++p) {
    std::uint32_t value = prefix_value(tokens, p + 1);
    for (std::uint64_t i = 0; i < kRow; ++i) {
      value = mix(value, static_cast<std::uint32_t>(layer) + 1);
      rows.push_back(i % kWidth == 0 ? 127.0F : static_cast<float>(value >> 16 & 127) - 63.0F);
    }
  }
  return rows;
}

// Bits of a finite float that is not 0: a fold with gates of 0 stores them as they are.
inline std::vector<std::uint32_t> state_of(const Tokens& tokens, std::uint64_t length) {
  const std::uint32_t bits = (prefix_value(tokens, length) & 0xbfffffffU) | 1U;
  return std::vector<std::uint32_t>(kState, length == 0 ? 0 : bits);
}

// View: codec::RowsView, or codec::MutableRowsView of rows that are not const.
template <typename View, typename Float>
View view_of(Float* data, std::uint64_t tokens) {
  return {.data = data,
          .dtype = DType::kF32,
          .tokens = tokens,
          .heads = kHeads,
          .width = kWidth,
          .token_stride = kRow * 4,
          .head_stride = kWidth * 4};
}

inline void set_state(const StateView& view, const Tokens& tokens, std::uint64_t length) {
  std::memcpy(view.data, state_of(tokens, length).data(), kState * 4);
}

// The inputs of all rows of an open session of a sequence or of a batch, each the last of its path.
template <typename Session>
Status stash_state(Session& session, const std::vector<Tokens>& paths) {
  const std::vector<float> gates(paths.size() * kState, 0.0F);
  std::vector<std::uint32_t> states;
  for (const Tokens& path : paths) {
    const auto state = state_of(path, path.size());
    states.insert(states.end(), state.begin(), state.end());
  }
  const auto view = [&](const void* data) {
    return codec::RowsView{data, DType::kF32, paths.size(), 1, kState, kState * 4, kState * 4};
  };
  StashInputs inputs{.gate = view(gates.data()), .left = {}, .right = view(states.data())};
  return session.stash(kStateLayer, kStateName, inputs);
}

// Writes and completes positions up to `stop`, and leaves the recurrent state as it is.
inline Status complete_rows(Sequence& sequence, std::uint64_t stop) {
  const Tokens tokens = sequence.tokens();
  const std::uint64_t start = sequence.length();
  for (std::int32_t layer = 0; layer < kPagedLayers; ++layer) {
    std::vector<float> rows = rows_of(tokens, start, stop, layer);
    const auto view = view_of<codec::RowsView>(rows.data(), stop - start);
    if (Status status = sequence.write(layer, start, {&view, 1}); !status) return status;
  }
  return sequence.advance(stop - start);
}

// The same, and the state after `stop`, of a sequence that only this thread uses: nobody else may
// copy the state while it is written through its view.
inline Status complete(Sequence& sequence, std::uint64_t stop) {
  if (Status status = complete_rows(sequence, stop); !status) return status;
  auto state = sequence.state(kStateLayer, kStateName);
  if (!state) return state.status();
  set_state(*state, sequence.tokens(), stop);
  return Status::ok();
}

// The tokens of a sequence up to each row of its tree, the root being its last known one.
inline std::vector<Tokens> tokens_by_row(const Tokens& known, std::span<const std::int32_t> drafts,
                                         const TokenTree& tree) {
  std::vector<Tokens> found = {known};
  for (std::size_t row = 1; row < tree.nodes(); ++row) {
    found.push_back(found[static_cast<std::size_t>(tree.parents()[row])]);
    found.back().push_back(drafts[row - 1]);
  }
  return found;
}

// The rows of all these paths in one layer, each the last of its path.
inline std::vector<float> last_rows(const std::vector<Tokens>& paths, std::int32_t layer) {
  std::vector<float> rows;
  for (const Tokens& path : paths) {
    const auto row = rows_of(path, path.size() - 1, path.size(), layer);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

// Runs every row of an open session of a sequence or of a batch. State: (row among all, its path).
template <typename Session, typename State>
Status run_rows(Session& session, const std::vector<Tokens>& paths, const State& state) {
  for (std::int32_t layer = 0; layer < kPagedLayers; ++layer) {
    const std::vector<float> rows = last_rows(paths, layer);
    const auto view = view_of<codec::RowsView>(rows.data(), paths.size());
    if (Status status = session.write(layer, {&view, 1}); !status) return status;
  }
  for (std::size_t row = 0; row < paths.size(); ++row) {
    const Result<StateView> after = state(row);
    if (!after) return after.status();
    if (after->data != nullptr) set_state(*after, paths[row], paths[row].size());
  }
  return Status::ok();
}

// "" when every row that the layers still see, and the state, are right.
inline std::string wrong_bytes(const Sequence& sequence) {
  const Tokens tokens = sequence.tokens();
  const std::uint64_t length = sequence.length();
  for (std::int32_t layer = 0; layer < kPagedLayers; ++layer) {
    const std::uint64_t start = live_start(layer, length);
    std::vector<float> got((length - start) * kRow);
    const auto view = view_of<codec::MutableRowsView>(got.data(), length - start);
    if (Status status = sequence.read(layer, start, {&view, 1}); !status) return status.message();
    if (got != rows_of(tokens, start, length, layer)) return "rows of " + std::to_string(layer);
  }
  const auto state = sequence.state(kStateLayer, kStateName);
  if (!state) return state.status().message();
  const auto want = state_of(tokens, length);
  return std::memcmp(state->data, want.data(), kState * 4) == 0 ? "" : "state";
}

}  // namespace kvcache::content
