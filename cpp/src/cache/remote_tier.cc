#include "cache/remote_tier.h"

#include <algorithm>
#include <utility>

#include "remote/tls.h"

namespace kvcache {
namespace {

using remote::RemoteStore;

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

Status check(const RemoteTierOptions& options) {
  const auto wrong = [](const char* name, const auto&... text) {
    return Status::invalid_argument("remote tier: ", name, ": ", text...);
  };
  if (!options.host.empty() && !options.socket.empty()) {
    return wrong("socket", "a host is given as well");
  }
  for (const auto& [name, text] : {std::pair("host", &options.host), {"socket", &options.socket}}) {
    if (text->find('\0') != text->npos) return wrong(name, "holds a zero byte");
  }
  if (options.ttl_ms > kMostTtlMs) {
    return wrong("ttl_ms", "expected at most ", kMostTtlMs, ", got ", options.ttl_ms,
                 "; 0 means never");
  }
  if (options.socket.empty() && options.port == 0) return wrong("port", "expected 1..65535, got 0");
  if (options.read_threads == 0 || options.read_threads > 64) {
    return wrong("read_threads", "expected 1..64, got ", options.read_threads);
  }
  if (options.deadline_ms == 0 || options.deadline_ms > kMostDeadlineMs) {
    return wrong("deadline_ms", "expected 1..", kMostDeadlineMs, ", got ", options.deadline_ms);
  }
  const RemoteTlsOptions& tls = options.tls;
  if (tls.enabled && options.host.empty()) return wrong("tls", "a Unix socket has none");
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
  const remote::Address address{options.host, options.port, options.socket};
  TierOptions tier_options;
  tier_options.name = "remote tier at " + address.text();
  tier_options.weights = std::move(weights);
  tier_options.queue.queue_bytes = options.queue_bytes;
  tier_options.queue.wait_ms = options.wait_ms;
  tier_options.queue.longest_pause_ms = kLongestPauseMs;
  // What cannot be written within a while when the cache ends is written by others.
  tier_options.queue.end_ms = options.deadline_ms;
  tier_options.read_threads = options.read_threads;
  tier_options.at_open = options.at_open;
  auto store = std::make_unique<RemoteStore>(options, remote::kPartBytes, std::move(tls));
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
  const remote::ConnectionStats connections = server_.connection_stats();
  stats.written_records = store.written_records;
  stats.written_bytes = store.written_bytes;
  stats.erased_records = store.erased_records;
  stats.write_errors = store.refused_writes;  // the others are failures
  stats.damaged_records = store.damaged_records;
  stats.lookups = store.lookups;
  stats.round_trips = store.round_trips;
  stats.present_records = store.present_records;
  stats.missing_records = store.missing_records;
  stats.is_suspended = connections.is_suspended;
  stats.connects = connections.connects;
  stats.failures = connections.failures + store.server_errors;
  stats.timeouts = connections.timeouts;
  stats.refused_operations = connections.refused_operations;
  if (stats.last_error.empty()) stats.last_error = store.last_error;
  return stats;
}

}  // namespace kvcache
