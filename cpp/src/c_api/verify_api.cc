// Verify sessions through C, of one sequence and of a batch.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"

using kvcache::StashInputs;
using kvcache::Status;
using kvcache::TokenTree;
using kvcache::VerifyStrategy;
using kvcache::c_api::answer;
using kvcache::c_api::answer_state;
using kvcache::c_api::counts_of;
using kvcache::c_api::entry;
using kvcache::c_api::hand_over;
using kvcache::c_api::read_enum;
using kvcache::c_api::read_struct;
using kvcache::c_api::some;
using kvcache::c_api::view_from;
using kvcache::c_api::views_from;
using kvcache::c_api::write_struct;
using kvcache::codec::RowsView;

namespace {

// One of the inputs that may be given.
Status read_rows(const char* name, const kvcache_rows* from, std::optional<RowsView>* to) {
  if (from == nullptr) return Status::ok();
  const auto view = view_from<RowsView>(name, *from);
  if (!view) return view.status();
  *to = *view;
  return Status::ok();
}

kvcache::Result<StashInputs> inputs_from(const kvcache_stash_inputs& inputs) {
  const auto from = read_struct("inputs", &inputs);
  if (!from) return from.status();
  StashInputs to;
  Status status = read_rows("inputs.gate", from->gate, &to.gate);
  if (status) status = read_rows("inputs.left", from->left, &to.left);
  if (status) status = read_rows("inputs.right", from->right, &to.right);
  if (status) status = read_rows("inputs.window", from->window, &to.window);
  if (!status) return status;
  return to;
}

Status answer_pending(const kvcache::Result<kvcache::PendingRows>& pending,
                      kvcache_pending_rows* out) {
  if (!pending) return pending.status();
  return write_struct(out, {.struct_size = sizeof(kvcache_pending_rows),
                            .rows = pending->rows,
                            .gate = pending->gate,
                            .gate_elements = pending->row.gates,
                            .left = pending->left,
                            .left_elements = pending->row.lefts(),
                            .right = pending->right,
                            .right_elements = pending->row.rights()});
}

Status answer_lengths(const kvcache::Result<std::vector<std::uint64_t>>& lengths, uint64_t* out) {
  if (!lengths) return lengths.status();
  std::copy(lengths->begin(), lengths->end(), out);
  return Status::ok();
}

// The options of either kind of session.
Status read_options(const kvcache_verify_options* options, kvcache_verify_options* to,
                    VerifyStrategy* strategy) {
  const auto from = read_struct("options", options);
  if (!from) return from.status();
  if (from->parents == nullptr && from->parent_count > 0) {
    return Status::invalid_argument("options.parents is NULL, parent_count is ",
                                    from->parent_count);
  }
  *to = *from;
  return read_enum("options.strategy", from->strategy, KVCACHE_CARRY, strategy);
}

Status begin(kvcache::Sequence& sequence, std::span<const std::int32_t> drafts,
             const kvcache_verify_options& options, VerifyStrategy strategy, kvcache_verify** out) {
  if (options.table != nullptr || options.carry != nullptr) {
    return Status::invalid_argument("options.table and carry are of a batch's verify");
  }
  std::optional<TokenTree> tree;
  if (options.parents != nullptr) {
    auto made = TokenTree::create({options.parents, options.parent_count});
    if (!made) return made.status();
    tree = std::move(made).value();
  }
  auto handle = std::make_unique<kvcache_verify>();
  auto session = sequence.begin_verify(drafts, tree ? &*tree : nullptr, strategy);
  if (!session) return session.status();
  handle->session = std::move(session).value();
  handle->offsets[1] = static_cast<std::int32_t>(handle->session.rows());
  handle->start = static_cast<std::int64_t>(handle->session.start());
  *out = handle.release();
  return Status::ok();
}

}  // namespace

