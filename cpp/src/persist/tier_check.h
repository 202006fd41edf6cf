// What is in the directory of a disk tier, and whether every byte of it is right, without the cache
// that wrote it. Changes nothing.
// Thread safety: functions are thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "persist/segment_format.h"
#include "persist/system.h"

namespace kvcache::persist {

struct SegmentReport {
  std::string file;
  std::uint64_t bytes = 0;
  bool sealed = false;
  std::uint64_t runs = 0;
  std::uint64_t boundaries = 0;
  std::uint64_t tokens = 0;
  std::uint64_t payload_bytes = 0;
  // Behind the last record and not zero: what is being written, or was when its writer was killed.
  bool unfinished = false;
};

struct TierReport {
  std::uint32_t version = kSegmentVersion;
  TierId id{};
  bool has_writer = false;  // at this moment
  std::vector<SegmentReport> segments;
  std::vector<std::string> problems;  // each names its file
  std::vector<std::string> others;    // entries that are none of the tier's
};

// `deep`: reads every byte, otherwise headers and footers only. kNotFound: no tier is there.
// kCorruption, kUnsupported: its marker is damaged or of another version. kIoError: the system
// refused to list it.
Result<TierReport> check_tier(System& system, const std::string& path, bool deep);

}  // namespace kvcache::persist
