// Tensors of engines and views of pages through C.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "c_api/convert.h"
#include "c_api/handles.h"

using kvcache::EngineLayout;
using kvcache::EnginePlaces;
using kvcache::EngineTensor;
using kvcache::Result;
using kvcache::Status;
using kvcache::c_api::entry;
using kvcache::c_api::read_enum;
using kvcache::c_api::read_struct;
using kvcache::c_api::read_structs;
using kvcache::c_api::some;
using kvcache::c_api::write_struct;

namespace {

// Of a row-major tensor, in bytes. kInvalidArgument: more bytes than addresses.
Status contiguous(EngineTensor* tensor) {
  tensor->strides.resize(tensor->shape.size());
  std::uint64_t stride = kvcache::dtype_bytes(tensor->dtype);
  for (std::size_t axis = tensor->shape.size(); axis-- > 0;) {
    tensor->strides[axis] = static_cast<std::ptrdiff_t>(stride);
    const auto outer = kvcache::checked_mul(stride, tensor->shape[axis]);
    if (!outer || *outer > PTRDIFF_MAX) {
      return Status::invalid_argument("shape: the tensor has more than 2^63 bytes");
    }
    stride = *outer;
  }
  return Status::ok();
}

Result<EngineTensor> tensor_from(const kvcache_engine_tensor* tensor) {
  const auto from = read_struct("tensor", tensor);
  if (!from) return from.status();
  if (from->layout == nullptr) return Status::invalid_argument("layout is NULL");
  if (from->shape == nullptr) return Status::invalid_argument("shape is NULL");
  EngineTensor to;
  if (Status status = read_enum("dtype", from->dtype, KVCACHE_I8, &to.dtype); !status) {
    return status;
  }
  auto layout = EngineLayout::parse(from->layout);
  if (!layout) return layout.status();
  to.layout = std::move(layout).value();
  if (from->axes != to.layout.axes().size()) {
    return Status::invalid_argument("layout \"", to.layout.text(), "\" has ",
                                    to.layout.axes().size(), " axes, the tensor ", from->axes);
  }
  to.shape.assign(from->shape, from->shape + from->axes);
  const bool is_empty = std::find(to.shape.begin(), to.shape.end(), 0U) != to.shape.end();
  if (from->data == nullptr && !is_empty) return Status::invalid_argument("data is NULL");
  to.data = from->data;
  if (from->strides == nullptr) {
    if (Status status = contiguous(&to); !status) return status;
  } else {
    to.strides.assign(from->strides, from->strides + from->axes);
  }
  return to;
}

Result<EnginePlaces> places_from(const kvcache_engine_places* places) {
  const auto from = read_struct("places", places);
  if (!from) return from.status();
  if (from->block_table == nullptr && from->block_count > 0) {
    return Status::invalid_argument("places.block_table is NULL");
  }
  if (from->slot_mapping == nullptr && from->slot_count > 0) {
    return Status::invalid_argument("places.slot_mapping is NULL");
  }
  return EnginePlaces{.block_table = {from->block_table, from->block_count},
                      .slot_mapping = {from->slot_mapping, from->slot_count}};
}

// What import and export take alike.
struct Transfer {
  std::vector<EngineTensor> tensors;
  EnginePlaces places;
};

Result<Transfer> transfer_from(const kvcache_engine_tensor* tensors, std::size_t count,
                               const kvcache_engine_places* places) {
  auto list = read_structs("tensors", tensors, count, tensor_from);
  if (!list) return list.status();
  const auto where = places_from(places);
  if (!where) return where.status();
  return Transfer{std::move(list).value(), *where};
}

}  // namespace

extern "C" {

kvcache_status kvcache_sequence_import_rows(kvcache_sequence* sequence, const int32_t* layers,
                                            size_t layer_count, uint64_t start, uint64_t stop,
                                            const kvcache_engine_tensor* tensors,
                                            size_t tensor_count,
                                            const kvcache_engine_places* places) {
  return entry({{"sequence", sequence},
                some("layers", layers, layer_count),
                some("tensors", tensors, tensor_count)},
               [&]() -> Status {
                 const auto from = transfer_from(tensors, tensor_count, places);
                 if (!from) return from.status();
                 return sequence->sequence.import_rows({layers, layer_count}, start, stop,
                                                       from->tensors, from->places);
               });
}

kvcache_status kvcache_sequence_export_rows(const kvcache_sequence* sequence, const int32_t* layers,
                                            size_t layer_count, uint64_t start, uint64_t stop,
                                            const kvcache_engine_tensor* tensors,
                                            size_t tensor_count,
                                            const kvcache_engine_places* places) {
  return entry({{"sequence", sequence},
                some("layers", layers, layer_count),
                some("tensors", tensors, tensor_count)},
               [&]() -> Status {
                 const auto to = transfer_from(tensors, tensor_count, places);
                 if (!to) return to.status();
                 return sequence->sequence.export_rows({layers, layer_count}, start, stop,
                                                       to->tensors, to->places);
               });
}

kvcache_status kvcache_sequence_views(const kvcache_sequence* sequence, int32_t layer,
                                      uint64_t start, uint64_t stop, kvcache_page_views** out) {
  return entry({{"sequence", sequence}, {"out", out}}, [&]() -> Status {
    auto made = sequence->sequence.views(layer, start, stop);
    if (!made) return made.status();
    auto views = std::make_unique<kvcache_page_views>();
    views->list = std::move(made).value();
    for (const auto& component : views->list) views->count += component.size();
    *out = views.release();
    return Status::ok();
  });
}

void kvcache_page_views_destroy(kvcache_page_views* views) { delete views; }

size_t kvcache_page_views_count(const kvcache_page_views* views) {
  return views == nullptr ? 0 : views->count;
}

kvcache_status kvcache_page_views_read(const kvcache_page_views* views, size_t index,
                                       kvcache_page_view* out) {
  return entry({{"views", views}, {"out", out}}, [&]() -> Status {
    if (index >= views->count) {
      return Status::invalid_argument("view ", index, " of ", views->count);
    }
    // As many of each component.
    const std::size_t each = views->list[0].size();
    const kvcache::PageView& view = views->list[index / each][index % each];
    const kvcache::PagedComponent& part = *view.component;
    return write_struct(out, {.struct_size = sizeof(kvcache_page_view),
                              .component = index / each,
                              .start = view.start,
                              .positions = view.positions,
                              .page = view.page,
                              .dtype = static_cast<kvcache_dtype>(part.dtype),
                              .heads = part.heads,
                              .width = part.width,
                              .rows = view.rows,
                              .scales = view.scales,
                              .token_stride = part.row_bytes(),
                              .head_stride = part.width * kvcache::dtype_bytes(part.dtype),
                              .scale_token_stride = part.scale_bytes(),
                              .scale_head_stride = part.row_scale_bytes});
  });
}

}  // extern "C"
