#include "kvcache/batch.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>

#include "base/checked.h"
#include "cache/batch_core.h"

namespace kvcache {

using arena::ItemId;
using arena::kNoItem;
using sequence::BlockTable;
using sequence::RowsAhead;
using sequence::SequenceState;
using Counts = std::span<const std::uint64_t>;

namespace {

constexpr std::size_t kLeastColumns = 16;

}  // namespace

Status BatchCore::check_open() const {
  if (Status status = mutex.check_process(); !status) return status;
  for (std::size_t row = 0; row < members.size(); ++row) {
    if (members[row]->state) continue;
    return in_row(row, members[row]->check_open());
  }
  return Status::ok();
}

Status BatchCore::check_idle(std::string_view call) const {
  if (Status status = mutex.check_process(); !status) return status;
  for (std::size_t row = 0; row < members.size(); ++row) {
    if (members[row]->state && !members[row]->verify) continue;
    return in_row(row, members[row]->check_idle(call));
  }
  return Status::ok();
}

Status BatchCore::check_size(const char* name, std::size_t size) const {
  if (size == members.size()) return Status::ok();
  return Status::invalid_argument(name, ": ", size, " numbers for ", members.size(), " sequences");
}

Status BatchCore::check_counts(Counts counts) const {
  return counts.empty() ? Status::ok() : check_size("counts", counts.size());
}

Status BatchCore::check_total(Counts counts, const char* name, std::uint64_t brought) const {
  if (Status status = check_counts(counts); !status) return status;
  std::uint64_t total = 0;
  for (std::size_t row = 0; row < members.size(); ++row) {
    const auto sum = checked_add(total, count_of(counts, row));
    if (!sum) {
      return Status::invalid_argument(name, ": ", brought, " given, but counts add up to 2^64 or ",
                                      "more");
    }
    total = *sum;
  }
  if (total == brought) return Status::ok();
  return Status::invalid_argument(name, ": ", brought, " given, but counts add up to ", total);
}

namespace {

// Fills `ahead` with the next positions of each sequence. kInvalidArgument: tokens are not known.
Status take_next(BatchCore& core, Counts counts) {
  for (std::size_t row = 0; row < core.members.size(); ++row) {
    SequenceState& state = *core.members[row]->state;
    const std::uint64_t count = count_of(counts, row);
    if (Status status = state.check_known(count); !status) return in_row(row, status);
    core.ahead[row] = {&state, state.length(), state.length() + count};
  }
  return Status::ok();
}

// Shapes of all rows together, and that there are as many as counts and starts say.
template <typename View>
Status check_rows(const BatchCore& core, std::int32_t layer, Counts starts, Counts counts,
                  std::span<const View> components) {
  if (Status status = core.check_size("starts", starts.size()); !status) return status;
  if (Status status = core.members[0]->state->check_rows(layer, components); !status) return status;
  return core.check_total(counts, "rows", components[0].tokens);
}

void fill_row(const BlockTable& table, std::int32_t* row, std::size_t columns) {
  const std::vector<ItemId>& pages = table.pages();
  std::copy(pages.begin(), pages.end(), row);
  std::fill(row + pages.size(), row + columns, kNoItem);
}

// Brings the shown table up to date.
void refresh(const BatchCore& core, std::size_t group, ShownTable& shown) {
  std::size_t blocks = 0;
  for (const auto& member : core.members) {
    blocks = std::max(blocks, member->state->tables()[group].blocks());
  }
  if (blocks > shown.columns || !shown.entries) {
    std::size_t columns = std::max(shown.columns, kLeastColumns);
    while (columns < blocks) columns *= 2;
    auto entries = std::make_shared<std::vector<std::int32_t>>(core.members.size() * columns);
    shown.rows.assign(core.members.size(), {});
    shown.entries = std::move(entries);
    shown.columns = columns;
  }
  for (std::size_t i = 0; i < core.members.size(); ++i) {
    const BlockTable& table = core.members[i]->state->tables()[group];
    ShownTable::Row& row = shown.rows[i];
    std::int32_t* out = shown.entries->data() + i * shown.columns;
    if (row.version != table.version()) {
      fill_row(table, out, shown.columns);
    } else if (row.blocks != table.blocks()) {
      // Entries past the last block are -1 already.
      std::copy(table.pages().begin() + static_cast<std::ptrdiff_t>(row.blocks),
                table.pages().end(), out + row.blocks);
    }
    row = {table.version(), table.blocks()};
  }
}

}  // namespace

Result<Batch> Batch::create(std::span<Sequence* const> sequences) {
  if (sequences.empty()) return Status::invalid_argument("a batch needs at least one sequence");
  std::shared_ptr<BatchCore> core(new BatchCore(), DeleteInOwnProcess());
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    if (sequences[row] == nullptr || !sequences[row]->core_) {
      return Status::invalid_argument(
          "sequences[", row, "]: ", sequences[row] == nullptr ? "null" : "the sequence is closed");
    }
    core->members.push_back(sequences[row]->core_);
    core->order.push_back(sequences[row]->core_.get());
  }
  core->cache = core->members[0]->cache;
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    if (core->members[row]->cache == core->cache) continue;
    return Status::invalid_argument("sequences[", row, "] is of another cache than sequences[0]");
  }
  std::sort(core->order.begin(), core->order.end(), std::less<>());
  const auto twice = std::adjacent_find(core->order.begin(), core->order.end());
  if (twice != core->order.end()) {
    std::vector<std::size_t> rows;
    for (std::size_t row = 0; row < sequences.size(); ++row) {
      if (core->members[row].get() == *twice) rows.push_back(row);
    }
    return Status::invalid_argument("sequences[", rows[0], "] and sequences[", rows[1],
                                    "] are the same");
  }
  core->shown.resize(core->cache->groups.size());
  core->ahead.resize(sequences.size());
  // In a child of the process that made them all of them are of no use.
  if (Status status = core->cache->mutex.check_process(); !status) return status;
  {
    const BatchLock lock(*core);
    if (Status status = core->check_open(); !status) return status;
  }
  return Batch(std::move(core));
}

