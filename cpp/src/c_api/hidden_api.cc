// Hidden rows through C: captures, bands, accept stashes.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"

using kvcache::HiddenRowsOptions;
using kvcache::HiddenView;
using kvcache::Result;
using kvcache::Sequence;
using kvcache::Status;
using kvcache::c_api::answer;
using kvcache::c_api::entry;
using kvcache::c_api::hand_over;
using kvcache::c_api::inside_each;
using kvcache::c_api::read_enum;
using kvcache::c_api::read_struct;
using kvcache::c_api::some;
using kvcache::c_api::write_struct;

namespace {

Result<HiddenRowsOptions> options_from(const kvcache_hidden_options* options) {
  const auto from = read_struct("options", options);
  if (!from) return from.status();
  HiddenRowsOptions to = {.rows = from->rows, .width = from->width};
  if (from->dtype != nullptr) {
    Status status = read_enum("options.dtype", *from->dtype, KVCACHE_I8, &to.dtype);
    if (!status) return status;
  }
  if (from->cache != nullptr) to.cache = from->cache->cache.get();
  return to;
}

Result<HiddenView> view_from(const kvcache_hidden_rows& from) {
  if (from.data == nullptr && from.rows > 0) return Status::invalid_argument("rows.data is NULL");
  HiddenView to = {.data = from.data,
                   .rows = from.rows,
                   .width = from.width,
                   .row_stride = from.row_stride,
                   .owner = nullptr};
  Status status = read_enum("rows.dtype", from.dtype, KVCACHE_I8, &to.dtype);
  if (!status) return status;
  return to;
}

// The memory is the handle's: what keeps it is let go of here.
Status answer_rows(const Result<HiddenView>& view, kvcache_hidden_rows* out) {
  if (!view) return view.status();
  *out = {.data = view->data,
          .dtype = static_cast<kvcache_dtype>(view->dtype),
          .rows = view->rows,
          .width = view->width,
          .row_stride = view->row_stride};
  return Status::ok();
}

Result<std::vector<const Sequence*>> sequences_from(kvcache_sequence* const* sequences,
                                                    std::size_t count) {
  return inside_each("sequences", sequences, count,
                     [](const kvcache_sequence& each) { return &each.sequence; });
}

}  // namespace

