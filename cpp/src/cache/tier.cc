#include "cache/tier.h"

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
using persist::BoundaryPlace;
using persist::Digest;
using persist::Located;
using persist::RecordKind;
using persist::RecordStore;

Digest origin_of(const std::string& fingerprint, std::uint64_t block_tokens,
                 const std::string& weights) {
  return sha256(fingerprint + '\n' + std::to_string(block_tokens) + '\n' + weights);
}

}  // namespace

Tier::Tier(const StatePlan& plan, const arena::PoolMap& pools, TierOptions options,
           std::unique_ptr<RecordStore> store)
    : plan_(plan),
      pools_(pools),
      options_(std::move(options)),
      boundaries_(needs_boundaries(plan)),
      run_blocks_(most_run_blocks(plan)),
      fingerprint_(plan.fingerprint()),
      store_(std::move(store)),
      weights_(options_.weights),
      origin_(origin_of(fingerprint_, plan.block_tokens(), weights_)) {}

Status Tier::start(TierWriter::Release release) {
  auto writer = TierWriter::start(*store_, options_.queue, std::move(release));
  if (!writer) return writer.status();
  writer_ = std::move(writer).value();
  return Status::ok();
}

std::optional<std::string> Tier::space_key(std::string_view key) const {
  const std::lock_guard lock(mutex_);
  if (nameless_) return std::nullopt;
  return with_length(fingerprint_) + with_length(weights_) + std::string(key);
}

void Tier::set_weights(const std::string& weights) {
  const std::lock_guard lock(mutex_);
  nameless_ = weights == weights_;
  if (nameless_) {
    counters_.last_error =
        "the weights have changed and have no new name: the " + options_.name + " is not used";
  }
  weights_ = weights;
  origin_ = origin_of(fingerprint_, plan_.block_tokens(), weights_);
}

// ---- Storing ----------------------------------------------------------------------------------

// Without asking anybody: what waits to be written included.
std::vector<std::uint64_t> Tier::known_starts(const prefix::BlockChain& chain) const {
  std::vector<std::uint64_t> starts = store_->run_starts(chain.digests());
  writer_->add_waiting(chain.digests(), starts);
  return starts;
}

const SnapshotRef* Tier::snapshot_at(const TierPath& path, std::uint64_t position) const {
  for (const SnapshotRef& snapshot : path.snapshots) {
    const bool exact = snapshot.format == SnapshotFormat::kExact && snapshot.item != kNoItem;
    if (snapshot.position == position && exact) return &snapshot;
  }
  return nullptr;
}

// A record of tokens [first, last). None: a page of it is not there.
std::optional<TierJob> Tier::make_job(const TierPath& path, const std::vector<PageOf>& pages,
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
void Tier::plan_chain(const TierPath& path, std::uint64_t block, std::vector<std::uint64_t>& starts,
                      TierJobs& jobs) const {
  const std::uint64_t tokens = plan_.block_tokens();
  TierJobs missing;
  while (block > 0) {
    if (starts[block - 1] != RecordStore::kNowhere) {
      block = std::min(starts[block - 1] / tokens, block - 1);
      continue;
    }
    std::uint64_t first = block - 1;
    while (first % run_blocks_ != 0 && starts[first - 1] == RecordStore::kNowhere) --first;
    auto job =
        make_job(path, run_pages(plan_, first, block), nullptr, first * tokens, block * tokens);
    if (!job) return;  // nothing before or after it is of use
    job->header.kind = RecordKind::kRun;
    starts[block - 1] = first * tokens;
    missing.push_front(std::move(*job));
    block = first;
  }
  jobs.splice(jobs.end(), missing);
}

// Positions of the path that are stored so that they can be resumed.
std::vector<std::uint64_t> Tier::boundaries_of(const TierPath& path, std::uint64_t& last) const {
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
bool Tier::queue(TierJobs jobs, const Hold& hold) {
  if (jobs.empty()) return true;
  if (!writer_->reserve(jobs)) return false;
  hold(jobs);
  writer_->submit(std::move(jobs));
  return true;
}

void Tier::store(const TierPath& path, std::uint64_t& last_boundary, const Hold& hold) {
  if (!store_->is_writer()) return;
  if (path.owner.size() > persist::kMaxOwnerBytes) {
    const std::lock_guard lock(mutex_);
    counters_.last_error = "the names of a space are too long to be stored";
    ++counters_.dropped_records;
    return;
  }
  const std::uint64_t block_tokens = plan_.block_tokens();
  std::vector<std::uint64_t> starts = known_starts(path.chain);
  std::uint64_t skipped = 0;
  bool room = true;
  const auto positions = boundaries_of(path, last_boundary);
  for (std::size_t i = 0; i < positions.size() && room; ++i) {
    const std::uint64_t position = positions[i];
    const Digest key = path.chain.digest_at(position);
    if (store_->has_boundary(key) || writer_->is_boundary_waiting(key)) continue;
    const SnapshotRef* snapshot = snapshot_at(path, position);
    const std::uint64_t block = position / block_tokens;
    TierJobs fresh;
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
  TierJobs rest;
  if (room) plan_chain(path, path.tokens.size() / block_tokens, starts, rest);
  queue(std::move(rest), hold);
  const std::lock_guard lock(mutex_);
  counters_.skipped_snapshots += skipped;
}

// ---- Finding ----------------------------------------------------------------------------------

// The last boundary in (at_least, at_most] that continues one of `blocks`, numbers of whole blocks
// in descending order. They are asked for some at a time, more and more.
std::optional<Located> Tier::find_boundary(const prefix::BlockChain& chain,
                                           std::span<const std::uint64_t> blocks,
                                           std::uint64_t at_least, std::uint64_t at_most) {
  constexpr std::size_t kMostAtOnce = 64;
  const std::uint64_t block_tokens = plan_.block_tokens();
  const auto key_at = [&](std::uint64_t position) { return chain.digest_at(position); };
  for (std::size_t size = 4; !blocks.empty(); size = std::min(2 * size, kMostAtOnce)) {
    const auto now = blocks.first(std::min(size, blocks.size()));
    blocks = blocks.subspan(now.size());
    std::vector<BoundaryPlace> places;
    for (const std::uint64_t block : now) {
      const std::uint64_t start = block * block_tokens;
      places.push_back({chain.digest_at(start), std::max(start, at_least + 1),
                        std::min(start + block_tokens - 1, at_most)});
    }
    std::optional<Located> best;
    for (Located& found : store_->find_boundaries(places, key_at)) {
      const std::uint64_t first = found.header.first;
      const std::uint64_t end = found.header.end();
      const bool here = std::find(now.begin(), now.end(), first / block_tokens) != now.end() &&
                        first % block_tokens == 0 && end - first < block_tokens && end > at_least &&
                        end <= at_most && found.header.parent == chain.digest_at(first) &&
                        found.header.key == chain.digest_at(end);
      if (here && (!best || end > best->header.end())) best = std::move(found);
    }
    if (best) return best;
  }
  return std::nullopt;
}

// The runs that lead to `block`, by where each begins. False: one has gone meanwhile, or is none of
// the path.
bool Tier::find_runs(const prefix::BlockChain& chain, std::span<const std::uint64_t> starts,
                     std::uint64_t block, std::vector<Located>& runs) {
  std::vector<std::uint64_t> ends;
  for (std::uint64_t at = block; at > 0; at = starts[at - 1] / plan_.block_tokens()) {
    ends.push_back(at);
  }
  std::reverse(ends.begin(), ends.end());
  std::vector<Digest> keys;
  for (const std::uint64_t end : ends) keys.push_back(chain.digests()[end - 1]);
  auto found = store_->find_runs(keys);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i]) return false;
    const persist::RecordHeader& header = found[i]->header;
    if (header.first != starts[ends[i] - 1] || header.end() != ends[i] * plan_.block_tokens()) {
      store_->forget(*found[i], Status::corruption("a run of another length than its key says"));
      return false;
    }
    store_->use(*found[i]);
    runs.push_back(std::move(*found[i]));
  }
  return true;
}

