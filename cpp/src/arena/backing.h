// The addresses of an arena and the memory behind them. Memory that a span gives back is kept,
// where it lies, as spare; the next span to be taken gets it moved under its own addresses by
// mremap(), which costs a page-table entry a page where fresh memory costs a fault and the zeroing.
// A system that cannot move memory, or whose pages are larger than spans are cut at, gives the
// spare memory back and takes fresh.
// Thread safety: thread-compatible; the cache's lock guards it. Bytes in use never move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "kvcache/memory_options.h"
#include "kvcache/status.h"

namespace kvcache::arena {

class Backing {
 public:
  // A process may have 65,530 mappings by default, and every move may add two. Beyond this many
  // boundaries spare memory goes back to the system instead of being moved.
  static constexpr std::size_t kMaxSeams = 16384;

  // Reserves `address_bytes` and takes no memory. kOutOfCapacity: the system refuses the addresses.
  // kInvalidArgument: a NUMA node below -1 or above the kernel's masks. kUnsupported: the kernel
  // knows no such node, or refuses to bind or to lock; the message says which knob to turn.
  // `page_bytes`: 0, or a multiple of the system's own that stands for it.
  static Result<std::unique_ptr<Backing>> create(std::uint64_t address_bytes,
                                                 std::uint64_t budget_bytes,
                                                 const MemoryOptions& options,
                                                 std::size_t max_seams = kMaxSeams,
                                                 std::uint64_t page_bytes = 0);
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  std::byte* base() const { return base_; }

  // Puts memory behind [offset, offset + bytes): spare memory first, in place or moved, and fresh
  // memory, taken at the first touch, for the rest. Contents are unspecified.
  // kOutOfCapacity: the system refuses; the range is as before.
  Status take(std::uint64_t offset, std::uint64_t bytes);
  // The range is not used any more; its memory becomes spare.
  void give_back(std::uint64_t offset, std::uint64_t bytes);
  // Gives spare memory to the system until no more than `bytes` are left. Where pages of the system
  // are larger than spans are cut at, parts of pages at the ends of spans stay spare.
  void trim(std::uint64_t bytes);
  // Touches a range that is not in use with `threads` threads; it becomes spare.
  // kOutOfCapacity: the system has less memory.
  Status prefault(std::uint64_t offset, std::uint64_t bytes, std::uint32_t threads);

  std::uint64_t spare_bytes() const { return spare_bytes_; }
  bool can_move() const { return can_move_; }
  std::size_t seams() const { return seams_.size(); }         // boundaries that moves have left
  std::uint64_t moved_bytes() const { return moved_bytes_; }  // by all calls of take()

 private:
  using Offset = std::uint64_t;

  Backing() = default;
  // Fresh, empty memory of the chosen kind at [offset, offset + bytes).
  Status map(Offset offset, std::uint64_t bytes);
  Status set_kind(Offset offset, std::uint64_t bytes) const;  // huge pages and NUMA node
  Status check_lock(std::uint64_t budget_bytes) const;
  void insert_spare(Offset offset, std::uint64_t bytes);
  // Takes what overlaps out of the spare; calls `hole(offset, bytes)` for what is left over.
  template <typename Hole>
  void claim_in_place(Offset offset, std::uint64_t bytes, const Hole& hole);
  Status fill(Offset offset, std::uint64_t bytes);
  // False in `moved`: the kernel would not, and the target is empty.
  Status move(Offset from, Offset to, std::uint64_t bytes, bool& moved);
  void discard(Offset offset, std::uint64_t bytes);
  void unlock(Offset offset, std::uint64_t bytes);

  MemoryOptions options_;
  std::size_t max_seams_ = kMaxSeams;
  std::byte* base_ = nullptr;
  std::uint64_t address_bytes_ = 0;
  bool can_move_ = true;
  std::uint64_t spare_bytes_ = 0;
  std::uint64_t moved_bytes_ = 0;
  std::map<Offset, std::uint64_t> spare_;  // disjoint ranges without neighbours: offset -> bytes
  std::set<Offset> seams_;                 // where two mappings of the kernel may meet
  std::vector<std::pair<Offset, std::uint64_t>> torn_;  // ranges that the kernel left unmapped
  std::uint64_t page_bytes_ = 0;                        // of the system
};

}  // namespace kvcache::arena
