#include "kvcache/batch_verify.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cache/batch_core.h"
#include "cache/verify_life.h"
#include "speculate/carry_table.h"
#include "speculate/verify_table.h"

namespace kvcache {

using speculate::KeptRows;
using speculate::VerifyState;
using Counts = std::span<const std::uint64_t>;
using Lengths = std::vector<std::uint64_t>;

namespace {

// The tree of each sequence, or none. kInvalidArgument, kUnsupported: naming the sequence.
Result<std::vector<TokenTree>> trees_of(const BatchCore& core, Counts counts,
                                        std::span<const std::int32_t> parents) {
  const std::size_t size = core.members.size();
  const std::uint64_t rows = std::accumulate(counts.begin(), counts.end(), std::uint64_t{size}) +
                             (counts.empty() ? size : 0);
  if (parents.size() != rows) {
    return Status::invalid_argument("parents: ", parents.size(), " given, expected ", rows,
                                    ", the drafts and a root for each sequence");
  }
  std::vector<TokenTree> trees;
  trees.reserve(size);
  for (std::size_t row = 0; row < size; ++row) {
    const std::uint64_t nodes = count_of(counts, row) + 1;
    auto tree = TokenTree::create(parents.first(nodes));
    if (!tree) return in_row(row, tree.status());
    Status status = VerifyState::check_tree(core.cache->plan, *tree, nodes - 1);
    if (!status) return in_row(row, status);
    trees.push_back(std::move(tree).value());
    parents = parents.subspan(nodes);
  }
  return trees;
}

// Addresses of the slots of a batch: of the live state, then after each row.
std::vector<std::uint64_t> slot_addresses(const BatchCore& core, std::uint64_t most_rows) {
  const std::size_t size = core.members.size();
  const arena::Pool& pool = *core.cache->pools.snapshots;
  std::vector<std::uint64_t> addresses((most_rows + 1) * size, 0);
  for (std::size_t row = 0; row < size; ++row) {
    const SequenceCore& member = *core.members[row];
    addresses[row] = reinterpret_cast<std::uintptr_t>(member.state->slot_bytes());
    const auto slots = member.verify->slots();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      addresses[(i + 1) * size + row] = reinterpret_cast<std::uintptr_t>(pool.data(slots[i]));
    }
  }
  return addresses;
}

}  // namespace

// ---- Beginning --------------------------------------------------------------------------------

Result<BatchVerifySession> Batch::begin_verify(std::span<const std::int32_t> drafts, Counts counts,
                                               const BatchVerifyOptions& options) {
  BatchVerifySession session;  // before the locks: should memory run out, it rolls back behind them
  const BatchLock lock(*core_);
  BatchCore& core = *core_;
  if (Status status = core.check_idle("begin_verify"); !status) return status;
  if (Status status = core.check_total(counts, "drafts", drafts.size()); !status) return status;
  for (std::size_t row = 0; row < size(); ++row) {
    Status status = VerifyState::check_begin(*core.members[row]->state);
    const std::uint64_t rows = count_of(counts, row) + 1;
    if (status) status = VerifyState::check_strategy(core.cache->plan, options.strategy, rows);
    if (!status) return in_row(row, status);
  }
  std::vector<TokenTree> trees;
  if (options.parents) {
    auto found = trees_of(core, counts, *options.parents);
    if (!found) return found.status();
    trees = std::move(found).value();
  }
  if (options.table != nullptr) {
    if (Status status = session.claim(*core.cache, *options.table, size(), counts); !status) {
      return status;
    }
  }
  if (options.carry != nullptr) {
    if (options.strategy == VerifyStrategy::kSteps) {
      return Status::invalid_argument("begin_verify: a carry table, but the strategy is steps");
    }
    if (Status status = session.claim(*core.cache, *options.carry, size()); !status) return status;
  }
  session.strategy_ = options.strategy;
  session.open_rows(core_, drafts, counts, std::move(trees));
  CacheCore& cache = *core.cache;
  std::vector<sequence::PageCopy> copies;
  Status prepared;
  {
    const std::lock_guard cache_lock(cache.mutex);
    prepared = take_memory(cache, core.members, copies);
  }
  if (!prepared) {
    session.end();
    return prepared;
  }
  cache.copy_shared(*core.members[0]->state, copies);
  for (const auto& member : core.members) place_inputs(*member);
  session.stage();
  for (const auto& member : core.members) member->verify_begun = true;
  return session;
}

Status BatchVerifySession::claim(const CacheCore& cache, const VerifyTable& table, std::size_t size,
                                 Counts counts) {
  if (Status status = cache.check_backing("begin_verify with a verify table"); !status) {
    return status;
  }
  const std::uint64_t most = counts.empty() ? 1 : *std::max_element(counts.begin(), counts.end());
  if (Status status = table.core_->check_fits(size, most + 1); !status) return status;
  if (Status status = table.core_->claim(cache.plan); !status) return status;
  table_ = table.core_;
  return Status::ok();
}