extern "C" {

kvcache_status kvcache_sequence_begin_verify(kvcache_sequence* sequence, const int32_t* drafts,
                                             size_t draft_count,
                                             const kvcache_verify_options* options,
                                             kvcache_verify** out) {
  return entry({{"sequence", sequence}, some("drafts", drafts, draft_count), {"out", out}}, [&] {
    kvcache_verify_options from = {};
    VerifyStrategy strategy = {};
    Status status = read_options(options, &from, &strategy);
    return status ? begin(sequence->sequence, {drafts, draft_count}, from, strategy, out) : status;
  });
}

void kvcache_verify_destroy(kvcache_verify* verify) { delete verify; }

kvcache_status kvcache_verify_rows(const kvcache_verify* verify, kvcache_run_rows* out) {
  return entry({{"verify", verify}, {"out", out}}, [&] {
    return write_struct(out, {.struct_size = sizeof(kvcache_run_rows),
                              .rows = verify->session.rows(),
                              .tokens = verify->session.tokens().data(),
                              .positions = verify->session.positions().data(),
                              .sequences = 1,
                              .offsets = verify->offsets.data(),
                              .starts = &verify->start});
  });
}

kvcache_status kvcache_verify_write(kvcache_verify* verify, int32_t layer,
                                    const kvcache_rows* components, size_t component_count) {
  return entry({{"verify", verify}, {"components", components}}, [&] {
    const auto views = views_from<RowsView>(components, component_count);
    return views ? verify->session.write(layer, *views) : views.status();
  });
}

kvcache_status kvcache_verify_write_records(kvcache_verify* verify, int32_t layer, const char* name,
                                            const kvcache_rows* rows) {
  return entry({{"verify", verify}, {"name", name}, {"rows", rows}}, [&] {
    const auto view = view_from<RowsView>("rows", *rows);
    return view ? verify->session.write_records(layer, name, *view) : view.status();
  });
}

kvcache_status kvcache_verify_state(kvcache_verify* verify, uint64_t row, int32_t layer,
                                    const char* name, void** out_data, uint64_t* out_bytes) {
  return entry(
      {{"verify", verify}, {"name", name}, {"out_data", out_data}, {"out_bytes", out_bytes}},
      [&] { return answer_state(verify->session.state(row, layer, name), out_data, out_bytes); });
}

kvcache_status kvcache_verify_live(const kvcache_verify* verify, int32_t layer, const char* name,
                                   const void** out_data, uint64_t* out_bytes) {
  return entry(
      {{"verify", verify}, {"name", name}, {"out_data", out_data}, {"out_bytes", out_bytes}},
      [&] { return answer_state(verify->session.live(layer, name), out_data, out_bytes); });
}

kvcache_status kvcache_verify_pending(const kvcache_verify* verify, int32_t layer, const char* name,
                                      kvcache_pending_rows* out) {
  return entry({{"verify", verify}, {"name", name}, {"out", out}},
               [&] { return answer_pending(verify->session.pending(layer, name), out); });
}

kvcache_status kvcache_verify_stash(kvcache_verify* verify, int32_t layer, const char* name,
                                    const kvcache_stash_inputs* inputs) {
  return entry({{"verify", verify}, {"name", name}, {"inputs", inputs}}, [&] {
    const auto from = inputs_from(*inputs);
    return from ? verify->session.stash(layer, name, *from) : from.status();
  });
}

kvcache_status kvcache_verify_commit(kvcache_verify* verify, uint64_t accepted,
                                     uint64_t* out_length) {
  return entry({{"verify", verify}, {"out_length", out_length}},
               [&] { return answer(verify->session.commit(accepted), out_length); });
}

kvcache_status kvcache_verify_commit_path(kvcache_verify* verify, const int32_t* rows,
                                          size_t row_count, uint64_t* out_length) {
  return entry({{"verify", verify}, some("rows", rows, row_count), {"out_length", out_length}},
               [&] {
                 const std::span<const std::int32_t> path = {rows, row_count};
                 return answer(verify->session.commit(path), out_length);
               });
}

kvcache_status kvcache_verify_rollback(kvcache_verify* verify) {
  return entry({{"verify", verify}}, [&] { return verify->session.rollback(); });
}

kvcache_status kvcache_batch_begin_verify(kvcache_batch* batch, const int32_t* drafts,
                                          size_t draft_count, const uint64_t* counts,
                                          const kvcache_verify_options* options,
                                          kvcache_batch_verify** out) {
  return entry(
      {{"batch", batch}, some("drafts", drafts, draft_count), {"out", out}}, [&]() -> Status {
        kvcache_verify_options from = {};
        kvcache::BatchVerifyOptions to;
        if (Status status = read_options(options, &from, &to.strategy); !status) return status;
        if (from.parents != nullptr) {
          to.parents = std::span<const std::int32_t>(from.parents, from.parent_count);
        }
        if (from.table != nullptr) to.table = &from.table->table;
        if (from.carry != nullptr) to.carry = &from.carry->table;
        return hand_over(
            batch->batch.begin_verify({drafts, draft_count}, counts_of(batch, counts), to), out);
      });
}

void kvcache_batch_verify_destroy(kvcache_batch_verify* verify) { delete verify; }

kvcache_status kvcache_batch_verify_rows(const kvcache_batch_verify* verify,
                                         kvcache_run_rows* out) {
  return entry({{"verify", verify}, {"out", out}}, [&] {
    return write_struct(out, {.struct_size = sizeof(kvcache_run_rows),
                              .rows = verify->session.rows(),
                              .tokens = verify->session.tokens().data(),
                              .positions = verify->session.positions().data(),
                              .sequences = verify->session.size(),
                              .offsets = verify->session.offsets().data(),
                              .starts = verify->session.starts().data()});
  });
}

kvcache_status kvcache_batch_verify_write(kvcache_batch_verify* verify, int32_t layer,
                                          const kvcache_rows* components, size_t component_count) {
  return entry({{"verify", verify}, {"components", components}}, [&] {
    const auto views = views_from<RowsView>(components, component_count);
    return views ? verify->session.write(layer, *views) : views.status();
  });
}

kvcache_status kvcache_batch_verify_write_records(kvcache_batch_verify* verify, int32_t layer,
                                                  const char* name, const kvcache_rows* rows) {
  return entry({{"verify", verify}, {"name", name}, {"rows", rows}}, [&] {
    const auto view = view_from<RowsView>("rows", *rows);
    return view ? verify->session.write_records(layer, name, *view) : view.status();
  });
}

kvcache_status kvcache_batch_verify_state(kvcache_batch_verify* verify, size_t sequence,
                                          uint64_t row, int32_t layer, const char* name,
                                          void** out_data, uint64_t* out_bytes) {
  return entry(
      {{"verify", verify}, {"name", name}, {"out_data", out_data}, {"out_bytes", out_bytes}}, [&] {
        return answer_state(verify->session.state(sequence, row, layer, name), out_data, out_bytes);
      });
}

kvcache_status kvcache_batch_verify_live(const kvcache_batch_verify* verify, size_t sequence,
                                         int32_t layer, const char* name, const void** out_data,
                                         uint64_t* out_bytes) {
  return entry(
      {{"verify", verify}, {"name", name}, {"out_data", out_data}, {"out_bytes", out_bytes}}, [&] {
        return answer_state(verify->session.live(sequence, layer, name), out_data, out_bytes);
      });
}

kvcache_status kvcache_batch_verify_pending(const kvcache_batch_verify* verify, size_t sequence,
                                            int32_t layer, const char* name,
                                            kvcache_pending_rows* out) {
  return entry({{"verify", verify}, {"name", name}, {"out", out}},
               [&] { return answer_pending(verify->session.pending(sequence, layer, name), out); });
}

kvcache_status kvcache_batch_verify_stash(kvcache_batch_verify* verify, int32_t layer,
                                          const char* name, const kvcache_stash_inputs* inputs) {
  return entry({{"verify", verify}, {"name", name}, {"inputs", inputs}}, [&] {
    const auto from = inputs_from(*inputs);
    return from ? verify->session.stash(layer, name, *from) : from.status();
  });
}

kvcache_status kvcache_batch_verify_commit(kvcache_batch_verify* verify, const uint64_t* accepted,
                                           uint32_t in_place, uint64_t* out_lengths) {
  return entry({{"verify", verify}, {"accepted", accepted}, {"out_lengths", out_lengths}}, [&] {
    const std::span<const std::uint64_t> each = {accepted, verify->session.size()};
    return answer_lengths(verify->session.commit(each, in_place != 0), out_lengths);
  });
}

kvcache_status kvcache_batch_verify_commit_paths(kvcache_batch_verify* verify, const int32_t* rows,
                                                 size_t row_count, const uint64_t* counts,
                                                 uint32_t in_place, uint64_t* out_lengths) {
  return entry({{"verify", verify},
                some("rows", rows, row_count),
                {"counts", counts},
                {"out_lengths", out_lengths}},
               [&] {
                 const std::span<const std::uint64_t> each = {counts, verify->session.size()};
                 return answer_lengths(
                     verify->session.commit_paths({rows, row_count}, each, in_place != 0),
                     out_lengths);
               });
}

kvcache_status kvcache_batch_verify_rollback(kvcache_batch_verify* verify) {
  return entry({{"verify", verify}}, [&] { return verify->session.rollback(); });
}

}  // extern "C"
