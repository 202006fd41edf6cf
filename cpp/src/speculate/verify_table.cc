#include "speculate/verify_table.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/checked.h"

namespace kvcache {

Status VerifyTableCore::claim(const StatePlan& plan) {
  if (Status status = claimed_.check_plan(fixed, plan); !status) return status;
  return claimed_.take();
}

Status VerifyTableCore::check_fits(std::uint64_t sequences, std::uint64_t most_rows) const {
  if (Status status = claimed_.check_room(sequences, batch_rows); !status) return status;
  if (most_rows < tables) return Status::ok();
  return Status::invalid_argument("begin_verify: ", most_rows,
                                  " rows of one sequence need as many tables and one for the live "
                                  "state, but the verify table has ",
                                  tables, "; raise its tables");
}

void VerifyTableCore::stage(std::span<const std::uint64_t> slots, std::uint64_t sequences) {
  staged_rows_ = sequences;
  staged_tables_ = slots.size() / sequences;
  // What an entry shows of an address: all of it, or nothing where there is no slot.
  std::vector<std::uint64_t> shown;
  shown.reserve(slots.size());
  for (const std::uint64_t slot : slots) shown.push_back(slot == 0 ? 0 : UINT64_MAX);
  for (std::size_t i = 0; i < fixed.size(); ++i) {
    const std::uint64_t offset = fixed[i].offset;
    for (std::uint64_t table = 0; table < staged_tables_; ++table) {
      const std::uint64_t* from = slots.data() + table * sequences;
      const std::uint64_t* mask = shown.data() + table * sequences;
      std::uint64_t* to = entries.get() + (i * tables + table) * batch_rows;
      for (std::uint64_t row = 0; row < sequences; ++row) {
        to[row] = (from[row] + offset) & mask[row];
      }
    }
  }
}

void VerifyTableCore::give_back() {
  for (std::size_t i = 0; i < fixed.size(); ++i) {
    for (std::uint64_t table = 0; table < staged_tables_; ++table) {
      std::fill_n(entries.get() + (i * tables + table) * batch_rows, staged_rows_,
                  std::uint64_t{0});
    }
  }
  staged_tables_ = staged_rows_ = 0;
  claimed_.give_back();
}

Result<VerifyTable> VerifyTable::create(const StatePlan& plan, std::uint64_t batch_rows,
                                        std::uint64_t tables) {
  if (!plan.has_fixed_state()) {
    return Status::invalid_argument("verify table: the plan has no fixed-size state to point at");
  }
  if (batch_rows == 0 || tables < 2) {
    return Status::invalid_argument("verify table: expected batch_rows of 1 or more and tables of ",
                                    "2 or more, got ", batch_rows, " and ", tables);
  }
  const auto table = checked_mul(batch_rows, plan.fixed().size() * sizeof(std::uint64_t));
  const auto bytes = checked_mul(table.value_or(UINT64_MAX), tables);
  if (!table || !bytes || *bytes > kMostTableBytes) {
    return Status::invalid_argument("verify table: ", tables, " tables of ", batch_rows,
                                    " rows for ", plan.fixed().size(), " tensors take more than ",
                                    kMostTableBytes, " bytes");
  }
  auto core = std::make_shared<VerifyTableCore>();
  core->fixed = plan.fixed();
  core->batch_rows = batch_rows;
  core->tables = tables;
  // Zeros that take no memory before they are used.
  core->entries.reset(static_cast<std::uint64_t*>(std::calloc(1, *bytes)));
  if (!core->entries) {
    return Status::out_of_capacity("verify table: the system has no ", *bytes, " bytes");
  }
  return VerifyTable(std::move(core));
}

Status VerifyTable::check_process() const { return core_->check_process(); }

std::uint64_t VerifyTable::batch_rows() const { return core_->batch_rows; }
std::uint64_t VerifyTable::tables() const { return core_->tables; }
std::uint64_t VerifyTable::bytes() const {
  return core_->fixed.size() * core_->tables * core_->batch_rows * sizeof(std::uint64_t);
}
bool VerifyTable::is_staged() const { return core_->check_process() && core_->is_staged(); }

Result<PointerTable> VerifyTable::pointers(std::int32_t layer, std::string_view name) const {
  if (Status status = check_process(); !status) return status;
  std::string known;
  for (std::size_t i = 0; i < core_->fixed.size(); ++i) {
    const FixedComponent& component = core_->fixed[i];
    if (component.layer != layer) continue;
    if (component.name == name) {
      const std::uint64_t* data = core_->entries.get() + i * core_->tables * core_->batch_rows;
      return PointerTable{data, core_->tables, core_->batch_rows, core_};
    }
    known += (known.empty() ? "" : ", ") + component.name;
  }
  return Status::not_found("layer ", layer, " keeps no tensor '", name, "'",
                           known.empty() ? "" : "; it has ", known);
}

}  // namespace kvcache
