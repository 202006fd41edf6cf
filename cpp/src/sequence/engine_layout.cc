#include "kvcache/engine_layout.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace kvcache {
namespace {

constexpr std::array<std::pair<std::string_view, EngineAxis>, 8> kWords = {{
    {"1", EngineAxis::kOne},
    {"layers", EngineAxis::kLayers},
    {"kv", EngineAxis::kKv},
    {"blocks", EngineAxis::kBlocks},
    {"block", EngineAxis::kBlock},
    {"tokens", EngineAxis::kTokens},
    {"heads", EngineAxis::kHeads},
    {"dim", EngineAxis::kDim},
}};

std::string_view word_of(EngineAxis axis) {
  return std::find_if(kWords.begin(), kWords.end(),
                      [&](const auto& known) { return known.second == axis; })
      ->first;
}

std::optional<EngineAxis> axis_of(std::string_view word) {
  for (const auto& [known, axis] : kWords) {
    if (known == word) return axis;
  }
  return std::nullopt;
}

template <typename... Parts>
Status wrong(std::string_view axes, const Parts&... parts) {
  return Status::invalid_argument("layout \"", axes, "\": ", parts...);
}

// A word or a parenthesis; `at` moves past it.
std::string_view next_token(std::string_view axes, std::size_t& at) {
  const std::size_t first = at++;
  if (axes[first] == '(' || axes[first] == ')') return axes.substr(first, 1);
  while (at < axes.size() && axes[at] != ' ' && axes[at] != '(' && axes[at] != ')') ++at;
  return axes.substr(first, at - first);
}

Status check(const EngineLayout& layout, std::string_view axes) {
  if (!layout.has(EngineAxis::kDim)) return wrong(axes, "one axis must be dim");
  const bool tokens = layout.has(EngineAxis::kTokens);
  const bool blocks = layout.has(EngineAxis::kBlocks);
  if (tokens == blocks || blocks != layout.has(EngineAxis::kBlock)) {
    return wrong(axes, "positions are either tokens, or blocks together with block");
  }
  for (const auto& words : layout.axes()) {
    if (std::count_if(words.begin(), words.end(), is_position) > 1) {
      return wrong(axes, "blocks and block cannot share an axis; call it tokens and give a ",
                   "slot_mapping");
    }
  }
  return Status::ok();
}

}  // namespace

Result<EngineLayout> EngineLayout::parse(std::string_view axes) {
  constexpr std::size_t kLongest = 256;
  if (axes.size() > kLongest) {
    return Status::invalid_argument("layout: ", axes.size(), " characters, at most ", kLongest);
  }
  EngineLayout layout;
  bool shared = false;
  for (std::size_t at = 0; at < axes.size();) {
    if (axes[at] == ' ') {
      ++at;
      continue;
    }
    const std::string_view word = next_token(axes, at);
    if (word == "(" || word == ")") {
      if (shared == (word == "(")) return wrong(axes, "parentheses do not match");
      shared = word == "(";
      if (shared) layout.axes_.emplace_back();
      if (!shared && layout.axes_.back().empty()) return wrong(axes, "empty parentheses");
      continue;
    }
    const auto axis = axis_of(word);
    if (!axis) {
      return wrong(axes, "unknown word '", word,
                   "'; known: layers, kv, blocks, block, tokens, heads, dim, 1");
    }
    if (*axis != EngineAxis::kOne && layout.has(*axis)) {
      return wrong(axes, "'", word, "' is there twice");
    }
    if (!shared) layout.axes_.emplace_back();
    layout.axes_.back().push_back(*axis);
  }
  if (shared) return wrong(axes, "parentheses do not match");
  if (Status status = check(layout, axes); !status) return status;
  return layout;
}

bool EngineLayout::has(EngineAxis axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const auto& words) {
    return std::find(words.begin(), words.end(), axis) != words.end();
  });
}

std::string EngineLayout::text() const {
  std::string text;
  for (const auto& words : axes_) {
    std::string inner;
    for (const EngineAxis axis : words) {
      inner += (inner.empty() ? "" : " ") + std::string(word_of(axis));
    }
    if (words.size() > 1) inner = "(" + inner + ")";
    text += (text.empty() ? "" : " ") + inner;
  }
  return text;
}

}  // namespace kvcache
