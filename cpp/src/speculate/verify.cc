#include "speculate/verify.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvcache::speculate {

Status VerifyState::check_begin(const sequence::SequenceState& state) {
  const std::uint64_t length = state.length();
  const std::uint64_t waiting = state.tokens().size() - length;
  if (waiting != 1) {
    return Status::invalid_argument(
        "begin_verify: ", waiting, " known tokens have not run, expected 1, the last sampled; ",
        waiting == 0 ? "extend() the sequence by it" : "write and advance() the others first");
  }
  return state.check_nothing_ahead("begin_verify");
}

Status VerifyState::check_tree(const StatePlan& plan, const TokenTree& tree, std::uint64_t drafts) {
  if (tree.nodes() - 1 != drafts) {
    return Status::invalid_argument("begin_verify: the tree has ", tree.nodes(),
                                    " nodes, expected ", drafts, " drafts and the root");
  }
  if (tree.depth() == drafts) return Status::ok();
  for (const Group& group : plan.groups()) {
    if (group.record_tokens == 1) continue;
    return Status::unsupported(
        "begin_verify: rows of a tree are not consecutive, and this model has records pooled over ",
        group.record_tokens, " consecutive positions; verify one path at a time");
  }
  return Status::ok();
}

Status VerifyState::check_strategy(const StatePlan& plan, VerifyStrategy strategy,
                                   std::uint64_t rows) {
  if (strategy == VerifyStrategy::kSteps || !plan.has_fixed_state()) return Status::ok();
  const std::uint64_t most = plan.options().stash_rows;
  if (most == 0) {
    return Status::unsupported(
        "begin_verify: the plan has no carry stash; raise its stash_rows "
        "above 0, or verify by steps");
  }
  if (rows <= most) return Status::ok();
  return Status::invalid_argument("begin_verify: ", rows, " rows, the carry stash holds ", most,
                                  "; verify fewer drafts or raise the plan's stash_rows");
}

VerifyState::VerifyState(const StatePlan& plan, const arena::PoolMap& pools,
                         const sequence::SequenceState& state, std::span<const std::int32_t> drafts,
                         std::optional<TokenTree> tree, VerifyStrategy strategy)
    : plan_(&plan), pool_(pools.snapshots), start_(state.length()), strategy_(strategy) {
  // A tree as deep as it has drafts is one path.
  if (tree && tree->depth() < drafts.size()) tree_ = std::move(tree);
  tokens_.reserve(drafts.size() + 1);
  tokens_.push_back(state.tokens().back());
  tokens_.insert(tokens_.end(), drafts.begin(), drafts.end());
  std::size_t folding = 0;
  for (const StashLayer& layer : plan.stash().layers) folding += layer.components.size();
  if (strategy == VerifyStrategy::kSteps || folding < plan.fixed().size()) want_slots();
}

void VerifyState::release() {
  if (pool_ != nullptr) pool_->release_many(slots_);
  slots_.clear();
}

std::uint64_t VerifyState::position(std::uint64_t row) const {
  return start_ + (tree_ ? static_cast<std::uint64_t>(tree_->depths()[row]) : row);
}

std::uint64_t VerifyState::parent(std::uint64_t row) const {
  return tree_ ? static_cast<std::uint64_t>(tree_->parents()[row]) : row - 1;
}

Status VerifyState::check_rows(const KeptRows& kept) const {
  if (!kept.path.empty() && tree_) {
    return tree_->check_path(kept.path).prefixed("commit: ");
  }
  if (kept.count == 0 || kept.count > rows()) {
    return Status::invalid_argument("commit: accepted must be 1..", rows(), ", got ", kept.count,
                                    kept.count == 0 ? "; rollback() accepts nothing" : "");
  }
  if (tree_) {
    return Status::invalid_argument("commit: the drafts are a tree of ", rows(),
                                    " rows; commit the rows of the accepted path, not how many (",
                                    kept.count, ")");
  }
  for (std::size_t i = 0; i < kept.path.size(); ++i) {
    if (kept.row(i) == i) continue;
    return Status::invalid_argument("commit: path[", i, "] must be ", i,
                                    " where each draft follows the one before it, got ",
                                    kept.path[i]);
  }
  return Status::ok();
}

ItemId VerifyState::take(std::uint64_t row, const FixedComponent& component,
                         const std::byte* live) {
  const std::size_t count = plan_->fixed().size();
  const auto index = static_cast<std::size_t>(&component - plan_->fixed().data());
  if (taken_.empty()) {
    taken_count_.assign(rows(), 0);
    taken_.assign(rows() * count, false);
  }
  const std::size_t at = row * count + index;
  if (!taken_[at]) {
    const bool follows = row > 0 && taken_[parent(row) * count + index];
    const std::byte* from = follows ? pool_->data(slots_[parent(row)]) : live;
    std::memcpy(pool_->data(slots_[row]) + component.offset, from + component.offset,
                component.bytes);
    taken_[at] = true;
    ++taken_count_[row];
  }
  return slots_[row];
}

bool VerifyState::is_taken(const FixedComponent& component) const {
  const std::size_t count = plan_->fixed().size();
  const auto index = static_cast<std::size_t>(&component - plan_->fixed().data());
  for (std::size_t at = index; at < taken_.size(); at += count) {
    if (taken_[at]) return true;
  }
  return false;
}

Status VerifyState::check_taken(std::uint64_t row, const std::vector<bool>& stashed) const {
  const std::vector<FixedComponent>& fixed = plan_->fixed();
  if (by_table_ || pool_ == nullptr) return Status::ok();
  if (!taken_.empty() && taken_count_[row] == fixed.size()) return Status::ok();
  for (std::size_t index = 0; index < fixed.size(); ++index) {
    if (stashed[index] || (!taken_.empty() && taken_[row * fixed.size() + index])) continue;
    return Status::invalid_argument("commit up to row ", row, ": '", fixed[index].name,
                                    "' of layer ", fixed[index].layer, " after row ", row,
                                    " was never taken; fill state(", row, ", ", fixed[index].layer,
                                    ", \"", fixed[index].name, "\") before");
  }
  return Status::ok();
}

void VerifyState::adopt(std::uint64_t row, const std::vector<bool>& stashed,
                        std::byte* live) const {
  if (slots_.empty()) return;
  const std::byte* from = pool_->data(slots_[row]);
  if (strategy_ == VerifyStrategy::kSteps) {
    std::memcpy(live, from, plan_->slot_bytes());
    return;
  }
  for (std::size_t index = 0; index < stashed.size(); ++index) {
    const FixedComponent& tensor = plan_->fixed()[index];
    if (!stashed[index]) std::memcpy(live + tensor.offset, from + tensor.offset, tensor.bytes);
  }
}

}  // namespace kvcache::speculate