Status Batch::check_process() const { return core_->mutex.check_process(); }

std::size_t Batch::size() const { return core_->members.size(); }

Result<std::vector<std::uint64_t>> Batch::lengths() const {
  const BatchLock lock(*core_);
  if (Status status = core_->check_open(); !status) return status;
  std::vector<std::uint64_t> lengths;
  for (const auto& member : core_->members) lengths.push_back(member->state->length());
  return lengths;
}

Status Batch::extend(std::span<const std::int32_t> tokens, Counts counts) {
  const BatchLock lock(*core_);
  if (Status status = core_->check_idle("extend"); !status) return status;
  if (Status status = core_->check_total(counts, "tokens", tokens.size()); !status) return status;
  for (std::size_t row = 0; row < size(); ++row) {
    core_->members[row]->state->reserve_tokens(count_of(counts, row));
  }
  std::size_t offset = 0;
  for (std::size_t row = 0; row < size(); ++row) {
    const std::size_t count = count_of(counts, row);
    core_->members[row]->state->extend(tokens.subspan(offset, count));
    offset += count;
  }
  return Status::ok();
}

Status Batch::prepare(Counts counts) {
  const BatchLock lock(*core_);
  if (Status status = core_->check_idle("prepare"); !status) return status;
  if (Status status = core_->check_counts(counts); !status) return status;
  if (Status status = take_next(*core_, counts); !status) return status;
  return core_->cache->make_writable(core_->ahead, core_->cache->groups);
}

Status Batch::write(std::int32_t layer, Counts starts, Counts counts,
                    std::span<const codec::RowsView> components) {
  const BatchLock lock(*core_);
  BatchCore& core = *core_;
  if (Status status = core.check_idle("write"); !status) return status;
  if (Status status = core.cache->check_backing("write"); !status) return status;
  if (Status status = check_rows(core, layer, starts, counts, components); !status) return status;
  std::vector<std::vector<codec::RowsView>> parts;
  std::size_t offset = 0;
  for (std::size_t row = 0; row < size(); ++row) {
    SequenceState& state = *core.members[row]->state;
    const std::uint64_t count = count_of(counts, row);
    parts.push_back(slice(components, offset, count));
    if (Status status = state.check_write(layer, starts[row], parts.back()); !status) {
      return in_row(row, status);
    }
    core.ahead[row] = {&state, starts[row], starts[row] + count};
    offset += count;
  }
  const std::vector<std::size_t> groups = core.cache->layers.groups({&layer, 1});
  if (Status status = core.cache->make_writable(core.ahead, groups); !status) return status;
  for (std::size_t row = 0; row < size(); ++row) {
    const Status status = core.ahead[row].state->encode(layer, starts[row], parts[row]);
    if (status) continue;
    for (std::size_t i = 0; i < row; ++i) core.ahead[i].state->forget_rows(layer, starts[i]);
    return in_row(row, status);
  }
  return Status::ok();
}

