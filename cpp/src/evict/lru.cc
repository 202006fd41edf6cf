// Least recently used, over run tails and snapshots together. Of equal age the run tail goes first:
// without its last blocks a path still serves its shallower snapshots.
#include "evict/lru.h"

#include <set>
#include <tuple>

namespace kvcache::evict {
namespace {

struct OldestFirst {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::tie(a.last_access, a.kind, a.id) < std::tie(b.last_access, b.kind, b.id);
  }
};

class Lru final : public Policy {
 public:
  std::string_view name() const override { return "lru"; }
  void insert(const Candidate& candidate) override { order_.insert(candidate); }
  void erase(const Candidate& candidate) override { order_.erase(candidate); }
  std::optional<Candidate> victim() const override {
    if (order_.empty()) return std::nullopt;
    return *order_.begin();
  }

 private:
  std::set<Candidate, OldestFirst> order_;
};

}  // namespace

std::unique_ptr<Policy> make_lru() { return std::make_unique<Lru>(); }

}  // namespace kvcache::evict
