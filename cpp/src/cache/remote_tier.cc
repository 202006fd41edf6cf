#include "cache/remote_tier.h"

#include <algorithm>
#include <utility>

#include "remote/tls.h"

namespace kvcache {
namespace {

using remote::RemoteStore;

constexpr std::size_t kMostAddresses = 100;
constexpr std::size_t kMostPrefixBytes = 128;
constexpr std::uint64_t kMostDeadlineMs = 600'000;
// A hundred years. Servers add it to their clock and refuse what overflows.
constexpr std::uint64_t kMostTtlMs = 100ULL * 365 * 24 * 3600 * 1000;
constexpr std::uint64_t kLongestPauseMs = 10'000;

// What is special in names of keys, or in patterns of them, is left out.
bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view(":._-/").find(c) != std::string_view::npos;
}

Status wrong(const std::string& name, const auto&... text) {
  return Status::invalid_argument("remote tier: ", name, ": ", text...);
}

Status check_addresses(const RemoteTierOptions& options) {
  const bool is_one = options.topology == RemoteTopology::kServer;
  const std::size_t most = is_one ? 1 : kMostAddresses;
  if (options.addresses.empty() || options.addresses.size() > most) {
    return wrong("addresses", "expected ", most == 1 ? "1" : "1..100", ", got ",
                 options.addresses.size());
  }
  for (std::size_t i = 0; i < options.addresses.size(); ++i) {
    const RemoteAddress& address = options.addresses[i];
    const std::string name = "addresses[" + std::to_string(i) + "].";
    if (!address.host.empty() && !address.socket.empty()) {
      return wrong(name + "socket", "a host is given as well");
    }
    if (!is_one && !address.socket.empty()) {
      return wrong(name + "socket", "a cluster and sentinels have hosts and ports");
    }
    if (address.host.empty() && address.socket.empty()) return wrong(name + "host", "is empty");
    for (const auto& [part, text] :
         {std::pair("host", &address.host), {"socket", &address.socket}}) {
      if (text->find('\0') != text->npos) return wrong(name + part, "holds a zero byte");
    }
    if (address.socket.empty() && address.port == 0) {
      return wrong(name + "port", "expected 1..65535, got 0");
    }
  }
  const bool is_guarded = options.topology == RemoteTopology::kSentinels;
  if (is_guarded && options.service.empty()) {
    return wrong("service", "is empty; give the name that the sentinels know the primary by");
  }
  if (!is_guarded &&
      !(options.service + options.sentinel_user + options.sentinel_password).empty()) {
    return wrong("service", "only sentinels have services and logins of their own");
  }
  return Status::ok();
}

Status check(const RemoteTierOptions& options) {
  if (Status status = check_addresses(options); !status) return status;
  if (options.ttl_ms > kMostTtlMs) {
    return wrong("ttl_ms", "expected at most ", kMostTtlMs, ", got ", options.ttl_ms,
                 "; 0 means never");
  }
  if (options.read_threads == 0 || options.read_threads > 64) {
    return wrong("read_threads", "expected 1..64, got ", options.read_threads);
  }
  if (options.deadline_ms == 0 || options.deadline_ms > kMostDeadlineMs) {
    return wrong("deadline_ms", "expected 1..", kMostDeadlineMs, ", got ", options.deadline_ms);
  }
  const RemoteTlsOptions& tls = options.tls;
  if (tls.enabled && options.addresses.front().host.empty()) {
    return wrong("tls", "a Unix socket has none");
  }
  if (!tls.enabled && (!tls.verify || tls.ca_file + tls.certificate + tls.key != std::string())) {
    return wrong("tls", "it has options and is not enabled");
  }
  const std::string& prefix = options.key_prefix;
  if (prefix.size() > kMostPrefixBytes || !std::all_of(prefix.begin(), prefix.end(), is_plain)) {
    return wrong("key_prefix", "expected at most ", kMostPrefixBytes,
                 " letters, digits and characters of \":._-/\"");
  }
  return Status::ok();
}

}  // namespace

RemoteTier::RemoteTier(const StatePlan& plan, const arena::PoolMap& pools, TierOptions options,
                       std::unique_ptr<RemoteStore> store, const RemoteStore& its_store)
    : Tier(plan, pools, std::move(options), std::move(store)), server_(its_store) {}

Result<std::unique_ptr<RemoteTier>> RemoteTier::open(const StatePlan& plan,
                                                     const arena::PoolMap& pools,
                                                     const RemoteTierOptions& options,
                                                     std::string weights,
                                                     TierWriter::Release release) {
  if (Status status = check(options); !status) return status;
  std::shared_ptr<const remote::TlsContext> tls;
  if (options.tls.enabled) {
    auto made = remote::TlsContext::create(options.tls);
    if (!made) return made.status().prefixed("remote tier: ");
    tls = std::move(made).value();
  }
  auto store = std::make_unique<RemoteStore>(options, remote::kPartBytes, std::move(tls));
  TierOptions tier_options;
  tier_options.name = "remote tier at " + store->name();
  tier_options.weights = std::move(weights);
  tier_options.queue.queue_bytes = options.queue_bytes;
  tier_options.queue.wait_ms = options.wait_ms;
  tier_options.queue.longest_pause_ms = kLongestPauseMs;
  // What cannot be written within a while when the cache ends is written by others.
  tier_options.queue.end_ms = options.deadline_ms;
  tier_options.read_threads = options.read_threads;
  tier_options.at_open = options.at_open;
  const RemoteStore& server = *store;
  std::unique_ptr<RemoteTier> tier(
      new RemoteTier(plan, pools, std::move(tier_options), std::move(store), server));
  if (Status status = tier->start(std::move(release)); !status) return status;
  return tier;
}

RemoteTierStats RemoteTier::stats() const {
  RemoteTierStats stats;
  static_cast<TierStats&>(stats) = counters();
  const remote::StoreStats store = server_.stats();
  const remote::ServerStats servers = server_.server_stats();
  stats.written_records = store.written_records;
  stats.written_bytes = store.written_bytes;
  stats.erased_records = store.erased_records;
  stats.write_errors = store.refused_writes;  // the others are failures
  stats.dropped_records += store.dropped_records;
  stats.damaged_records = store.damaged_records;
  stats.lookups = store.lookups;
  stats.round_trips = store.round_trips;
  stats.present_records = store.present_records;
  stats.missing_records = store.missing_records;
  stats.is_suspended = servers.is_suspended;
  stats.servers = servers.servers;
  stats.connects = servers.connects;
  stats.redirections = servers.redirections;
  stats.failures = servers.failures + store.server_errors;
  stats.timeouts = servers.timeouts;
  stats.refused_operations = servers.refused_operations;
  if (stats.last_error.empty()) stats.last_error = store.last_error;
  return stats;
}

}  // namespace kvcache
