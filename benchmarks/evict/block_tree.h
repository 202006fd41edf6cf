// A radix tree over block numbers that stores nothing: the smallest index that a policy can serve.
// Tokens of a block are a function of its number, so that policies see what they would see.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "evict/policy.h"

namespace kvcache::bench {

struct BlockRequest {
  std::uint64_t now_ms = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::vector<std::int32_t> blocks;
  std::uint32_t hint = 0;  // as Completion has it
};

class BlockTree {
 public:
  BlockTree(evict::Policy& policy, std::uint64_t block_tokens)
      : policy_(policy), block_tokens_(block_tokens) {
    nodes_.emplace_back();
    policy_.add_root(0, "");
  }

  // Serves a request and returns the blocks it found stored.
  std::uint64_t serve(const BlockRequest& request) {
    const std::vector<std::int32_t>& blocks = request.blocks;
    tokens_of(request);
    ++clock_;
    std::uint32_t at = 0;
    std::uint64_t found = 0;
    std::uint64_t partial = 0;  // of the last node's blocks, where it goes on otherwise
    while (found < blocks.size()) {
      const auto edge = edges_.find(key(at, blocks[found]));
      if (edge == edges_.end()) break;
      const std::uint32_t child = edge->second;
      std::uint64_t same = 1;
      while (same < nodes_[child].blocks.size() && found + same < blocks.size() &&
             nodes_[child].blocks[same] == blocks[found + same]) {
        ++same;
      }
      at = child;
      found += same;
      if (same < nodes_[child].blocks.size()) {
        partial = same;
        break;
      }
    }
    if (policy_.learns() && found > 0) {
      policy_.arrive({request.now_ms, at, position(found, request)});
    }
    if (partial > 0) at = split(at, partial);
    if (found < blocks.size()) at = add(at, found, blocks);
    for (std::uint32_t node = at; node != 0; node = nodes_[node].parent) {
      policy_.use(evict::run_unit(node), clock_);
    }
    if (policy_.learns()) {
      policy_.complete({request.now_ms, at, tokens_.size(), request.prompt_tokens,
                        request.output_tokens, request.hint, false});
    }
    return found;
  }

  // Evicts one block; false when there is none.
  bool evict() {
    const auto victim = policy_.victim([](evict::Unit) { return true; });
    if (!victim) return false;
    Node& node = nodes_[victim->id];
    --stored_;
    if (node.blocks.size() > 1) {
      node.blocks.pop_back();
      policy_.shrink_run(victim->id, (node.start + node.blocks.size()) * block_tokens_);
      return true;
    }
    policy_.erase(*victim);
    policy_.shrink_run(victim->id, node.start * block_tokens_);
    edges_.erase(key(node.parent, node.blocks.front()));
    const std::uint32_t parent = node.parent;
    node = Node();
    free_.push_back(victim->id);
    if (--nodes_[parent].children == 0 && parent != 0) policy_.insert(evict::run_unit(parent));
    return true;
  }

  std::uint64_t stored() const { return stored_; }

 private:
  struct Node {
    std::uint32_t parent = 0;
    std::uint32_t children = 0;
    std::uint64_t start = 0;  // blocks before it
    std::vector<std::int32_t> blocks;
  };

  static std::uint64_t key(std::uint32_t node, std::int32_t block) {
    return std::uint64_t{node} << 32 | static_cast<std::uint32_t>(block);
  }
  std::uint64_t position(std::uint64_t blocks, const BlockRequest& request) const {
    return std::min(blocks * block_tokens_, request.prompt_tokens);
  }
  void tokens_of(const BlockRequest& request) {
    tokens_.clear();
    for (const std::int32_t block : request.blocks) {
      const auto first = static_cast<std::uint32_t>(block) * 512U;
      for (std::uint32_t i = 0; i < block_tokens_; ++i) {
        tokens_.push_back(static_cast<std::int32_t>(first + i));
      }
    }
    tokens_.resize(std::min<std::size_t>(tokens_.size(), request.prompt_tokens));
  }
  std::uint32_t make_node() {
    if (free_.empty()) {
      nodes_.emplace_back();
      return static_cast<std::uint32_t>(nodes_.size() - 1);
    }
    const std::uint32_t id = free_.back();
    free_.pop_back();
    return id;
  }
  std::uint32_t split(std::uint32_t id, std::uint64_t blocks) {
    const std::uint32_t upper_id = make_node();
    Node& lower = nodes_[id];
    Node& upper = nodes_[upper_id];
    const auto cut = lower.blocks.begin() + static_cast<std::ptrdiff_t>(blocks);
    upper.parent = lower.parent;
    upper.children = 1;
    upper.start = lower.start;
    upper.blocks.assign(lower.blocks.begin(), cut);
    lower.blocks.erase(lower.blocks.begin(), cut);
    lower.start += blocks;
    lower.parent = upper_id;
    edges_[key(upper.parent, upper.blocks.front())] = upper_id;
    edges_[key(upper_id, lower.blocks.front())] = id;
    policy_.split_run(upper_id, id, lower.start * block_tokens_);
    return upper_id;
  }
  std::uint32_t add(std::uint32_t parent, std::uint64_t found,
                    const std::vector<std::int32_t>& blocks) {
    const std::uint32_t id = make_node();
    if (parent != 0 && nodes_[parent].children == 0) policy_.erase(evict::run_unit(parent));
    ++nodes_[parent].children;
    Node& node = nodes_[id];
    node.parent = parent;
    node.start = found;
    node.blocks.assign(blocks.begin() + static_cast<std::ptrdiff_t>(found), blocks.end());
    stored_ += node.blocks.size();
    edges_[key(parent, node.blocks.front())] = id;
    policy_.add_run(id, parent, tokens_, found * block_tokens_, clock_);
    policy_.insert(evict::run_unit(id));
    return id;
  }

  evict::Policy& policy_;
  const std::uint64_t block_tokens_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<std::int32_t> tokens_;
  std::uint64_t stored_ = 0;
  std::uint64_t clock_ = 0;
};

}  // namespace kvcache::bench