std::optional<TierHit> Tier::find(const prefix::BlockChain& chain, std::uint64_t at_least,
                                  std::uint64_t at_most) {
  const std::uint64_t block_tokens = plan_.block_tokens();
  const std::uint64_t blocks =
      std::min<std::uint64_t>(at_most / block_tokens, chain.digests().size());
  const std::vector<std::uint64_t> starts = store_->look_up(chain.digests().first(blocks));
  // Numbers of blocks that runs lead to from the beginning, and that are of use.
  std::vector<bool> whole(blocks + 1, false);
  whole[0] = true;
  std::vector<std::uint64_t> ends;
  for (std::uint64_t block = 0; block <= blocks; ++block) {
    if (block > 0) {
      const std::uint64_t start = starts[block - 1];
      whole[block] =
          start < block * block_tokens && start % block_tokens == 0 && whole[start / block_tokens];
    }
    const std::uint64_t last = boundaries_ ? (block + 1) * block_tokens - 1 : block * block_tokens;
    if (whole[block] && last > at_least) ends.push_back(block);
  }
  if (ends.empty()) return std::nullopt;
  TierHit hit;
  std::uint64_t block = ends.back();
  hit.position = block * block_tokens;
  if (boundaries_) {
    std::reverse(ends.begin(), ends.end());
    hit.boundary = find_boundary(chain, ends, at_least, at_most);
    if (!hit.boundary) return std::nullopt;
    block = hit.boundary->header.first / block_tokens;
    hit.position = hit.boundary->header.end();
  }
  if (!find_runs(chain, starts, block, hit.runs)) return std::nullopt;
  if (hit.boundary) store_->use(*hit.boundary);
  return hit;
}

void Tier::fail(const Located& record, const Status& why) {
  const bool gone = why.code() == StatusCode::kNotFound;
  if (gone || why.code() == StatusCode::kCorruption) return store_->forget(record, why);
  const std::lock_guard lock(mutex_);
  ++counters_.read_errors;
  counters_.last_error = why.message();
}

void Tier::count_fetch(std::uint64_t tokens, std::uint64_t records, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  ++counters_.fetches;
  counters_.fetched_tokens += tokens;
  counters_.read_records += records;
  counters_.read_bytes += bytes;
}

void Tier::count_no_room() {
  const std::lock_guard lock(mutex_);
  ++counters_.no_room;
}

Result<std::uint64_t> Tier::erase(const EraseFilter& filter) {
  if (!store_->is_writer()) {
    return Status::unsupported("erase: the ", options_.name,
                               " is written by another process, which has to erase");
  }
  persist::TierErasure erasure;
  erasure.tokens = filter.tokens;
  erasure.space = [&](std::string_view owner) { return is_in_space(owner, filter); };
  erasure.tenant = [&](std::string_view owner) { return is_of_tenant(owner, filter); };
  return writer_->erase(erasure);
}

Status Tier::flush(std::optional<std::uint64_t> wait_ms) {
  return store_->is_writer() ? writer_->flush(wait_ms) : Status::ok();
}

TierStats Tier::counters() const {
  TierStats stats;
  {
    const std::lock_guard lock(mutex_);
    stats = counters_;
  }
  writer_->count(stats);
  return stats;
}

}  // namespace kvcache
