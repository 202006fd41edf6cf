// What the tiers of a cache count alike. Thread safety: values.
#pragma once

#include <cstdint>
#include <string>

namespace kvcache {

struct TierStats {
  std::uint64_t queued_bytes = 0;
  std::uint64_t written_records = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t dropped_records = 0;    // the queue was full, or writing is suspended
  std::uint64_t skipped_snapshots = 0;  // not exact, or their window was gone
  std::uint64_t erased_records = 0;     // by erase()
  std::uint64_t fetches = 0;            // lookups that read something
  std::uint64_t fetched_tokens = 0;
  std::uint64_t read_records = 0;
  std::uint64_t read_bytes = 0;
  // What went wrong; each is a miss or a record that is not there, never more.
  std::uint64_t damaged_records = 0;
  std::uint64_t read_errors = 0;
  std::uint64_t write_errors = 0;
  std::uint64_t no_room = 0;  // fetches that memory had no room for
  std::string last_error;
};

}  // namespace kvcache
