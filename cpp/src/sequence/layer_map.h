// Finds, for a layer of the model, the components it keeps: which group and where in its page,
// or where in the slot. Thread safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/state_plan.h"
#include "kvcache/status.h"

namespace kvcache::sequence {

struct PagedRef {
  std::size_t group = 0;
  const PagedComponent* component = nullptr;
};

// A component whose rows are records, each pooled over several positions; written by its name.
struct Stream {
  std::int32_t layer = -1;
  std::string_view name;
  PagedRef ref;
  std::uint32_t record_tokens = 1;
  std::size_t index = 0;  // among the streams of the model
};

class LayerMap {
 public:
  explicit LayerMap(const StatePlan& plan);

  // Components with a row for each position in declared order: keys then values, or latent then
  // rotary keys. kInvalidArgument: the layer keeps none; the message says which layers do.
  Result<const std::vector<PagedRef>*> paged(std::int32_t layer) const;
  // The groups of those components of all layers, each once. REQUIRES: paged(layer) is ok for each.
  std::vector<std::size_t> groups(std::span<const std::int32_t> layers) const;
  // kNotFound: no such stream; the message lists what the layer has.
  Result<const Stream*> stream(std::int32_t layer, std::string_view name) const;
  const std::vector<Stream>& streams() const { return streams_; }
  // kNotFound: no such tensor; the message lists what the layer has.
  Result<const FixedComponent*> fixed(std::int32_t layer, std::string_view name) const;

  // Index of a layer among those with pages, 0..paged_layers()-1. REQUIRES: paged(layer) is ok.
  std::size_t paged_index(std::int32_t layer) const { return index_.at(layer); }
  std::size_t paged_layers() const { return index_.size(); }
  std::int32_t paged_layer(std::size_t index) const;  // the layer of that index
  const std::map<std::int32_t, std::vector<PagedRef>>& all_paged() const { return paged_; }

 private:
  const StatePlan& plan_;
  std::map<std::int32_t, std::vector<PagedRef>> paged_;
  std::vector<Stream> streams_;
  std::map<std::int32_t, std::size_t> index_;
};

}  // namespace kvcache::sequence
