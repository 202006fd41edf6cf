// Rows between a sequence's pages and an engine's tensors.
#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "codec/row_runs.h"
#include "sequence/sequence_state.h"

namespace kvcache::sequence {
namespace {

constexpr std::size_t kRunsMax = 256;  // runs found before they are moved

// The component of a layer that a tensor's part is.
struct Share {
  std::size_t tensor = 0;
  std::size_t first = 0;  // component that the tensor begins with
  std::size_t count = 1;
};

// One component a tensor, and all that are left in the tensor whose layout has `kv`.
Result<std::vector<Share>> share_out(std::int32_t layer, std::size_t components,
                                     std::span<const EngineTensor> tensors) {
  const auto joins = [](const EngineTensor& tensor) { return tensor.layout.has(EngineAxis::kKv); };
  const auto joined = std::count_if(tensors.begin(), tensors.end(), joins);
  if (joined > 1) {
    return Status::invalid_argument("layer ", layer, ": ", joined,
                                    " layouts have kv; one tensor may hold several components");
  }
  const bool enough =
      joined == 0 ? tensors.size() == components : !tensors.empty() && tensors.size() <= components;
  if (!enough) {
    return Status::invalid_argument("layer ", layer, " keeps ", components, " components, got ",
                                    tensors.size(), " tensors",
                                    joined == 0 ? " and no layout has kv" : "");
  }
  std::vector<Share> shares;
  std::size_t first = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t count = joins(tensors[i]) ? components - (tensors.size() - 1) : 1;
    shares.push_back({i, first, count});
    first += count;
  }
  return shares;
}

Status check_tensors(std::span<const EngineTensor> tensors, bool written) {
  for (std::size_t i = 0; i < tensors.size() && written; ++i) {
    if (Status status = check_no_overlap(tensors[i]); !status) return status;
    for (std::size_t j = 0; j < i; ++j) {
      if (Status status = check_no_overlap(tensors[j], tensors[i]); !status) return status;
    }
  }
  return Status::ok();
}

codec::RunShape run_shape(const EngineMove& move, std::uint64_t positions) {
  const PagedComponent& component = *move.ref.component;
  return {
      .stored = component.dtype,
      .elements = move.rows.dtype,
      .heads = component.heads,
      .width = component.width,
      .token_stride = move.rows.token_stride,
      .head_stride = move.rows.head_stride,
      .element_stride = move.rows.element_stride,
      .total_bytes = positions * component.heads * component.width * dtype_bytes(move.rows.dtype)};
}

// The run at `position`, of at most `most` positions, which are within one page.
codec::RowRun run_at(const EngineMove& move, const EngineWalk& walk, std::byte* page,
                     std::uint64_t position, std::uint64_t offset, std::uint64_t most) {
  const PagedComponent& component = *move.ref.component;
  const EngineWalk::Stretch stretch = walk.at(position, most);
  codec::RowRun run;
  run.packed = page + component.rows_offset + offset * component.row_bytes();
  if (component.row_scale_bytes > 0) {
    run.scales =
        reinterpret_cast<float*>(page + component.scales_offset) + offset * component.heads;
  }
  run.elements = stretch.elements;
  run.tokens = stretch.tokens;
  return run;
}

}  // namespace

