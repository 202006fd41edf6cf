// How far a policy may depart from LRU. What LRU would have and the policy evicted is owed: at
// worst LRU finds all of it. So a policy that is `lead` hits before LRU, owes `debt` blocks, and
// from here on evicts only what LRU would not have either, ends no more than debt - lead hits
// behind LRU. Lending is allowed while
//   lead - risk * debt >= -allowance,
// where the risk is the share of what was owed that LRU did find: all of it before there is
// evidence, and again as soon as LRU finds what is owed.
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvcache::evict {

class LruDebt {
 public:
  // Blocks were evicted that LRU would have.
  void lend(std::uint64_t blocks) { owed_ += blocks; }
  // Of what was owed: LRU found it, or lost it unused.
  void found(std::uint64_t blocks) { end(blocks, static_cast<double>(blocks)); }
  void expired(std::uint64_t blocks) { end(blocks, 0); }
  // A request for so many blocks has ended; what the policy and LRU found of them.
  void request(std::uint64_t blocks, std::uint64_t ours, std::uint64_t lru) {
    constexpr double kKeep = 1 - 1.0 / 8000;
    lead_ = lead_ * kKeep + static_cast<double>(ours) - static_cast<double>(lru);
    lately_ = lately_ * kKeep + static_cast<double>(blocks);
  }

  bool allows_another() const {
    constexpr double kAllowance = 0.003;  // of the blocks asked for
    return lead_ - risk() * static_cast<double>(owed_ + 1) >= -kAllowance * lately_;
  }

 private:
  double risk() const {
    constexpr double kPrior = 150;  // blocks found, as if seen before
    constexpr double kLeast = 0.1;
    return std::max({recent_risk_, (found_ + kPrior) / (ended_ + kPrior), kLeast});
  }
  void end(std::uint64_t blocks, double found) {
    constexpr double kLong = 5000;  // half-lives, in blocks ended
    constexpr double kShort = 16;
    if (blocks == 0) return;
    const auto ended = static_cast<double>(blocks);
    owed_ -= blocks;
    const double keep = std::exp2(-ended / kLong);
    found_ = found_ * keep + found;
    ended_ = ended_ * keep + ended;
    const double half_life = std::max(kShort, static_cast<double>(owed_) / 10);
    const double keep_recent = std::exp2(-ended / half_life);
    recent_risk_ = recent_risk_ * keep_recent + (1 - keep_recent) * found / ended;
  }

  std::uint64_t owed_ = 0;
  double found_ = 0;  // blocks, and all that ended
  double ended_ = 0;
  double recent_risk_ = 0;
  double lead_ = 0;    // blocks found beyond LRU lately
  double lately_ = 0;  // blocks asked for lately
};

}  // namespace kvcache::evict
