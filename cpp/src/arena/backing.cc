#include "arena/backing.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "arena/os_memory.h"
#include "base/checked.h"
#include "layout/spans.h"

namespace kvcache::arena {
namespace {

constexpr std::uint64_t kPrefaultStep = 64 << 20;

}  // namespace

// ---- Life -------------------------------------------------------------------------------------

Result<std::unique_ptr<Backing>> Backing::create(std::uint64_t address_bytes,
                                                 std::uint64_t budget_bytes,
                                                 const MemoryOptions& options,
                                                 std::size_t max_seams, std::uint64_t page_bytes) {
  std::unique_ptr<Backing> backing(new Backing());
  backing->base_ = os::reserve(address_bytes);
  if (backing->base_ == nullptr) {
    return Status::out_of_capacity("cannot reserve ", address_bytes,
                                   " bytes of addresses: ", std::strerror(errno));
  }
  backing->address_bytes_ = address_bytes;
  backing->options_ = options;
  backing->max_seams_ = max_seams;
  backing->page_bytes_ = page_bytes == 0 ? os::page_bytes() : page_bytes;
  // A move takes the lock off the whole mapping that the moved memory came from. Spans begin and
  // end inside of larger pages.
  backing->can_move_ = os::can_move() && !options.lock && kOsPageBytes % backing->page_bytes_ == 0;
  if (Status status = backing->set_kind(0, address_bytes); !status) return status;
  if (options.lock) {
    if (Status status = backing->check_lock(budget_bytes); !status) return status;
  }
  return backing;
}

Backing::~Backing() {
  if (base_ != nullptr) munmap(base_, address_bytes_);
}

Status Backing::set_kind(Offset offset, std::uint64_t bytes) const {
  std::byte* const start = base_ + offset;
  os::advise(start, bytes, options_.huge_pages);
  const std::int32_t node = options_.numa_node;
  if (node == -1) return Status::ok();
  constexpr auto kMaxNodes = static_cast<std::int32_t>(os::kMaxNodes);
  if (node < -1 || node >= kMaxNodes) {
    return Status::invalid_argument("numa_node must be -1 (none) or 0..", kMaxNodes - 1, ", got ",
                                    node);
  }
  if (os::bind(start, bytes, static_cast<std::uint32_t>(node))) return Status::ok();
  const int error = errno;
  return Status::unsupported("cannot bind memory to NUMA node ", node, ": ", std::strerror(error),
                             error == EINVAL
                                 ? " (no such node with memory, or not in this process's cpuset)"
                                 : " (a system without NUMA, or a sandbox that forbids mbind)",
                             "; leave numa_node unset");
}

// Tries the whole budget, without touching it, so that it fails now and not under load.
Status Backing::check_lock(std::uint64_t budget_bytes) const {
  const std::uint64_t bytes = std::min(budget_bytes, address_bytes_);
  if (os::may_lock(base_, bytes)) return Status::ok();
  const int error = errno;
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return Status::unsupported("cannot lock ", bytes, " bytes of memory: ", std::strerror(error),
                             "; RLIMIT_MEMLOCK is ", limit.rlim_cur,
                             " bytes, raise it (ulimit -l) or leave the memory unlocked");
}

// ---- Taking -----------------------------------------------------------------------------------

Status Backing::take(Offset offset, std::uint64_t bytes) {
  Status status;
  while (!torn_.empty()) {
    const auto [start, length] = torn_.back();
    torn_.pop_back();  // map() notes it again where it fails
    if (status = map(start, length); !status.is_ok()) return status;
  }
  claim_in_place(offset, bytes, [&](Offset at, std::uint64_t length) {
    if (status.is_ok()) status = fill(at, length);
  });
  if (status.is_ok() && options_.lock && mlock(base_ + offset, bytes) != 0) {
    status =
        Status::out_of_capacity("cannot lock ", bytes, " bytes of memory: ", std::strerror(errno),
                                "; raise RLIMIT_MEMLOCK (ulimit -l)");
    unlock(offset, bytes);
  }
  if (!status.is_ok()) give_back(offset, bytes);
  return status;
}

template <typename Hole>
void Backing::claim_in_place(Offset offset, std::uint64_t bytes, const Hole& hole) {
  const Offset end = offset + bytes;
  Offset at = offset;
  auto range = spare_.upper_bound(offset);
  if (range != spare_.begin() && std::prev(range)->first + std::prev(range)->second > offset) {
    --range;
  }
  std::vector<std::pair<Offset, std::uint64_t>> holes;
  while (range != spare_.end() && range->first < end) {
    const Offset first = range->first;
    const Offset last = first + range->second;
    range = spare_.erase(range);
    spare_bytes_ -= last - first;
    if (first < offset) insert_spare(first, offset - first);
    if (last > end) insert_spare(end, last - end);
    if (first > at) holes.emplace_back(at, first - at);
    at = std::min(last, end);
    if (last > end) break;
  }
  if (at < end) holes.emplace_back(at, end - at);
  for (const auto& [start, length] : holes) hole(start, length);
}

Status Backing::fill(Offset offset, std::uint64_t bytes) {
  const Offset end = offset + bytes;
  while (offset < end && !spare_.empty() && can_move_ && seams_.size() < max_seams_) {
    // From the end: pools hand out their lowest items first, so what lies last is needed last.
    const auto [first, length] = *spare_.rbegin();
    const Offset last = first + length;
    Offset from = last - std::min(length, end - offset);
    // One call moves memory of one mapping.
    const auto seam = seams_.lower_bound(last);
    if (seam != seams_.begin()) from = std::max(from, *std::prev(seam));
    bool moved = false;
    if (Status status = move(from, offset, last - from, moved); !status) return status;
    if (!moved) break;
    spare_.erase(first);
    if (from > first) spare_.emplace(first, from - first);
    spare_bytes_ -= last - from;
    offset += last - from;
  }
  return Status::ok();
}

Status Backing::move(Offset from, Offset to, std::uint64_t bytes, bool& moved) {
  if (os::move(base_ + from, base_ + to, bytes)) {
    seams_.erase(seams_.upper_bound(to), seams_.lower_bound(to + bytes));
    seams_.insert(to);
    seams_.insert(to + bytes);
    moved_bytes_ += bytes;
    moved = true;
    return Status::ok();
  }
  // An older kernel, or for now no more mappings. The target may be unmapped already.
  if (errno == EINVAL) {
    can_move_ = false;
    seams_.clear();
  }
  return map(to, bytes);
}

Status Backing::map(Offset offset, std::uint64_t bytes) {
  if (!os::map_anew(base_ + offset, bytes)) {
    torn_.emplace_back(offset, bytes);
    return Status::out_of_capacity("cannot map ", bytes, " bytes: ", std::strerror(errno));
  }
  if (can_move_) {
    seams_.erase(seams_.upper_bound(offset), seams_.lower_bound(offset + bytes));
    seams_.insert(offset);
    seams_.insert(offset + bytes);
  }
  return set_kind(offset, bytes);
}

// ---- Giving back ------------------------------------------------------------------------------

void Backing::give_back(Offset offset, std::uint64_t bytes) {
  if (options_.lock) unlock(offset, bytes);
  insert_spare(offset, bytes);
}

// Pages that lie in it as a whole: the others may hold bytes in use.
void Backing::unlock(Offset offset, std::uint64_t bytes) {
  const Offset first = round_up(offset, page_bytes_);
  const Offset last = (offset + bytes) / page_bytes_ * page_bytes_;
  if (first < last) munlock(base_ + first, last - first);
}

void Backing::insert_spare(Offset offset, std::uint64_t bytes) {
  spare_bytes_ += bytes;
  auto next = spare_.lower_bound(offset);
  if (next != spare_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = spare_.erase(next);
  }
  if (next != spare_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  spare_.emplace_hint(next, offset, bytes);
}

void Backing::trim(std::uint64_t bytes) {
  bytes -= bytes % page_bytes_;
  for (auto range = spare_.end(); spare_bytes_ > bytes && range != spare_.begin();) {
    --range;
    // Only whole pages: the others may hold bytes in use.
    const Offset first = range->first;
    const Offset last = first + range->second;
    const Offset gone_last = last / page_bytes_ * page_bytes_;
    const Offset least = std::min(round_up(first, page_bytes_), gone_last);
    const std::uint64_t wanted = round_up(spare_bytes_ - bytes, page_bytes_);
    const std::uint64_t gone = std::min(gone_last - least, wanted);
    if (gone == 0) continue;
    discard(gone_last - gone, gone);
    spare_bytes_ -= gone;
    if (gone_last < last) spare_.emplace(gone_last, last - gone_last);
    range->second = gone_last - gone - first;
    if (range->second == 0) range = spare_.erase(range);
  }
}

void Backing::discard(Offset offset, std::uint64_t bytes) {
  if (options_.lock) unlock(offset, bytes);
  // Mapped anew, the range is one mapping again: that is how the seams that moves leave go away.
  int inner = 0;
  for (auto seam = seams_.upper_bound(offset);
       seam != seams_.end() && *seam < offset + bytes && inner < 3; ++seam) {
    ++inner;
  }
  if (inner == 3 && map(offset, bytes).is_ok()) return;
  if (!os::drop(base_ + offset, bytes)) static_cast<void>(map(offset, bytes));
}

// ---- Touching ahead ---------------------------------------------------------------------------

Status Backing::prefault(Offset offset, std::uint64_t bytes, std::uint32_t threads) {
  std::atomic<std::uint64_t> next = 0;
  std::atomic<int> error = 0;
  const auto work = [&] {
    for (;;) {
      const std::uint64_t at = next.fetch_add(kPrefaultStep);
      if (at >= bytes || error != 0) return;
      std::byte* step = base_ + offset + at;
      const std::uint64_t length = std::min(kPrefaultStep, bytes - at);
      if (os::populate(step, length)) continue;
      error = errno;
      return;
    }
  };
  std::vector<std::thread> helpers;
  const std::uint64_t most = ceil_div(bytes, kPrefaultStep);
  for (std::uint64_t i = 1; i < std::min<std::uint64_t>(threads, most); ++i) {
    try {
      helpers.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // fewer threads than wished for do the same work
    }
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (error != 0) {
    return Status::out_of_capacity("cannot touch ", bytes, " bytes ahead: ", std::strerror(error),
                                   "; lower memory or prefault less");
  }
  insert_spare(offset, bytes);
  return Status::ok();
}

}  // namespace kvcache::arena