Result<std::vector<EngineMove>> SequenceState::find_moves(std::span<const std::int32_t> layers,
                                                          const EngineTransfer& transfer,
                                                          bool written) const {
  if (layers.empty()) return Status::invalid_argument("layers: expected at least one");
  if (transfer.start > transfer.stop) {
    return Status::invalid_argument("positions [", transfer.start, ", ", transfer.stop,
                                    ") end before they start");
  }
  std::vector<EngineMove> moves;
  // Places depend on the blocks and positions of a tensor only: its layers agree in them.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> checked;
  const std::set<std::int32_t> distinct(layers.begin(), layers.end());
  if (distinct.size() != layers.size()) {
    return Status::invalid_argument("layers: one of the ", layers.size(), " is there twice");
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto refs = layers_->paged(layers[i]);
    if (!refs) return refs.status();
    const auto shares = share_out(layers[i], (*refs)->size(), transfer.tensors);
    if (!shares) return shares.status();
    for (const Share& share : *shares) {
      const EngineTensor& tensor = transfer.tensors[share.tensor];
      if (layers.size() > 1 && !tensor.layout.has(EngineAxis::kLayers)) {
        return Status::invalid_argument("layout \"", tensor.layout.text(), "\" has no layers, but ",
                                        layers.size(), " are moved");
      }
      std::vector<RowSize> parts;
      for (std::size_t part = 0; part < share.count; ++part) {
        const PagedComponent& component = *(**refs)[share.first + part].component;
        parts.push_back({component.heads, component.width});
      }
      for (std::size_t part = 0; part < share.count; ++part) {
        const PagedRef& ref = (**refs)[share.first + part];
        auto rows = find_rows(tensor, {parts, part, i, layers.size()});
        if (rows && checked != std::pair(rows->block, rows->tokens)) {
          checked = {rows->block, rows->tokens};
          const EngineWalk walk(*rows, transfer.places, transfer.start, transfer.stop);
          if (Status status = walk.check(written); !status) rows = status;
        }
        if (rows && !codec::converts(ref.component->dtype, tensor.dtype)) {
          rows = Status::invalid_argument("rows of ", dtype_name(ref.component->dtype),
                                          " cannot be ", dtype_name(tensor.dtype));
        }
        if (!rows) {
          return Status::invalid_argument("layer ", layers[i], " ",
                                          plan_->decls()[ref.component->decl].component, ": ",
                                          rows.status().message());
        }
        moves.push_back({layers[i], ref, *rows});
      }
    }
  }
  if (Status status = check_tensors(transfer.tensors, written); !status) return status;
  return moves;
}

template <typename Move>
void SequenceState::for_each_run(const EngineMove& move, const EngineTransfer& transfer,
                                 const Move& body) const {
  const std::uint64_t block = plan_->block_tokens();
  const auto pages = page_addresses(move.ref.group, transfer.start, transfer.stop);
  const EngineWalk walk(move.rows, transfer.places, transfer.start, transfer.stop);
  std::array<codec::RowRun, kRunsMax> runs;
  std::size_t count = 0;
  std::uint64_t from = transfer.start;  // of the runs collected
  for (std::uint64_t position = from; position < transfer.stop;) {
    const std::uint64_t offset = position % block;
    runs[count] = run_at(move, walk, pages[position / block - transfer.start / block], position,
                         offset, std::min(block - offset, transfer.stop - position));
    position += runs[count++].tokens;
    if (count < kRunsMax && position < transfer.stop) continue;
    if (!body(std::span(runs.data(), count), from)) return;
    count = 0;
    from = position;
  }
}

Status SequenceState::import_rows(std::span<const EngineMove> moves,
                                  const EngineTransfer& transfer) {
  Status status = codec::check_isa();
  for (std::size_t i = 0; i < moves.size() && status.is_ok(); ++i) {
    const EngineMove& move = moves[i];
    const codec::RunShape shape = run_shape(move, transfer.stop - transfer.start);
    for_each_run(move, transfer, [&](std::span<const codec::RowRun> runs, std::uint64_t from) {
      std::size_t rows = 0;
      for (const codec::RowRun& run : runs) rows += run.tokens * shape.heads;
      const std::size_t good = codec::encode_runs(shape, runs);
      if (good == rows) return true;
      status = Status::non_finite("layer ", move.layer, " ",
                                  plan_->decls()[move.ref.component->decl].component, ": position ",
                                  from + good / shape.heads, ", head ", good % shape.heads,
                                  ": an element is not finite after F16 rounding");
      return false;
    });
  }
  for (const EngineMove& move : moves) {
    std::uint64_t& frontier = written_[layers_->paged_index(move.layer)];
    // Rows that were there before may be half overwritten: they must be written again.
    frontier =
        status.is_ok() ? std::max(frontier, transfer.stop) : std::min(frontier, transfer.start);
  }
  return status;
}

Status SequenceState::export_rows(std::span<const EngineMove> moves,
                                  const EngineTransfer& transfer) const {
  if (Status status = codec::check_isa(); !status) return status;
  for (const EngineMove& move : moves) {
    const codec::RunShape shape = run_shape(move, transfer.stop - transfer.start);
    for_each_run(move, transfer, [&](std::span<const codec::RowRun> runs, std::uint64_t) {
      codec::decode_runs(shape, runs);
      return true;
    });
  }
  return Status::ok();
}

}  // namespace kvcache::sequence