Status BatchVerifySession::claim(const CacheCore& cache, const CarryTable& table,
                                 std::size_t size) {
  Status status = cache.check_backing("begin_verify with a carry table");
  if (status) status = table.core_->claim(cache.plan, size);
  if (status) carry_ = table.core_;
  return status;
}

// Own. Every sequence has a verify from here on; see end().
void BatchVerifySession::open_rows(const std::shared_ptr<BatchCore>& core,
                                   std::span<const std::int32_t> drafts, Counts counts,
                                   std::vector<TokenTree> trees) {
  const std::size_t size = core->members.size();
  serials_.assign(size, 0);  // of nobody
  tokens_.reserve(drafts.size() + size);
  positions_.reserve(drafts.size() + size);
  offsets_.reserve(size + 1);
  starts_.reserve(size);
  offsets_.push_back(0);
  core_ = core;
  open_ = true;
  for (std::size_t i = 0; i < size; ++i) {
    SequenceCore& member = *core->members[i];
    const std::uint64_t count = count_of(counts, i);
    std::optional<TokenTree> tree;
    if (!trees.empty()) tree = std::move(trees[i]);
    const VerifyState& verify =
        member.verify.emplace(core->cache->plan, core->cache->pools, *member.state,
                              drafts.first(count), std::move(tree), strategy_);
    serials_[i] = ++member.verify_serial;
    if (table_) member.verify->fill_by_table();
    member.verify->reserve_slots();
    drafts = drafts.subspan(count);
    tokens_.insert(tokens_.end(), verify.tokens().begin(), verify.tokens().end());
    for (std::uint64_t row = 0; row < verify.rows(); ++row) {
      positions_.push_back(static_cast<std::int64_t>(verify.position(row)));
    }
    starts_.push_back(static_cast<std::int64_t>(verify.start()));
    offsets_.push_back(static_cast<std::int32_t>(tokens_.size()));
  }
}

void BatchVerifySession::stage() {
  for (std::size_t i = 0; i < size() && carry_; ++i) {
    const SequenceCore& member = *core_->members[i];
    carry_->stage(i, reinterpret_cast<std::uintptr_t>(member.state->slot_bytes()),
                  reinterpret_cast<std::uintptr_t>(member.stash.data()));
  }
  if (!table_) return;
  std::uint64_t most = 0;
  for (const auto& member : core_->members) most = std::max(most, member->verify->rows());
  table_->stage(slot_addresses(*core_, most), size());
}

// ---- Life -------------------------------------------------------------------------------------

BatchVerifySession::BatchVerifySession(BatchVerifySession&& other) noexcept {
  *this = std::move(other);
}

BatchVerifySession& BatchVerifySession::operator=(BatchVerifySession&& other) noexcept {
  if (this != &other) {
    if (open_) static_cast<void>(rollback());
    core_ = std::move(other.core_);
    open_ = std::exchange(other.open_, false);
    serials_ = std::move(other.serials_);
    tokens_ = std::move(other.tokens_);
    positions_ = std::move(other.positions_);
    offsets_ = std::move(other.offsets_);
    starts_ = std::move(other.starts_);
    strategy_ = other.strategy_;
    table_ = std::move(other.table_);
    carry_ = std::move(other.carry_);
  }
  return *this;
}

BatchVerifySession::~BatchVerifySession() {
  if (open_) static_cast<void>(rollback());
  // They were claimed, but no session came of it.
  if (table_) table_->give_back();
  if (carry_) carry_->give_back();
}

Status BatchVerifySession::check_process() const {
  return core_ ? core_->mutex.check_process() : Status::ok();
}

bool BatchVerifySession::is_open() const {
  if (!core_ || !check_process()) return false;
  const std::lock_guard lock(core_->mutex);
  return open_;
}

Status BatchVerifySession::check_open(std::string_view call) const {
  if (Status status = check_process(); !status) return status;
  if (!open_) return verify_ended(call);
  for (std::size_t i = 0; i < size(); ++i) {
    const SequenceCore& member = *core_->members[i];
    if (member.verify && member.verify_serial == serials_[i]) continue;
    return in_row(
        i, Status::invalid_argument(call, ": it was closed; the others can only be rolled back"));
  }
  return Status::ok();
}

void BatchVerifySession::end() {
  {
    const std::lock_guard lock(core_->cache->mutex);
    for (std::size_t i = 0; i < serials_.size(); ++i) {
      SequenceCore& member = *core_->members[i];
      if (member.verify && member.verify_serial == serials_[i]) end_verify(member);
    }
  }
  if (table_) table_->give_back();
  if (carry_) carry_->give_back();
  table_.reset();
  carry_.reset();
  open_ = false;
}

// ---- Rows and state ---------------------------------------------------------------------------

