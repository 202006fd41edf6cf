// What servers tell of each other: which node of a cluster has which keys, where a key has gone,
// and where a primary is. All of it is taken for nothing more than bytes. Source: the descriptions
// of clusters and of clients of sentinels, as published, https://valkey.io/topics/cluster-spec/ and
// https://valkey.io/topics/sentinel-clients/. Thread safety: pure functions and values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "remote/connect.h"
#include "remote/resp_reply.h"

namespace kvcache::remote {

inline constexpr std::uint16_t kSlots = 16384;
inline constexpr std::size_t kMostNodes = 1024;
inline constexpr std::uint16_t kNobody = UINT16_MAX;

// The slot of a key: that of what its first braces hold, where they hold something.
std::uint16_t slot_of(std::string_view key);

// Which primary has which slots.
struct SlotMap {
  std::vector<Address> nodes;
  std::vector<std::uint16_t> owners = std::vector<std::uint16_t>(kSlots, kNobody);
};
inline constexpr ReplyLimits kSlotsLimits{.bulk_bytes = 512, .items = 1 << 16, .depth = 4};
// The reply to CLUSTER SLOTS of the server at `asked`, which may call itself by no name at all.
// kCorruption: it is none, or contradicts itself.
Result<SlotMap> read_slots(const Reply& reply, const Address& asked);

// A server's word that another one has a key: for good, or for this one question while the key's
// slot moves.
struct Redirection {
  Address to;
  bool asking = false;
};
// None: the error says something else, or no address.
std::optional<Redirection> read_redirection(std::string_view error, const Address& asked);

// The reply to SENTINEL GET-MASTER-ADDR-BY-NAME. kIoError: the sentinel does not know the service.
// kCorruption: it is none.
Result<Address> read_primary(const Reply& reply, const Address& asked);

inline constexpr ReplyLimits kRoleLimits{.items = 4096, .depth = 3};
// The reply to ROLE. kIoError: the server is no primary.
Status check_primary(const Reply& reply);

}  // namespace kvcache::remote
