#include "persist/shards.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "base/checked.h"
#include "persist/json.h"

namespace kvcache::persist {
namespace {

static_assert(std::endian::native == std::endian::little, "files hold the memory's own bytes");

// Version 1 had a file for each layer, and one of tokens.
std::string layer_file(std::int32_t layer) {
  if (layer < 0) return "shared.safetensors";
  char name[40];
  std::snprintf(name, sizeof name, "layer-%05d.safetensors", layer);
  return name;
}

std::string array_name(std::int32_t layer, const std::string& component) {
  return (layer < 0 ? "shared." : "layers." + std::to_string(layer) + '.') + component;
}

Status set_bytes(ArraySpec& array) {
  std::uint64_t bytes = dtype_bytes(array.dtype);
  for (const std::uint64_t axis : array.shape) {
    const auto product = checked_mul(bytes, axis);
    if (!product) return Status::corruption(array.name, ": its size does not fit 64 bits");
    bytes = *product;
  }
  array.bytes = bytes;
  return Status::ok();
}

void add_group(const StatePlan& plan, std::size_t index, const PrefixShape& shape,
               std::map<std::int32_t, std::vector<ArraySpec>>& layers) {
  const Group& group = plan.groups()[index];
  const std::uint64_t count =
      shape.sinks[index] + group.rows(shape.tokens) - group.rows(shape.starts[index]);
  if (count == 0) return;
  for (const PagedComponent& part : group.components) {
    ArraySpec rows;
    rows.name = array_name(part.layer, plan.decls()[part.decl].component);
    rows.dtype = part.dtype;
    rows.shape = {count, part.heads, part.width};
    rows.source = ArraySpec::Source::kRows;
    rows.group = index;
    rows.paged = &part;
    ArraySpec scales = rows;
    layers[part.layer].push_back(std::move(rows));
    if (part.row_scale_bytes == 0) continue;
    scales.name += ".scales";
    scales.dtype = DType::kF32;
    scales.shape = {count, part.heads};
    scales.source = ArraySpec::Source::kScales;
    layers[part.layer].push_back(std::move(scales));
  }
}

// Wide elements first, so that every array is aligned; sizes; names that files can hold.
Status finish(ShardSpec& shard) {
  std::stable_sort(shard.arrays.begin(), shard.arrays.end(), [](const auto& a, const auto& b) {
    return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
  });
  std::set<std::string> names;
  for (ArraySpec& array : shard.arrays) {
    if (!json::is_utf8(array.name)) {
      return Status::unsupported(shard.file, ": a component's name is not UTF-8");
    }
    if (!names.insert(array.name).second) {
      return Status::unsupported(shard.file, ": two arrays would be called ", array.name);
    }
    if (Status status = set_bytes(array); !status) return status;
    array.offset = shard.payload_bytes;
    const auto sum = checked_add(shard.payload_bytes, array.bytes);
    if (!sum) return Status::corruption(shard.file, ": its size does not fit 64 bits");
    shard.payload_bytes = *sum;
  }
  return Status::ok();
}

}  // namespace

bool covers(const PrefixShape& shape, std::size_t index, const Group& group, std::uint64_t tokens) {
  const std::uint64_t start = shape.starts[index];
  return start <= group.live_start(tokens) &&
         std::min(start, group.sink_end(tokens)) <= shape.sinks[index];
}

Result<std::vector<ShardSpec>> shard_specs(const StatePlan& plan, const PrefixShape& shape,
                                           std::uint64_t version) {
  std::map<std::int32_t, std::vector<ArraySpec>> layers;
  for (std::size_t group = 0; group < plan.groups().size(); ++group) {
    add_group(plan, group, shape, layers);
  }
  for (const FixedComponent& fixed : plan.fixed()) {
    ArraySpec array;
    array.name = array_name(fixed.layer, fixed.name);
    array.dtype = fixed.dtype;
    array.shape = {shape.snapshots.size()};
    array.shape.insert(array.shape.end(), fixed.shape.begin(), fixed.shape.end());
    array.source = ArraySpec::Source::kFixed;
    array.fixed = &fixed;
    layers[fixed.layer].push_back(std::move(array));
  }
  const bool by_layer = version == 1;
  std::vector<ShardSpec> shards(1);
  shards[0].file = by_layer ? "tokens.safetensors" : kStateFile;
  shards[0].arrays.resize(1);
  shards[0].arrays[0].name = "tokens";
  shards[0].arrays[0].shape = {shape.tokens};
  for (auto& [layer, arrays] : layers) {
    if (by_layer) shards.push_back({layer_file(layer), {}, 0});
    std::move(arrays.begin(), arrays.end(), std::back_inserter(shards.back().arrays));
  }
  for (ShardSpec& shard : shards) {
    if (Status status = finish(shard); !status) return status;
  }
  return shards;
}

Status for_each_page(const StatePlan& plan, std::size_t group, const PrefixShape& shape,
                     const std::function<Status(const PageRange&)>& visit) {
  const Group& rows = plan.groups()[group];
  const std::uint64_t block = rows.rows(plan.block_tokens());
  const std::pair<std::uint64_t, std::uint64_t> spans[] = {
      {0, shape.sinks[group]}, {rows.rows(shape.starts[group]), rows.rows(shape.tokens)}};
  for (auto [at, stop] : spans) {
    while (at < stop) {
      const std::uint64_t count = std::min(stop, (at / block + 1) * block) - at;
      if (Status status = visit({at / block, at % block, count}); !status) return status;
      at += count;
    }
  }
  return Status::ok();
}

Status for_each_piece(const StatePlan& plan, const ArraySpec& array, const PrefixShape& shape,
                      const PrefixBytes& bytes,
                      const std::function<Status(std::byte*, std::size_t)>& visit) {
  if (array.source == ArraySpec::Source::kFixed) {
    for (std::byte* snapshot : bytes.snapshots) {
      if (Status status = visit(snapshot + array.fixed->offset, array.fixed->bytes); !status) {
        return status;
      }
    }
    return Status::ok();
  }
  const bool scales = array.source == ArraySpec::Source::kScales;
  const std::uint64_t row = scales ? array.paged->scale_bytes() : array.paged->row_bytes();
  const std::uint64_t offset = scales ? array.paged->scales_offset : array.paged->rows_offset;
  return for_each_page(plan, array.group, shape, [&](const PageRange& range) {
    std::byte* page = bytes.pages[array.group][range.block];
    return visit(page + offset + range.row * row, range.count * row);
  });
}

}  // namespace kvcache::persist
