// Rows of a prompt cache on their way into pages: copied where file and cache store them alike,
// converted where they do not.
// Thread safety: RowReader is thread-compatible.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "kvcache/state_plan.h"
#include "kvcache/status.h"
#include "persist/files.h"
#include "persist/prompt_cache.h"
#include "persist/shards.h"

namespace kvcache::persist {

// `plan` with every floating row stored in the one other format that gives this fingerprint; null:
// none does.
Result<std::shared_ptr<const StatePlan>> plan_stored_otherwise(const StatePlan& plan,
                                                               std::string_view fingerprint);

// `shape`, which is of the groups of `from`, for those of `to`: the same declarations, in another
// storage, and so in another order.
PrefixShape shape_of(const PrefixShape& shape, const StatePlan& from, const StatePlan& to);

// Reads the arrays of one shard, in file order, into pages of `to`. `from` and `shape` are those of
// the file.
class RowReader {
 public:
  RowReader(const StatePlan& from, const PrefixShape& shape, const StatePlan& to,
            const PrefixBytes& destination);

  // The rows or the scales of a component. kNonFinite: INT8 cannot hold them. Otherwise as
  // ChecksumReader::read().
  Status read(const ArraySpec& array, ChecksumReader& file);

 private:
  struct Home {  // of a component in `to`
    std::size_t group = 0;
    const PagedComponent* part = nullptr;
  };

  Home home(const PagedComponent& part) const;
  Status convert(const ArraySpec& array, const Home& to, ChecksumReader& file);

  const StatePlan& from_;
  const PrefixShape& shape_;
  const StatePlan& to_;
  const PrefixBytes& destination_;
  std::map<std::uint32_t, std::vector<float>> scales_;  // by declaration, until their codes come
  std::vector<std::byte> rows_;                         // of one page, as the file has them
};

}  // namespace kvcache::persist
