// What a tier needs of the place where its records are: the files of this machine, or a server.
// Whatever asks the place may take its time; the other calls do not.
// Thread safety: thread-safe, but for append(), erase(), sync() and close(), which one thread
// calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "persist/segment.h"
#include "persist/segment_erase.h"
#include "persist/segment_format.h"

namespace kvcache::persist {

// A record that was found, and the segment that holds it, which stays readable as long as this is
// kept; null where the place is a server.
struct Located {
  RecordHeader header;
  std::shared_ptr<const Segment> segment;

  // REQUIRES: there is a segment.
  Status read(std::span<std::int32_t> tokens, std::span<const iovec> payload) const {
    return segment->read(header, tokens, payload);
  }
};

// A record and where its bytes go, whose sizes are the record's; what became of it.
struct RecordRead {
  const Located* record = nullptr;
  std::vector<iovec> payload;
  std::vector<std::int32_t> tokens;
  Status status;
};

// Positions at which a path may be resumed: those in [first, last], whose whole blocks end with
// `parent`.
struct BoundaryPlace {
  Digest parent{};
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

class RecordStore {
 public:
  static constexpr std::uint64_t kNowhere = UINT64_MAX;
  // The key of a position of the path.
  using KeyAt = std::function<Digest(std::uint64_t position)>;

  virtual ~RecordStore() = default;

  virtual bool is_writer() const = 0;

  // Of each key, the position at which the run that ends there begins; kNowhere: there is none.
  // Those that are known without asking.
  virtual std::vector<std::uint64_t> run_starts(std::span<const Digest> keys) const = 0;
  // Likewise, whether there is a boundary.
  virtual bool has_boundary(const Digest& key) const = 0;

  // As run_starts(), of the keys of a path's blocks in order, and asking. What cannot be reached
  // from the first block may be left out.
  virtual std::vector<std::uint64_t> look_up(std::span<const Digest> keys) = 0;
  // Of each key, the run that ends there.
  virtual std::vector<std::optional<Located>> find_runs(std::span<const Digest> keys) = 0;
  // Boundaries at these places, in any order, maybe some more.
  virtual std::vector<Located> find_boundaries(std::span<const BoundaryPlace> places,
                                               const KeyAt& key_at) = 0;
  // It was asked for.
  virtual void use(const Located& record) = 0;
  // Reads all of them, as far as it goes, and says of each how it went. kCorruption: it is not what
  // its header says. kNotFound: it has gone. kIoError: it could not be read.
  virtual void read(std::span<RecordRead> reads) = 0;
  // It is damaged, or kNotFound: it has gone. It is not found any more.
  virtual void forget(const Located& record, const Status& why) = 0;

  // `owner` says whose it is, for erase(). kOutOfCapacity: this record cannot be kept. kIoError:
  // the place refused.
  virtual Status append(RecordHeader record, std::span<const std::int32_t> tokens,
                        std::span<const iovec> payload, std::string_view owner) = 0;
  // After append() has failed: whether other records may fare better, so that it goes on at once.
  virtual bool has_others() const { return false; }
  // Takes records out, for good. kIoError: some may be there still. Returns how many there were.
  virtual Result<std::uint64_t> erase(const TierErasure& erasure) = 0;
  // Makes durable what was appended.
  virtual Status sync() = 0;
  virtual bool has_unsynced() const = 0;
  virtual Status close() = 0;
};

}  // namespace kvcache::persist