extern "C" {

kvcache_status kvcache_hidden_capture_create(const kvcache_hidden_options* options,
                                             kvcache_hidden_capture** out) {
  return entry({{"options", options}, {"out", out}}, [&]() -> Status {
    const auto from = options_from(options);
    if (!from) return from.status();
    return hand_over(kvcache::HiddenCapture::create(*from), out);
  });
}

void kvcache_hidden_capture_destroy(kvcache_hidden_capture* capture) { delete capture; }

kvcache_status kvcache_hidden_capture_begin(kvcache_hidden_capture* capture,
                                            const kvcache_sequence* sequence) {
  return entry({{"capture", capture}, {"sequence", sequence}},
               [&] { return capture->capture->begin(sequence->sequence); });
}

kvcache_status kvcache_hidden_capture_write(kvcache_hidden_capture* capture, uint64_t position,
                                            const kvcache_hidden_rows* rows, uint64_t* out_kept) {
  return entry({{"capture", capture}, {"rows", rows}, {"out_kept", out_kept}}, [&]() -> Status {
    const auto view = view_from(*rows);
    if (!view) return view.status();
    return answer(capture->capture->write(position, *view), out_kept);
  });
}

kvcache_status kvcache_hidden_capture_rows(const kvcache_hidden_capture* capture,
                                           kvcache_hidden_rows* out) {
  return entry({{"capture", capture}, {"out", out}},
               [&] { return answer_rows(capture->capture->rows(), out); });
}

kvcache_status kvcache_hidden_capture_consume(kvcache_hidden_capture* capture) {
  return entry({{"capture", capture}}, [&] { return capture->capture->consume(); });
}

kvcache_status kvcache_hidden_capture_release(kvcache_hidden_capture* capture) {
  return entry({{"capture", capture}}, [&] { return capture->capture->release(); });
}

kvcache_status kvcache_hidden_capture_read(const kvcache_hidden_capture* capture,
                                           kvcache_capture_state* out) {
  return entry({{"capture", capture}, {"out", out}}, [&]() -> Status {
    if (Status status = capture->capture->check_process(); !status) return status;
    return write_struct(out, {.struct_size = sizeof(kvcache_capture_state),
                              .captured = capture->capture->captured(),
                              .position = capture->capture->position(),
                              .bytes = capture->capture->bytes()});
  });
}

kvcache_status kvcache_hidden_bands_create(const kvcache_hidden_options* options, uint64_t bands,
                                           kvcache_hidden_bands** out) {
  return entry({{"options", options}, {"out", out}}, [&]() -> Status {
    const auto from = options_from(options);
    if (!from) return from.status();
    return hand_over(kvcache::HiddenBands::create(bands, *from), out);
  });
}

void kvcache_hidden_bands_destroy(kvcache_hidden_bands* bands) { delete bands; }

kvcache_status kvcache_hidden_bands_store(kvcache_hidden_bands* bands,
                                          kvcache_sequence* const* sequences, size_t sequence_count,
                                          const kvcache_hidden_rows* hidden,
                                          const int32_t* offsets) {
  return entry({{"bands", bands},
                some("sequences", sequences, sequence_count),
                {"hidden", hidden},
                {"offsets", offsets}},
               [&]() -> Status {
                 const auto list = sequences_from(sequences, sequence_count);
                 if (!list) return list.status();
                 const auto view = view_from(*hidden);
                 if (!view) return view.status();
                 std::vector<std::uint64_t> bounds;
                 for (std::size_t i = 0; i <= sequence_count; ++i) {
                   if (offsets[i] < 0) {
                     return Status::invalid_argument("offsets[", i, "] is ", offsets[i]);
                   }
                   bounds.push_back(static_cast<std::uint64_t>(offsets[i]));
                 }
                 return bands->bands->store(*list, *view, bounds);
               });
}

kvcache_status kvcache_hidden_bands_accepted(const kvcache_hidden_bands* bands, uint64_t band,
                                             kvcache_hidden_rows* out) {
  return entry({{"bands", bands}, {"out", out}},
               [&] { return answer_rows(bands->bands->accepted(band), out); });
}

kvcache_status kvcache_accept_stash_create(const kvcache_hidden_options* options, uint64_t catch_up,
                                           kvcache_accept_stash** out) {
  return entry({{"options", options}, {"out", out}}, [&]() -> Status {
    const auto from = options_from(options);
    if (!from) return from.status();
    return hand_over(kvcache::AcceptStash::create({*from, catch_up}), out);
  });
}

void kvcache_accept_stash_destroy(kvcache_accept_stash* stash) { delete stash; }

kvcache_status kvcache_accept_stash_store(kvcache_accept_stash* stash,
                                          kvcache_sequence* const* sequences, size_t sequence_count,
                                          const kvcache_hidden_rows* hidden, const uint64_t* rows,
                                          const uint64_t* catch_up, size_t catch_up_count,
                                          const uint64_t* catch_counts) {
  return entry({{"stash", stash},
                some("sequences", sequences, sequence_count),
                {"hidden", hidden},
                some("rows", rows, sequence_count),
                some("catch_up", catch_up, catch_up_count)},
               [&]() -> Status {
                 const auto list = sequences_from(sequences, sequence_count);
                 if (!list) return list.status();
                 const auto view = view_from(*hidden);
                 if (!view) return view.status();
                 const std::size_t counted = catch_counts == nullptr ? 0 : sequence_count;
                 return stash->stash->store(*list, *view, {rows, sequence_count},
                                            {catch_up, catch_up_count}, {catch_counts, counted});
               });
}

kvcache_status kvcache_accept_stash_rows(const kvcache_accept_stash* stash, uint64_t count,
                                         kvcache_hidden_rows* out) {
  return entry({{"stash", stash}, {"out", out}},
               [&] { return answer_rows(stash->stash->rows(count), out); });
}

kvcache_status kvcache_accept_stash_row(const kvcache_accept_stash* stash, uint64_t index,
                                        kvcache_hidden_rows* out) {
  return entry({{"stash", stash}, {"out", out}},
               [&] { return answer_rows(stash->stash->row(index), out); });
}

kvcache_status kvcache_accept_stash_catch_up(const kvcache_accept_stash* stash, uint64_t index,
                                             kvcache_hidden_rows* out) {
  return entry({{"stash", stash}, {"out", out}},
               [&] { return answer_rows(stash->stash->catch_up(index), out); });
}

}  // extern "C"
