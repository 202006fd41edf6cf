#include "persist/row_storage.h"

#include <algorithm>
#include <utility>

#include "kvcache/codec.h"

namespace kvcache::persist {
namespace {

constexpr DType kFormats[] = {DType::kF16, DType::kBf16, DType::kF32, DType::kI8};

bool is_floating(const StateDecl& decl) {
  return decl.kind == StateKind::kPagedKv &&
         std::find(std::begin(kFormats), std::end(kFormats), decl.dtype) != std::end(kFormats);
}

std::size_t group_of(const StatePlan& plan, std::uint32_t decl) {
  const auto& groups = plan.groups();
  return static_cast<std::size_t>(
      std::find_if(groups.begin(), groups.end(),
                   [&](const Group& group) {
                     return std::any_of(group.components.begin(), group.components.end(),
                                        [&](const auto& part) { return part.decl == decl; });
                   }) -
      groups.begin());
}

// Rows of one page: what lies in the file, and where it goes.
struct PageRows {
  std::byte* file = nullptr;
  const float* file_scales = nullptr;  // of INT8
  std::byte* page = nullptr;
  std::size_t row = 0;  // the first, in the page
  std::size_t count = 0;
  std::size_t first = 0;  // the first, of all
};

Status convert_page(const PagedComponent& from, const PagedComponent& to, const PageRows& rows) {
  std::byte* packed = rows.page + to.rows_offset + rows.row * to.row_bytes();
  const auto strides = [&](auto view, DType dtype, auto* data) {
    const auto head = static_cast<std::ptrdiff_t>(to.width * dtype_bytes(dtype));
    view.data = data;
    view.dtype = dtype;
    view.tokens = rows.count;
    view.heads = to.heads;
    view.width = to.width;
    view.head_stride = head;
    view.token_stride = head * static_cast<std::ptrdiff_t>(to.heads);
    return view;
  };
  if (from.dtype == DType::kI8) {
    codec::decode_int8(reinterpret_cast<const std::int8_t*>(rows.file), rows.file_scales,
                       strides(codec::MutableRowsView{}, to.dtype, packed));
    return Status::ok();
  }
  const auto view = strides(codec::RowsView{}, from.dtype, rows.file);
  if (to.dtype != DType::kI8) {
    codec::encode_plain(view, to.dtype, packed);
    return Status::ok();
  }
  std::byte* scales = rows.page + to.scales_offset + rows.row * to.scale_bytes();
  return codec::encode_int8(view, reinterpret_cast<std::int8_t*>(packed),
                            reinterpret_cast<float*>(scales), 1, rows.first * to.heads);
}

}  // namespace

Result<std::shared_ptr<const StatePlan>> plan_stored_otherwise(const StatePlan& plan,
                                                               std::string_view fingerprint) {
  for (const DType format : kFormats) {
    std::vector<StateDecl> decls = plan.decls();
    for (StateDecl& decl : decls) {
      if (!is_floating(decl)) continue;
      decl.dtype = format;
      decl.row_scale_bytes = format == DType::kI8 ? sizeof(float) : 0;
    }
    auto other = StatePlan::create(std::move(decls), plan.options());
    if (!other) return other.status();
    if (other->fingerprint() != fingerprint) continue;
    return std::make_shared<const StatePlan>(std::move(other).value());
  }
  return std::shared_ptr<const StatePlan>();
}

PrefixShape shape_of(const PrefixShape& shape, const StatePlan& from, const StatePlan& to) {
  PrefixShape found{shape.tokens, {}, {}, shape.snapshots};
  for (const Group& group : to.groups()) {
    const std::size_t source = group_of(from, group.components[0].decl);
    found.starts.push_back(shape.starts[source]);
    found.sinks.push_back(shape.sinks[source]);
  }
  return found;
}

RowReader::RowReader(const StatePlan& from, const PrefixShape& shape, const StatePlan& to,
                     const PrefixBytes& destination)
    : from_(from), shape_(shape), to_(to), destination_(destination) {}

RowReader::Home RowReader::home(const PagedComponent& part) const {
  const std::size_t group = group_of(to_, part.decl);
  const auto& parts = to_.groups()[group].components;
  return {group, &*std::find_if(parts.begin(), parts.end(),
                                [&](const auto& each) { return each.decl == part.decl; })};
}

Status RowReader::read(const ArraySpec& array, ChecksumReader& file) {
  const Home to = home(*array.paged);
  const bool scales = array.source == ArraySpec::Source::kScales;
  if (to.part->dtype != array.paged->dtype) {
    if (!scales) return convert(array, to, file);
    auto& kept = scales_[array.paged->decl];
    kept.resize(array.bytes / sizeof(float));
    return file.read(kept.data(), array.bytes);
  }
  const std::uint64_t row = scales ? to.part->scale_bytes() : to.part->row_bytes();
  const std::uint64_t offset = scales ? to.part->scales_offset : to.part->rows_offset;
  return for_each_page(from_, array.group, shape_, [&](const PageRange& range) {
    std::byte* page = destination_.pages[to.group][range.block];
    if (page == nullptr) return file.skip(range.count * row);
    return file.read_later(page + offset + range.row * row, range.count * row);
  });
}

Status RowReader::convert(const ArraySpec& array, const Home& to, ChecksumReader& file) {
  const PagedComponent& from = *array.paged;
  const std::vector<float>& scales = scales_[from.decl];
  const std::uint64_t block = from_.groups()[array.group].rows(from_.block_tokens());
  std::size_t done = 0;  // rows
  const auto convert = [&](const PageRange& range) -> Status {
    const float* of_rows = scales.empty() ? nullptr : scales.data() + done * from.heads;
    done += range.count;
    std::byte* page = destination_.pages[to.group][range.block];
    const std::uint64_t bytes = range.count * from.row_bytes();
    if (page == nullptr) return file.skip(bytes);
    rows_.resize(bytes);
    if (Status status = file.read(rows_.data(), bytes); !status) return status;
    const Status status = convert_page(
        from, *to.part,
        {rows_.data(), of_rows, page, range.row, range.count, range.block * block + range.row});
    if (status.code() != StatusCode::kNonFinite) return status;
    return Status::non_finite(array.name, ", of its rows [positions, heads], ", status.message());
  };
  if (Status status = for_each_page(from_, array.group, shape_, convert); !status) return status;
  scales_.erase(from.decl);
  return Status::ok();
}

}  // namespace kvcache::persist
