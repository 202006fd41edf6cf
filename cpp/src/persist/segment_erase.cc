#include "persist/segment_erase.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>

namespace kvcache::persist {
namespace {

struct DigestHash {
  std::size_t operator()(const Digest& digest) const {
    std::size_t value = 0;
    std::memcpy(&value, digest.data(), sizeof(value));
    return value;
  }
};

// A record of the spaces, and what is known of its path.
struct Node {
  enum class Path {
    kUnknown,  // no run leads to it
    kOther,    // parts from the tokens
    kOn,       // ends before they do
    kUnder,    // begins with all of them
  };
  const Segment* segment = nullptr;
  RecordHeader header;
  std::size_t at_segment = 0;
  std::size_t at_record = 0;
  bool of_tenant = false;
  Path path = Path::kUnknown;
  std::uint64_t common = 0;  // first tokens that are as they would be
  bool goes = false;
};

// The records of chosen spaces as trees: a record's parent is the run whose key it names.
class Paths {
 public:
  Paths(std::vector<Node> nodes, std::span<const std::int32_t> tokens)
      : nodes_(std::move(nodes)), tokens_(tokens) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      children_.emplace(nodes_[i].header.parent, i);
    }
  }

  std::span<const Node> choose() {
    std::set<Digest> roots;  // many prompts have the same
    for (Node& node : nodes_) {
      if (node.header.first != 0) continue;
      compare(node);
      order_.push_back(&node);
      roots.insert(node.header.parent);
    }
    for (std::size_t i = 0; i < order_.size(); ++i) follow(*order_[i]);
    // What goes on is decided before what it continues.
    for (std::size_t i = order_.size(); i-- > 0;) decide(*order_[i]);
    for (const Digest& root : roots) decide_boundaries(root);
    for (Node& node : nodes_) {
      if (node.path == Node::Path::kUnknown || node.path == Node::Path::kUnder) node.goes = true;
      node.goes = node.goes && node.of_tenant;
    }
    return nodes_;
  }

 private:
  void compare(Node& node) {
    const RecordHeader& header = node.header;
    const std::uint64_t wanted = std::min<std::uint64_t>(header.end(), tokens_.size());
    const auto want = tokens_.subspan(header.first, wanted - header.first);
    std::vector<std::int32_t> got(want.size());
    const auto bytes = std::as_writable_bytes(std::span(got));
    // What cannot be read may be anything.
    if (!node.segment->read_bytes(header.tokens_offset(), bytes))
      got.assign(want.begin(), want.end());
    const auto part = std::mismatch(want.begin(), want.end(), got.begin()).first;
    node.common = static_cast<std::uint64_t>(part - want.begin());
    if (node.common < want.size()) {
      node.path = Node::Path::kOther;
    } else {
      node.path = header.end() < tokens_.size() ? Node::Path::kOn : Node::Path::kUnder;
    }
  }

  void follow(const Node& run) {
    if (run.header.kind != RecordKind::kRun || run.header.tokens == 0) return;
    const auto [first, last] = children_.equal_range(run.header.key);
    for (auto at = first; at != last; ++at) {
      Node& child = nodes_[at->second];
      if (child.path != Node::Path::kUnknown) continue;
      if (run.path != Node::Path::kOn) {
        child.path = run.path;
      } else if (child.header.first == run.header.end()) {
        compare(child);
      } else {
        continue;  // no record of ours; it goes with what no run leads to
      }
      order_.push_back(&child);
    }
  }

  // A run on the way goes when nothing is left that continues it.
  void decide(Node& node) {
    if (node.path != Node::Path::kOn || node.header.kind != RecordKind::kRun) return;
    decide_boundaries(node.header.key);
    const auto [first, last] = children_.equal_range(node.header.key);
    node.goes = std::all_of(first, last, [&](const auto& link) { return !stays(link.second); });
  }

  // A boundary on the way stays when something is left that has all its tokens.
  void decide_boundaries(const Digest& parent) {
    const auto [first, last] = children_.equal_range(parent);
    std::uint64_t shared = 0;
    bool any = false;
    for (auto at = first; at != last; ++at) {
      const Node& child = nodes_[at->second];
      if (is_boundary_on(child) || !stays(at->second)) continue;
      any = true;
      shared = std::max(shared, child.common);
    }
    for (auto at = first; at != last; ++at) {
      Node& child = nodes_[at->second];
      if (is_boundary_on(child)) child.goes = !any || shared < child.header.tokens;
    }
  }

  static bool is_boundary_on(const Node& node) {
    return node.path == Node::Path::kOn && node.header.kind == RecordKind::kBoundary;
  }
  bool stays(std::size_t i) const {
    const Node& node = nodes_[i];
    return !node.goes && (node.path == Node::Path::kOther || node.path == Node::Path::kOn);
  }

  std::vector<Node> nodes_;
  const std::span<const std::int32_t> tokens_;
  std::unordered_multimap<Digest, std::size_t, DigestHash> children_;
  std::vector<Node*> order_;  // parents before their children
};

}  // namespace

std::vector<std::vector<std::size_t>> choose_records(std::span<const Listed> segments,
                                                     const TierErasure& erasure) {
  struct Verdict {
    bool space = true;
    bool tenant = true;
  };
  std::map<Digest, Verdict> owners;
  std::vector<Node> nodes;
  for (std::size_t at = 0; at < segments.size(); ++at) {
    const Listed& listed = segments[at];
    for (std::size_t i = 0; i < listed.records.size(); ++i) {
      const RecordHeader& header = listed.records[i];
      if (header.kind == RecordKind::kErased) continue;
      auto known = owners.find(header.owner);
      if (known == owners.end()) {
        Verdict verdict;
        if (const auto owner = listed.segment->read_owner(header)) {
          verdict = {erasure.space(*owner), erasure.tenant(*owner)};
          known = owners.emplace(header.owner, verdict).first;
        }
      }
      const Verdict verdict = known == owners.end() ? Verdict() : known->second;
      if (!verdict.space) continue;
      Node node;
      node.segment = listed.segment.get();
      node.header = header;
      node.at_segment = at;
      node.at_record = i;
      node.of_tenant = verdict.tenant;
      nodes.push_back(node);
    }
  }
  std::vector<std::vector<std::size_t>> chosen(segments.size());
  const bool all = erasure.tokens.empty();
  Paths paths(std::move(nodes), erasure.tokens);
  for (const Node& node : paths.choose()) {
    if (all ? node.of_tenant : node.goes) chosen[node.at_segment].push_back(node.at_record);
  }
  return chosen;
}

}  // namespace kvcache::persist
