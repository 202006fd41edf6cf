// A remote tier: a Valkey or Redis server, or a cluster of them, that several caches fill behind
// their callers' backs and look into for what memory and disk do not have. FORMAT.md describes keys
// and values.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/tier_stats.h"

namespace kvcache {

// TLS of the connections to a server, 1.2 or later, by the OpenSSL of the system. The files are PEM
// and are read when the cache is made.
struct RemoteTlsOptions {
  bool enabled = false;
  std::string ca_file;      // authorities that may vouch for the server; empty: the system's
  std::string certificate;  // of this client, then its chain, for a server that asks for one
  std::string key;          // of the certificate, not encrypted; empty: in the same file
  // false: whoever answers is taken for the server, and may read and change what passes.
  bool verify = true;
};

// How the servers of a tier belong together.
enum class RemoteTopology : std::uint8_t {
  kServer = 0,     // there is one
  kCluster = 1,    // a cluster, whose primaries share the keys
  kSentinels = 2,  // one at a time, which sentinels name: the primary of a service
};

// Where somebody listens: at `socket`, the path of a Unix socket, or else at host and port.
struct RemoteAddress {
  std::string host;  // a name or an address
  std::uint16_t port = 6379;
  std::string socket = {};
};

struct RemoteTierOptions {
  // The server; or some nodes of the cluster, or the sentinels, who are asked in turn for the
  // others. None: no tier.
  std::vector<RemoteAddress> addresses;
  RemoteTopology topology = RemoteTopology::kServer;
  std::string service;        // kSentinels: what they call the primary
  std::string user;           // empty: the servers' default user
  std::string password;       // empty: none is asked for
  std::string sentinel_user;  // of the sentinels, likewise
  std::string sentinel_password;
  std::uint32_t database = 0;
  std::string key_prefix = "kvcache:";         // of every key; printable, without braces
  std::uint64_t ttl_ms = 24ULL * 3600 * 1000;  // after which the server drops it; 0: never
  // Within which a lookup, the reading of what it found, and the writing of one record each end.
  std::uint64_t deadline_ms = 2000;
  // What may wait to be written; its pages stay in memory meanwhile. More is dropped, after
  // `wait_ms` in which publish() waits for room.
  std::uint64_t queue_bytes = 256 << 20;
  std::uint64_t wait_ms = 0;
  std::uint32_t read_threads = 2;  // of one fetch, each with a connection
  bool at_open = true;             // open() looks for a longer prefix here
  RemoteTlsOptions tls;

  bool is_none() const { return addresses.empty(); }
};

struct RemoteTierStats : TierStats {
  bool is_suspended = false;  // a server is, after a failure, until it is tried again
  std::uint64_t servers = 0;  // primaries that are known, now
  std::uint64_t connects = 0;
  std::uint64_t redirections = 0;     // answers that another server has the key
  std::uint64_t lookups = 0;          // that asked the server
  std::uint64_t round_trips = 0;      // of lookups and writes
  std::uint64_t present_records = 0;  // not written, for somebody had already
  std::uint64_t missing_records = 0;  // gone between a lookup and its read
  // What went wrong; each is a miss or a record that is not there, never more.
  std::uint64_t failures = 0;            // no connection, no answer in time, or no answer at all
  std::uint64_t timeouts = 0;            // of them, those for which time ran out
  std::uint64_t refused_operations = 0;  // not tried, for the last failure was a moment ago
};

}  // namespace kvcache
