#include "sequence/layer_map.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace kvcache::sequence {

LayerMap::LayerMap(const StatePlan& plan) : plan_(plan) {
  for (std::size_t group = 0; group < plan.groups().size(); ++group) {
    const std::uint32_t record_tokens = plan.groups()[group].record_tokens;
    for (const PagedComponent& component : plan.groups()[group].components) {
      if (record_tokens == 1) {
        paged_[component.layer].push_back({group, &component});
      } else {
        streams_.push_back({component.layer,
                            plan.decls()[component.decl].component,
                            {group, &component},
                            record_tokens,
                            streams_.size()});
      }
    }
  }
  for (auto& [layer, refs] : paged_) {
    std::sort(refs.begin(), refs.end(), [](const PagedRef& a, const PagedRef& b) {
      return a.component->decl < b.component->decl;
    });
    index_.emplace(layer, index_.size());
  }
}

Result<const std::vector<PagedRef>*> LayerMap::paged(std::int32_t layer) const {
  const auto found = paged_.find(layer);
  if (found != paged_.end()) return &found->second;
  std::string known;
  for (const auto& [key, unused] : paged_) {
    known += (known.empty() ? "" : ", ") + std::to_string(key);
  }
  return Status::invalid_argument(
      "layer ", layer, " keeps no pages; layers that do: ", known.empty() ? "none" : known);
}

std::vector<std::size_t> LayerMap::groups(std::span<const std::int32_t> layers) const {
  std::vector<std::size_t> groups;
  for (const std::int32_t layer : layers) {
    for (const PagedRef& ref : paged_.at(layer)) {
      if (std::find(groups.begin(), groups.end(), ref.group) == groups.end()) {
        groups.push_back(ref.group);
      }
    }
  }
  return groups;
}

std::int32_t LayerMap::paged_layer(std::size_t index) const {
  return std::next(index_.begin(), static_cast<std::ptrdiff_t>(index))->first;
}

Result<const Stream*> LayerMap::stream(std::int32_t layer, std::string_view name) const {
  std::string known;
  for (const Stream& stream : streams_) {
    if (stream.layer != layer) continue;
    if (stream.name == name) return &stream;
    known += (known.empty() ? "" : ", ") + std::string(stream.name);
  }
  return Status::not_found("layer ", layer, " keeps no records of '", name,
                           "'; it keeps: ", known.empty() ? "no pooled state" : known);
}

Result<const FixedComponent*> LayerMap::fixed(std::int32_t layer, std::string_view name) const {
  std::string known;
  for (const FixedComponent& component : plan_.fixed()) {
    if (component.layer != layer) continue;
    if (component.name == name) return &component;
    known += (known.empty() ? "" : ", ") + component.name;
  }
  return Status::not_found("layer ", layer, " keeps no '", name,
                           "'; it keeps: ", known.empty() ? "no fixed-size state" : known);
}

}  // namespace kvcache::sequence
