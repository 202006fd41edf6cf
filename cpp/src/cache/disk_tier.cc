#include "cache/disk_tier.h"

#include <algorithm>
#include <utility>

#include "base/sha256.h"
#include "cache/cache_core.h"
#include "cache/tier_layout.h"
#include "cache/tier_owner.h"

namespace kvcache {
namespace {

using arena::kNoItem;
using arena::SnapshotRef;
using persist::Digest;
using persist::Located;
using persist::RecordKind;
using persist::SegmentLog;

Digest origin_of(const std::string& fingerprint, std::uint64_t block_tokens,
                 const std::string& weights) {
  const std::string text = fingerprint + '\n' + std::to_string(block_tokens) + '\n' + weights;
  Sha256 sha;
  sha.update(text.data(), text.size());
  return sha.finish();
}

}  // namespace

DiskTier::DiskTier(const StatePlan& plan, const arena::PoolMap& pools,
                   const DiskTierOptions& options, std::unique_ptr<SegmentLog> log)
    : plan_(plan),
      pools_(pools),
      options_(options),
      boundaries_(needs_boundaries(plan)),
      run_blocks_(most_run_blocks(plan)),
      fingerprint_(plan.fingerprint()),
      log_(std::move(log)) {}

Result<std::unique_ptr<DiskTier>> DiskTier::open(const StatePlan& plan, const arena::PoolMap& pools,
                                                 const DiskTierOptions& options,
                                                 std::string weights, TierWriter::Release release) {
  if (options.read_threads == 0 || options.read_threads > 64) {
    return Status::invalid_argument("disk tier: read_threads: expected 1..64, got ",
                                    options.read_threads);
  }
  persist::LogOptions log_options;
  log_options.access = options.access;
  log_options.max_bytes = options.max_bytes;
  log_options.durability = options.durability;
  log_options.group_bytes = options.group_bytes;
  auto log = SegmentLog::open(persist::System::real(), options.path, log_options);
  if (!log) return log.status();
  std::unique_ptr<DiskTier> tier(new DiskTier(plan, pools, options, std::move(log).value()));
  tier->weights_ = std::move(weights);
  tier->origin_ = origin_of(tier->fingerprint_, plan.block_tokens(), tier->weights_);
  auto writer = TierWriter::start(*tier->log_, options, std::move(release));
  if (!writer) return writer.status();
  tier->writer_ = std::move(writer).value();
  return tier;
}

std::optional<std::string> DiskTier::space_key(std::string_view key) const {
  const std::lock_guard lock(mutex_);
  if (nameless_) return std::nullopt;
  return with_length(fingerprint_) + with_length(weights_) + std::string(key);
}

void DiskTier::set_weights(const std::string& weights) {
  const std::lock_guard lock(mutex_);
  nameless_ = weights == weights_;
  if (nameless_) {
    counters_.last_error =
        "the weights have changed and have no new name: the disk tier is not used";
  }
  weights_ = weights;
  origin_ = origin_of(fingerprint_, plan_.block_tokens(), weights_);
}

// ---- Storing ----------------------------------------------------------------------------------

std::vector<std::uint64_t> DiskTier::run_starts(const prefix::BlockChain& chain,
                                                bool waiting) const {
  std::vector<std::uint64_t> starts = log_->run_starts(chain.digests());
  if (waiting) writer_->add_waiting(chain.digests(), starts);
  return starts;
}

const SnapshotRef* DiskTier::snapshot_at(const TierPath& path, std::uint64_t position) const {
  for (const SnapshotRef& snapshot : path.snapshots) {
    const bool exact = snapshot.format == SnapshotFormat::kExact && snapshot.item != kNoItem;
    if (snapshot.position == position && exact) return &snapshot;
  }
  return nullptr;
}

// A record of tokens [first, last). None: a page of it is not there.
std::optional<TierJob> DiskTier::make_job(const TierPath& path, const std::vector<PageOf>& pages,
                                          const SnapshotRef* snapshot, std::uint64_t first,
                                          std::uint64_t last) const {
  TierJob job;
  job.header.key = path.chain.digest_at(last);
  job.header.parent = path.chain.digest_at(first);
  job.header.first = first;
  {
    const std::lock_guard lock(mutex_);
    job.header.origin = origin_;
  }
  job.owner = path.owner;
  const auto tokens = path.tokens.subspan(first, last - first);
  job.tokens.assign(tokens.begin(), tokens.end());
  if (snapshot != nullptr) {
    job.snapshot = snapshot->item;
    job.payload.push_back({pools_.snapshots->data(snapshot->item), plan_.slot_bytes()});
  }
  for (const PageOf& page : pages) {
    const auto& table = path.tables[page.group];
    if (page.block >= table.size() || table[page.block] == kNoItem) return std::nullopt;
    const arena::ItemId item = table[page.block];
    const Group& group = plan_.groups()[page.group];
    std::byte* bytes = pools_.pages[page.group]->data(item);
    const std::uint64_t start = page.block * plan_.block_tokens();
    if (last < start + plan_.block_tokens()) {
      // Whoever owns the page may be writing the rows behind the position.
      job.copies.emplace_back(group.page_bytes);
      copy_rows(group, group.rows(last) - group.rows(start), bytes, job.copies.back().data());
      bytes = job.copies.back().data();
    } else {
      job.pages.emplace_back(page.group, item);
    }
    job.payload.push_back({bytes, group.page_bytes});
  }
  job.bytes = persist::total_bytes(job.payload) + job.tokens.size() * sizeof(std::int32_t);
  return job;
}

// Runs that are missing so that the prefix of `block` blocks is whole; each begins where another
// ends, and runs end at multiples of their greatest length, so that paths share them. The latest
// comes first. `starts` learns of them.
void DiskTier::plan_chain(const TierPath& path, std::uint64_t block,
                          std::vector<std::uint64_t>& starts, std::vector<TierJob>& jobs) const {
  const std::uint64_t tokens = plan_.block_tokens();
  std::vector<TierJob> missing;
  while (block > 0) {
    if (starts[block - 1] != SegmentLog::kNowhere) {
      block = std::min(starts[block - 1] / tokens, block - 1);
      continue;
    }
    std::uint64_t first = block - 1;
    while (first % run_blocks_ != 0 && starts[first - 1] == SegmentLog::kNowhere) --first;
    auto job =
        make_job(path, run_pages(plan_, first, block), nullptr, first * tokens, block * tokens);
    if (!job) return;  // nothing before or after it is of use
    job->header.kind = RecordKind::kRun;
    starts[block - 1] = first * tokens;
    missing.push_back(std::move(*job));
    block = first;
  }
  std::move(missing.rbegin(), missing.rend(), std::back_inserter(jobs));
}

// Positions of the path that are stored so that they can be resumed.
std::vector<std::uint64_t> DiskTier::boundaries_of(const TierPath& path,
                                                   std::uint64_t& last) const {
  std::vector<std::uint64_t> positions;
  if (!boundaries_) return positions;
  if (plan_.has_fixed_state()) {
    for (const SnapshotRef& snapshot : path.snapshots) {
      if (snapshot.position == 0 || snapshot.position > path.tokens.size()) continue;
      if (positions.empty() || positions.back() != snapshot.position) {
        positions.push_back(snapshot.position);
      }
    }
    return positions;
  }
  // Without snapshots any position does. Windows are stored once for each, so they are some way
  // apart; the same prompt again leaves its last token to run.
  const std::uint64_t end = path.tokens.size();
  const std::uint64_t stride = run_blocks_ * plan_.block_tokens();
  const bool near = last > 0 && end < last + (path.is_last ? 1 : stride);
  if (end < 2 || near) return positions;
  for (const std::uint64_t position : {end - 1, end}) {
    const auto pages = boundary_pages(plan_, position);
    const bool whole = std::all_of(pages.begin(), pages.end(), [&](const PageOf& page) {
      const auto& table = path.tables[page.group];
      return page.block < table.size() && table[page.block] != kNoItem;
    });
    if (!whole) continue;
    positions.push_back(position);
    break;
  }
  last = end;
  return positions;
}

// Jobs that belong together: all of them, or none and the rest of the path neither. They are queued
// before the next ones ask for room, which may have to wait for these.
bool DiskTier::queue(std::vector<TierJob> jobs, const Hold& hold) {
  if (jobs.empty()) return true;
  std::uint64_t bytes = 0;
  for (const TierJob& job : jobs) bytes += job.bytes;
  if (!writer_->reserve(bytes, jobs.size())) return false;
  for (const TierJob& job : jobs) writer_->announce(job);
  hold(jobs);
  writer_->submit(std::move(jobs));
  return true;
}

void DiskTier::store(const TierPath& path, std::uint64_t& last_boundary, const Hold& hold) {
  if (!log_->is_writer()) return;
  if (path.owner.size() > persist::kMaxOwnerBytes) {
    const std::lock_guard lock(mutex_);
    counters_.last_error = "the names of a space are too long to be stored";
    ++counters_.dropped_records;
    return;
  }
  const std::uint64_t block_tokens = plan_.block_tokens();
  std::vector<std::uint64_t> starts = run_starts(path.chain, true);
  std::uint64_t skipped = 0;
  bool room = true;
  const auto positions = boundaries_of(path, last_boundary);
  for (std::size_t i = 0; i < positions.size() && room; ++i) {
    const std::uint64_t position = positions[i];
    const Digest key = path.chain.digest_at(position);
    if (log_->find(RecordKind::kBoundary, key) || writer_->is_boundary_waiting(key)) continue;
    const SnapshotRef* snapshot = snapshot_at(path, position);
    const std::uint64_t block = position / block_tokens;
    std::vector<TierJob> fresh;
    std::optional<TierJob> job;
    if (snapshot != nullptr || !plan_.has_fixed_state()) {
      job =
          make_job(path, boundary_pages(plan_, position), snapshot, block * block_tokens, position);
    }
    if (!job) {
      ++skipped;
      continue;
    }
    plan_chain(path, block, starts, fresh);
    job->header.kind = RecordKind::kBoundary;
    fresh.push_back(std::move(*job));
    room = queue(std::move(fresh), hold);
  }
  // Runs past the last boundary serve the next one.
  std::vector<TierJob> rest;
  if (room) plan_chain(path, path.tokens.size() / block_tokens, starts, rest);
  queue(std::move(rest), hold);
  const std::lock_guard lock(mutex_);
  counters_.skipped_snapshots += skipped;
}

// ---- Finding ----------------------------------------------------------------------------------

std::optional<TierHit> DiskTier::find(const prefix::BlockChain& chain,
                                      std::span<const std::int32_t> tokens, std::uint64_t at_least,
                                      std::uint64_t at_most) {
  log_->refresh();
  const std::uint64_t block_tokens = plan_.block_tokens();
  const std::uint64_t blocks =
      std::min<std::uint64_t>(at_most / block_tokens, chain.digests().size());
  const std::vector<std::uint64_t> starts = run_starts(chain, false);
  // Of each number of blocks, whether runs lead there from the beginning.
  std::vector<bool> whole(blocks + 1, false);
  whole[0] = true;
  for (std::uint64_t block = 1; block <= blocks; ++block) {
    const std::uint64_t start = starts[block - 1];
    whole[block] =
        start < block * block_tokens && start % block_tokens == 0 && whole[start / block_tokens];
  }
  TierHit hit;
  for (std::uint64_t block = blocks + 1; block-- > 0;) {
    if ((block + 1) * block_tokens <= at_least) break;
    if (!whole[block]) continue;
    if (!boundaries_ && block * block_tokens > at_least) hit.position = block * block_tokens;
    if (boundaries_) {
      for (Located& found : log_->find_boundaries(chain.digest_at(block * block_tokens))) {
        const std::uint64_t end = found.header.end();
        const bool here = found.header.first == block * block_tokens && end > hit.position &&
                          end > at_least && end <= at_most &&
                          found.header.key == chain.digest_at(end);
        if (!here) continue;
        hit.position = end;
        hit.boundary = std::move(found);
      }
    }
    if (hit.position == 0) continue;
    std::vector<Digest> keys;
    for (std::uint64_t at = block; at > 0; at = starts[at - 1] / block_tokens) {
      keys.push_back(chain.digests()[at - 1]);
    }
    std::reverse(keys.begin(), keys.end());
    for (auto& run : log_->find_runs(keys)) {
      if (!run) return std::nullopt;  // it has gone meanwhile
      log_->use(*run);
      hit.runs.push_back(std::move(*run));
    }
    if (hit.boundary) log_->use(*hit.boundary);
    return hit;
  }
  return std::nullopt;
}

void DiskTier::fail(const Located& record, const Status& why) {
  const bool gone = why.code() == StatusCode::kNotFound;
  if (gone || why.code() == StatusCode::kCorruption) return log_->forget(record, why);
  const std::lock_guard lock(mutex_);
  ++counters_.read_errors;
  counters_.last_error = why.message();
}

void DiskTier::count_fetch(std::uint64_t tokens, std::uint64_t records, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  ++counters_.fetches;
  counters_.fetched_tokens += tokens;
  counters_.read_records += records;
  counters_.read_bytes += bytes;
}

void DiskTier::count_no_room() {
  const std::lock_guard lock(mutex_);
  ++counters_.no_room;
}

Result<std::uint64_t> DiskTier::erase(const EraseFilter& filter) {
  if (!log_->is_writer()) {
    return Status::unsupported("erase: the disk tier at ", options_.path,
                               " is written by another process, which has to erase");
  }
  persist::TierErasure erasure;
  erasure.tokens = filter.tokens;
  erasure.space = [&](std::string_view owner) { return is_in_space(owner, filter); };
  erasure.tenant = [&](std::string_view owner) { return is_of_tenant(owner, filter); };
  return writer_->erase(erasure);
}

Status DiskTier::flush(std::optional<std::uint64_t> wait_ms) {
  return log_->is_writer() ? writer_->flush(wait_ms) : Status::ok();
}

DiskTierStats DiskTier::stats() const {
  DiskTierStats stats;
  {
    const std::lock_guard lock(mutex_);
    stats = counters_;
  }
  const persist::LogStats log = log_->stats();
  stats.is_writer = log_->is_writer();
  stats.max_bytes = options_.max_bytes;
  stats.segments = log.segments;
  stats.records = log.records;
  stats.bytes = log.bytes;
  stats.written_records = log.written_records;
  stats.written_bytes = log.written_bytes;
  stats.syncs = log.syncs;
  stats.evicted_segments = log.evicted_segments;
  stats.kept_records = log.kept_records;
  stats.erased_records = log.erased_records;
  stats.damaged_segments = log.damaged_segments;
  stats.torn_segments = log.torn_segments;
  stats.damaged_records = log.damaged_records;
  if (stats.last_error.empty()) stats.last_error = log.last_error;
  writer_->count(stats);
  return stats;
}

}  // namespace kvcache
