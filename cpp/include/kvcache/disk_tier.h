// A disk tier: a directory of checksummed segments that a cache fills behind its back and looks
// into for what memory no longer has. FORMAT.md describes the bytes.
// Thread safety: values; functions are thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "kvcache/tier_stats.h"

namespace kvcache {

// When what was written is safe from a power cut. It is safe from the end of the process at once.
enum class Durability : std::uint8_t {
  kNone = 0,    // when the system writes it
  kGroup = 1,   // after `group_bytes` or `group_ms`, all at once
  kRecord = 2,  // after each record
};

// A directory has one writer and any number of readers.
enum class TierAccess : std::uint8_t {
  kWrite = 0,        // refuse when another process writes
  kRead = 1,         // only read
  kWriteOrRead = 2,  // read when another process writes
};

struct DiskTierOptions {
  std::string path;  // its parent must exist; empty: no tier
  // Of all files, or as much as the disk has where that is less; the oldest segments go first.
  std::uint64_t max_bytes = 0;
  TierAccess access = TierAccess::kWrite;
  Durability durability = Durability::kGroup;
  std::uint64_t group_bytes = 64 << 20;
  std::uint64_t group_ms = 1000;
  // What may wait to be written; its pages stay in memory meanwhile. More is dropped, after
  // `wait_ms` in which publish() waits for room.
  std::uint64_t queue_bytes = 256 << 20;
  std::uint64_t wait_ms = 0;
  std::uint32_t read_threads = 2;  // of one fetch
  bool at_open = true;             // open() looks for a longer prefix here
};

struct DiskTierStats : TierStats {
  bool is_writer = false;
  std::uint64_t segments = 0;
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;  // of all files
  std::uint64_t max_bytes = 0;
  std::uint64_t syncs = 0;
  std::uint64_t evicted_segments = 0;
  std::uint64_t kept_records = 0;  // copied out of segments that went, for they were in use
  // What went wrong; each is a miss or a record that is not there, never more.
  std::uint64_t damaged_segments = 0;  // refused when the directory was opened
  std::uint64_t torn_segments = 0;     // whose end was cut off
};

// ---- Without a cache --------------------------------------------------------------------------

struct SegmentReport {
  std::string file;
  std::uint64_t bytes = 0;
  bool sealed = false;
  std::uint64_t runs = 0;
  std::uint64_t boundaries = 0;
  std::uint64_t erased = 0;  // records
  std::uint64_t tokens = 0;
  std::uint64_t payload_bytes = 0;
  // Behind the last record and not zero: what is being written, or was when its writer was killed.
  bool unfinished = false;
};

struct TierReport {
  std::uint32_t version = 0;
  std::string id;           // lower-case hex
  bool has_writer = false;  // at this moment
  std::vector<SegmentReport> segments;
  std::vector<std::string> problems;  // each names its file
  std::vector<std::string> others;    // entries that are none of the tier's
};

// What is in a tier's directory; `deep`: and whether every byte of it is right. Changes nothing.
// kNotFound: no tier is there. kCorruption, kUnsupported: its marker is damaged, or of another
// version. kIoError: the system refused to list it.
Result<TierReport> check_disk_tier(const std::string& path, bool deep);

struct TierCollection {
  std::uint64_t removed_segments = 0;
  std::uint64_t removed_bytes = 0;
  std::uint64_t kept_bytes = 0;
};

// Finishes what a killed writer has left, removes segments that no reader accepts, and the oldest
// ones beyond `max_bytes`. kInvalidArgument: a process writes the tier. Otherwise as above.
Result<TierCollection> collect_disk_tier(const std::string& path,
                                         std::optional<std::uint64_t> max_bytes);

}  // namespace kvcache
