// How far a policy may depart from LRU. What LRU would have and the policy evicted is owed: at
// worst LRU finds all of it. So a policy that is `lead` hits before LRU, owes `debt` blocks, and
// from here on evicts only what LRU would not have either, ends no more than debt - lead hits
// behind LRU. Lending is allowed while
//   lead - risk * debt >= -allowance,
// where the risk is the share that LRU finds of what the policy would evict. That is seen without
// evicting it, so nothing has to be staked to learn it: the risk is 1 until thousands of blocks
// were seen, 1 again as soon as LRU finds what is owed, and high for long after a time in which
// LRU found much.
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvcache::evict {

class LruDebt {
 public:
  // Blocks were evicted that LRU would have; of these, some were used, or LRU lost them.
  void lend(std::uint64_t blocks) { owed_ += blocks; }
  void repay(std::uint64_t blocks) { owed_ -= blocks; }
  // Of what the policy evicted, or would have, LRU found blocks, or lost them unused.
  void found(std::uint64_t blocks) { end(blocks, static_cast<double>(blocks)); }
  void expired(std::uint64_t blocks) { end(blocks, 0); }
  // A request for so many blocks has ended; what the policy and LRU found of them, and how many
  // LRU has.
  void request(std::uint64_t blocks, std::uint64_t ours, std::uint64_t lru, std::uint64_t lru_has) {
    constexpr double kKeep = 1 - 1.0 / 8000;
    lead_ = lead_ * kKeep + static_cast<double>(ours) - static_cast<double>(lru);
    lately_ = lately_ * kKeep + static_cast<double>(blocks);
    lru_blocks_ = static_cast<double>(lru_has);
  }

  bool allows_another() const {
    constexpr double kAllowance = 0.003;  // of the blocks asked for
    return lead_ - risk() * static_cast<double>(owed_ + 1) >= -kAllowance * lately_;
  }

 private:
  // The share found of the last blocks that ended.
  struct Share {
    double value = 0;
    void add(double blocks, double found, double half_life) {
      const double keep = std::exp2(-blocks / half_life);
      value = value * keep + (1 - keep) * found / blocks;
    }
  };

  double risk() const {
    constexpr double kEvidence = 4000;  // blocks
    constexpr double kLeast = 0.03;
    if (ended_ < kEvidence) return 1;
    return std::max({latest_.value, highest_, found_ / ended_, kLeast});
  }
  void end(std::uint64_t count, double found) {
    constexpr double kLong = 20000;  // half-lives, in blocks ended
    constexpr double kShort = 16;
    if (count == 0) return;
    const auto blocks = static_cast<double>(count);
    const double keep = std::exp2(-blocks / kLong);
    found_ = found_ * keep + found;
    ended_ = ended_ * keep + blocks;
    latest_.add(blocks, found, std::max(kShort, static_cast<double>(owed_) / 10));
    turnover_.add(blocks, found, std::max(kShort, lru_blocks_ / 4));
    highest_ = std::max(highest_ * keep, turnover_.value);
  }

  std::uint64_t owed_ = 0;
  double found_ = 0;  // blocks, and all that ended
  double ended_ = 0;
  Share latest_;    // while a share of the debt ends
  Share turnover_;  // while LRU takes a share of its blocks anew
  double highest_ = 0;
  double lead_ = 0;    // blocks found beyond LRU lately
  double lately_ = 0;  // blocks asked for lately
  double lru_blocks_ = 0;
};

}  // namespace kvcache::evict