Status BatchVerifySession::write(std::int32_t layer, std::span<const codec::RowsView> components) {
  if (!core_) return verify_ended("write");
  const BatchLock lock(*core_);
  if (Status status = check_open("write"); !status) return status;
  if (Status status = core_->cache->check_backing("write"); !status) return status;
  const auto state_of = [&](std::size_t i) -> sequence::SequenceState& {
    return *core_->members[i]->state;
  };
  if (Status status = state_of(0).check_rows(layer, components); !status) return status;
  if (components[0].tokens != rows()) {
    return Status::invalid_argument("layer ", layer, ": the verify session has ", rows(),
                                    " rows, got ", components[0].tokens);
  }
  for (std::size_t i = 0; i < size(); ++i) {
    const auto first = static_cast<std::size_t>(offsets_[i]);
    const auto part = slice(components, first, static_cast<std::size_t>(offsets_[i + 1]) - first);
    const Status status = state_of(i).encode(layer, core_->members[i]->verify->start(), part);
    if (status) continue;
    for (std::size_t j = 0; j < i; ++j) {
      state_of(j).forget_rows(layer, core_->members[j]->verify->start());
    }
    return in_row(i, status);
  }
  return Status::ok();
}

Status BatchVerifySession::write_records(std::int32_t layer, std::string_view name,
                                         const codec::RowsView& rows) {
  if (!core_) return verify_ended("write_records");
  const BatchLock lock(*core_);
  if (Status status = check_open("write_records"); !status) return status;
  CacheCore& cache = *core_->cache;
  if (Status status = cache.check_backing("write_records"); !status) return status;
  const auto stream = cache.layers.stream(layer, name);
  if (!stream) return stream.status();
  const std::uint64_t pooled = (*stream)->record_tokens;
  if (Status status = core_->members[0]->state->check_record_shape(**stream, rows); !status) {
    return status;
  }
  std::uint64_t total = 0;
  for (const auto& member : core_->members) {
    const VerifyState& verify = *member->verify;
    total += (verify.start() + verify.rows()) / pooled - verify.start() / pooled;
  }
  if (rows.tokens != total) {
    return Status::invalid_argument("layer ", layer, " ", name, ": the verify session completes ",
                                    total, " records, got ", rows.tokens);
  }
  std::size_t offset = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    const VerifyState& verify = *core_->members[i]->verify;
    const std::uint64_t first = verify.start() / pooled;
    const std::uint64_t count = (verify.start() + verify.rows()) / pooled - first;
    const auto part = slice(std::span(&rows, 1), offset, count);
    // Of those before, records are written whole; the failed ones must be written again.
    const Status status = core_->members[i]->state->encode(**stream, first, part[0]);
    if (!status) return in_row(i, status);
    offset += count;
  }
  return Status::ok();
}

Result<StateView> BatchVerifySession::state(std::size_t sequence, std::uint64_t row,
                                            std::int32_t layer, std::string_view name) {
  if (!core_) return verify_ended("state");
  const BatchLock lock(*core_);
  if (Status status = check_open("state"); !status) return status;
  if (Status status = check_member("state", sequence); !status) return status;
  return verify_tensor(*core_->members[sequence], row, layer, name);
}

// ---- The verdict ------------------------------------------------------------------------------

Result<Lengths> BatchVerifySession::commit(Counts accepted, bool in_place) {
  return commit_rows(accepted, {}, in_place);
}

Result<Lengths> BatchVerifySession::commit_paths(std::span<const std::int32_t> rows, Counts counts,
                                                 bool in_place) {
  return commit_rows(counts, rows, in_place);
}

Result<Lengths> BatchVerifySession::commit_rows(Counts counts,
                                                std::optional<std::span<const std::int32_t>> paths,
                                                bool in_place) {
  if (!core_) return verify_ended("commit");
  const BatchLock lock(*core_);
  if (Status status = check_open("commit"); !status) return status;
  if (Status status = core_->check_size("accepted", counts.size()); !status) return status;
  if (paths) {
    if (Status status = core_->check_total(counts, "paths", paths->size()); !status) return status;
  }
  engage();
  std::vector<KeptRows> kept(size());
  std::size_t offset = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    kept[i].count = counts[i];
    if (paths) kept[i].path = paths->subspan(offset, counts[i]);
    offset += counts[i];
    if (counts[i] == 0) continue;  // it stays where it was
    const Status status = check_commit(*core_->members[i], kept[i], in_place);
    if (!status) return in_row(i, status);
  }
  Lengths lengths(size());
  for (std::size_t i = 0; i < size(); ++i) reserve_rows(*core_->members[i], kept[i]);
  // Nothing fails from here on.
  for (std::size_t i = 0; i < size(); ++i) {
    if (counts[i] > 0) keep_rows(*core_->members[i], kept[i]);
    lengths[i] = core_->members[i]->state->length();
  }
  end();
  return lengths;
}

Status BatchVerifySession::rollback() {
  if (!core_) return verify_ended("rollback");
  const BatchLock lock(*core_);
  if (Status status = check_process(); !status) return status;
  if (!open_) return verify_ended("rollback");
  end();
  return Status::ok();
}

}  // namespace kvcache
