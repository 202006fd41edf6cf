// Records of a tier on a Valkey or Redis server or a cluster, which other processes use as well:
// see "Remote tier" in FORMAT.md. A record is the same as in a file; a server that is down, slow,
// full, emptied or wrong is one that has no record. Thread safety: as RecordStore.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kvcache/remote_tier.h"
#include "persist/record_store.h"
#include "remote/servers.h"
#include "remote/tls.h"

namespace kvcache::remote {

// Just under a power of two, so that the allocators of servers waste nothing.
inline constexpr std::uint64_t kPartBytes = (1 << 20) - 64;
// Of a record. More is not written, and not believed.
inline constexpr std::uint64_t kMostParts = 1024;

// Counters of the store alone.
struct StoreStats {
  std::uint64_t lookups = 0;
  std::uint64_t round_trips = 0;
  std::uint64_t written_records = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t present_records = 0;
  std::uint64_t missing_records = 0;
  std::uint64_t dropped_records = 0;  // not written, for the server of their key is lost
  std::uint64_t damaged_records = 0;
  std::uint64_t erased_records = 0;
  std::uint64_t server_errors = 0;   // answers to lookups that refuse them
  std::uint64_t refused_writes = 0;  // likewise to writes
  std::string last_error;
};

class RemoteStore final : public persist::RecordStore {
 public:
  // Connects to nobody yet, and then in the clear where there is no `tls`. `part_bytes`: most of a
  // value, which all users of a server agree on.
  explicit RemoteStore(const RemoteTierOptions& options, std::uint64_t part_bytes = kPartBytes,
                       std::shared_ptr<const TlsContext> tls = nullptr);

  bool is_writer() const override { return true; }
  std::vector<std::uint64_t> run_starts(std::span<const persist::Digest> keys) const override;
  bool has_boundary(const persist::Digest& key) const override;
  std::vector<std::uint64_t> look_up(std::span<const persist::Digest> keys) override;
  std::vector<std::optional<persist::Located>> find_runs(
      std::span<const persist::Digest> keys) override;
  std::vector<persist::Located> find_boundaries(std::span<const persist::BoundaryPlace> places,
                                                const KeyAt& key_at) override;
  void use(const persist::Located& /*record*/) override {}  // servers know what they are asked for
  void read(std::span<persist::RecordRead> reads) override;
  void forget(const persist::Located& record, const Status& why) override;
  // A record that is there stays as it is, and lives on.
  Status append(persist::RecordHeader record, std::span<const std::int32_t> tokens,
                std::span<const iovec> payload, std::string_view owner) override;
  bool has_others() const override { return servers_.has_others(); }
  // With tokens, all of the spaces: records do not say what leads to them.
  Result<std::uint64_t> erase(const persist::TierErasure& erasure) override;
  Status sync() override { return Status::ok(); }
  bool has_unsynced() const override { return false; }
  Status close() override { return Status::ok(); }

  StoreStats stats() const;
  // The first server's.
  const std::string& name() const { return servers_.name(); }
  ServerStats server_stats() const { return servers_.stats(); }

 private:
  struct DigestHash {
    std::size_t operator()(const persist::Digest& digest) const {
      std::size_t value = 0;
      std::memcpy(&value, digest.data(), sizeof(value));
      return value;
    }
  };
  // What a head is asked for, and has to be.
  struct Asked {
    persist::RecordKind kind = persist::RecordKind::kRun;
    persist::Digest key{};
    persist::Digest parent{};  // of a boundary
  };
  using Heads = std::vector<std::optional<persist::RecordHeader>>;

  std::string name_of(const Asked& asked, std::uint64_t part) const;
  std::string name_of(const persist::RecordHeader& record, std::uint64_t part) const;
  std::uint64_t parts_of(const persist::RecordHeader& record) const;
  Deadline deadline() const { return Deadline::after_ms(options_.deadline_ms); }

  bool find_heads(std::span<const Asked> asked, const Deadline& deadline, Heads& heads);
  void remove(std::span<const std::string> names);
  Status check_presence(RespClient& client, bool asking, const persist::RecordHeader& record,
                        bool& present, const Deadline& deadline);
  Status write(RespClient& client, bool asking, const persist::RecordHeader& record,
               std::span<const iovec> stream, bool& present, const Deadline& deadline);
  Result<std::uint64_t> erase_page(RespClient& client, std::string& cursor,
                                   const persist::TierErasure& erasure, const Deadline& deadline);
  void trust_for_a_while();
  void forget_all();
  void remember(const persist::RecordHeader& record);
  void note(const Status& status);

  const RemoteTierOptions options_;
  const std::uint64_t part_bytes_;
  Servers servers_;

  mutable std::mutex mutex_;
  // What is there as far as is known, and since when; it is asked anew once it may have gone.
  std::unordered_map<persist::Digest, std::uint64_t, DigestHash> runs_;  // and where they begin
  std::unordered_set<persist::Digest, DigestHash> boundaries_;
  std::unordered_map<persist::Digest, persist::RecordHeader, DigestHash> heads_;  // of late lookups
  std::chrono::steady_clock::time_point known_since_;
  std::uint64_t losses_ = 0;
  StoreStats stats_;
};

}  // namespace kvcache::remote
