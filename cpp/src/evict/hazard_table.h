// How soon things of a class are used again, and what keeping them is worth. Time since the last
// use is cut into buckets that grow by sqrt(2). For each class and bucket the table counts how much
// entered it and how much was used again in it; from these hazards follows a price: the most uses
// for each second of keeping that one can still get (the Gittins index of an interval).
// Thread safety: thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache::evict {

inline constexpr int kAgeBuckets = 36;
inline constexpr int kLastBucket = kAgeBuckets - 1;  // beyond 9 hours: worth nothing

// Age in ms at which bucket `b` begins: 0, then 250 times powers of sqrt(2).
const std::array<double, kAgeBuckets>& age_edges();

class HazardTable {
  using Row = std::array<double, kAgeBuckets>;

  template <typename Table>
  static auto& cell(Table& table, int cls, int bucket) {
    return table[static_cast<std::size_t>(cls)][static_cast<std::size_t>(bucket)];
  }

 public:
  // A class is smoothed by all classes with its `base` (kNoBase: not so), those by all with its
  // `level`, and those by the whole table.
  struct Parents {
    std::uint16_t base;
    std::uint16_t level;
  };
  static constexpr std::uint16_t kNoBase = UINT16_MAX;
  explicit HazardTable(std::span<const Parents> parents);

  void add_classes(std::span<const Parents> parents);
  int classes() const { return static_cast<int>(parents_.size()); }
  void enter(int cls, int bucket, double weight) { cell(entered_, cls, bucket) += weight; }
  void reuse(int cls, int bucket, double weight) { cell(reused_, cls, bucket) += weight; }
  // Uses for each second, from an age in `bucket` on.
  double price(int cls, int bucket) const { return cell(prices_, cls, bucket); }
  // Computes the prices anew and lets what was counted fade: half of it in `half_life` calls.
  void reprice(double half_life);

 private:
  static void price_row(const Row& hazard, Row& prices);

  std::vector<Parents> parents_;
  std::vector<Row> reused_, entered_, prices_;
};

}  // namespace kvcache::evict