Status Batch::read(std::int32_t layer, Counts starts, Counts counts,
                   std::span<const codec::MutableRowsView> components) const {
  const BatchLock lock(*core_);
  const BatchCore& core = *core_;
  if (Status status = core.check_open(); !status) return status;
  if (Status status = core.cache->check_backing("read"); !status) return status;
  if (Status status = check_rows(core, layer, starts, counts, components); !status) return status;
  for (std::size_t row = 0; row < size(); ++row) {
    const std::uint64_t count = count_of(counts, row);
    if (count > UINT64_MAX - starts[row]) {
      return Status::invalid_argument("sequences[", row, "]: positions overflow");
    }
    const Status status =
        core.members[row]->state->check_read(layer, starts[row], starts[row] + count);
    if (!status) return in_row(row, status);
  }
  std::size_t offset = 0;
  for (std::size_t row = 0; row < size(); ++row) {
    const std::size_t count = count_of(counts, row);
    const auto part = slice(components, offset, count);
    const Status status = core.members[row]->state->decode(layer, starts[row], part);
    if (!status) return in_row(row, status);
    offset += count;
  }
  return Status::ok();
}

Status Batch::advance(Counts counts) {
  const BatchLock lock(*core_);
  BatchCore& core = *core_;
  if (Status status = core.check_idle("advance"); !status) return status;
  if (Status status = core.check_counts(counts); !status) return status;
  for (std::size_t row = 0; row < size(); ++row) {
    const Status status =
        core.members[row]->state->check_advance(count_of(counts, row), core.cache->backing);
    if (!status) return in_row(row, status);
  }
  if (!core.cache->backing) {
    // A ledger has no writes: its pages are taken here.
    if (Status status = take_next(core, counts); !status) return status;
    if (Status status = core.cache->make_writable(core.ahead, core.cache->groups); !status) {
      return status;
    }
  }
  for (std::size_t row = 0; row < size(); ++row) {
    static_cast<void>(core.members[row]->state->advance(count_of(counts, row), false));
  }
  return Status::ok();
}

Status Batch::advance_in_place(Counts counts) {
  const BatchLock lock(*core_);
  BatchCore& core = *core_;
  if (Status status = core.check_idle("advance_in_place"); !status) return status;
  if (Status status = core.check_counts(counts); !status) return status;
  if (Status status = take_next(core, counts); !status) return status;
  for (std::size_t row = 0; row < size(); ++row) {
    const Status status = core.cache->check_in_place(core.ahead[row]);
    if (!status) return in_row(row, status);
  }
  for (std::size_t row = 0; row < size(); ++row) {
    static_cast<void>(core.members[row]->state->advance(count_of(counts, row), false));
  }
  return Status::ok();
}

Result<BatchTable> Batch::block_table(std::size_t group) {
  const BatchLock lock(*core_);
  if (Status status = core_->check_open(); !status) return status;
  if (Status status = core_->cache->check_group(group); !status) return status;
  ShownTable& shown = core_->shown[group];
  refresh(*core_, group, shown);
  return BatchTable{shown.entries->data(), size(), shown.columns, shown.entries};
}

Status Batch::block_table(std::size_t group, std::span<std::int32_t> out,
                          std::size_t columns) const {
  const BatchLock lock(*core_);
  if (Status status = core_->check_open(); !status) return status;
  if (Status status = core_->cache->check_group(group); !status) return status;
  if (columns == 0 || out.size() / columns != size() || out.size() % columns != 0) {
    return Status::invalid_argument("block_table: ", out.size(), " entries are not ", size(),
                                    " rows of ", columns, " columns");
  }
  for (std::size_t row = 0; row < size(); ++row) {
    const std::size_t blocks = core_->members[row]->state->tables()[group].blocks();
    if (blocks <= columns) continue;
    return Status::invalid_argument("sequences[", row, "] has ", blocks, " blocks, the table has ",
                                    columns, " columns");
  }
  for (std::size_t row = 0; row < size(); ++row) {
    fill_row(core_->members[row]->state->tables()[group], out.data() + row * columns, columns);
  }
  return Status::ok();
}

}  // namespace kvcache
