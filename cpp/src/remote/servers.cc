#include "remote/servers.h"

#include <algorithm>
#include <utility>

#include "base/on_throw.h"

namespace kvcache::remote {
namespace {

using std::chrono::steady_clock;

// After the map was asked for it is not asked for again for a while.
constexpr std::chrono::milliseconds kLearningPause{500};
// Of what is left of a deadline, the part that each of several who may know the map is given.
constexpr std::size_t kGuides = 3;

Address address_of(const RemoteAddress& address) {
  return {address.host, address.port, address.socket};
}

// One question, whatever its answer.
Status ask_once(RespClient& client, std::initializer_list<std::string_view> words,
                const ReplyLimits& limits, Reply& reply, const Deadline& deadline) {
  Commands commands;
  commands.add(words);
  if (Status sent = client.send(commands, deadline); !sent) return sent;
  return client.receive(limits, reply, deadline);
}

Status greet_primary(RespClient& client, const Deadline& deadline) {
  Reply reply;
  Status status = ask_once(client, {"ROLE"}, kRoleLimits, reply, deadline);
  return status ? check_primary(reply) : status;
}

// Refusals that end by themselves, of one server alone.
bool is_passing(std::string_view refusal) {
  return refusal.starts_with("TRYAGAIN") || refusal.starts_with("LOADING");
}

}  // namespace

Servers::Servers(const RemoteTierOptions& options, std::shared_ptr<const TlsContext> tls)
    : topology_(options.topology),
      service_(options.service),
      login_{options.user, options.password, options.database, std::move(tls)},
      most_(std::size_t{2} + options.read_threads),
      name_(address_of(options.addresses.front()).text()) {
  if (topology_ == RemoteTopology::kServer) {
    Map map{{server_at(address_of(options.addresses.front())).value()}, {}};
    map_ = std::make_shared<const Map>(std::move(map));
    return;
  }
  const Login sentinel{options.sentinel_user, options.sentinel_password, 0, login_.tls};
  for (const RemoteAddress& each : options.addresses) {
    const Login& login = is_cluster() ? login_ : sentinel;
    guides_.push_back(std::make_shared<Connections>(address_of(each), login, 1));
  }
}

// ---- Who has which keys -----------------------------------------------------------------------

void Servers::doubt() {
  const std::lock_guard lock(mutex_);
  doubted_ = topology_ != RemoteTopology::kServer;
}

// One thread learns at a time. The others go on with what is known, or wait where nothing is.
Result<Servers::MapRef> Servers::map(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  if (!map_ && !learned_.wait_until(lock, deadline.at(), [&] { return map_ || !learning_; })) {
    return Status::io_error(name_, ": who has which keys was not told within ", deadline.ms(),
                            " ms");
  }
  const bool is_due = !learning_ && steady_clock::now() >= next_learning_;
  if (map_ && !(doubted_ && is_due)) return map_;
  if (!map_ && !is_due) {
    ++past_.refused_operations;
    return Status::io_error("left alone for a while after a failure: ", last_failure_.message());
  }
  learning_ = true;
  doubted_ = false;  // what is doubted from now on is learned by the next
  lock.unlock();
  Result<MapRef> learned = Status::io_error("no memory");
  const auto ends = [&] {
    if (!lock.owns_lock()) lock.lock();
    learning_ = false;
    doubted_ = doubted_ || !learned;
    learned_.notify_all();
  };
  {
    const base::OnThrow undo(ends);
    learned = learn(deadline);
    lock.lock();
    if (learned) install(*learned);
    last_failure_ = learned.status();
    past_.failures += !learned;
    past_.timeouts += !learned && deadline.has_passed();
    next_learning_ = steady_clock::now() + kLearningPause;
  }
  ends();
  if (map_) return map_;
  return learned;
}

void Servers::install(MapRef map) {
  map_ = std::move(map);
  std::erase_if(servers_, [&](const auto& entry) {
    const Server& server = entry.second;
    const std::vector<Server>& nodes = map_->nodes;
    if (std::find(nodes.begin(), nodes.end(), server) != nodes.end()) return false;
    past_ += server->stats();
    return true;
  });
}

Result<Servers::MapRef> Servers::learn(const Deadline& deadline) {
  std::vector<Server> guides;
  {
    const std::lock_guard lock(mutex_);
    if (map_ && is_cluster()) guides = map_->nodes;
  }
  guides.insert(guides.end(), guides_.begin(), guides_.end());
  Status status;
  for (std::size_t i = 0; i < guides.size() && !deadline.has_passed(); ++i) {
    const Deadline part = deadline.part(static_cast<int>(std::min(guides.size() - i, kGuides)));
    auto map = learn_from(*guides[i], part);
    if (map) return map;
    status = map.status();
  }
  return status ? Status::io_error(name_, ": no time was left to ask who has which keys") : status;
}

Result<Servers::MapRef> Servers::learn_from(Connections& guide, const Deadline& deadline) {
  Reply reply;
  const Status status = guide.run(deadline, [&](RespClient& client) {
    return is_cluster() ? ask_once(client, {"CLUSTER", "SLOTS"}, kSlotsLimits, reply, deadline)
                        : ask_once(client, {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", service_}, {},
                                   reply, deadline);
  });
  if (!status) return status;
  const std::string asked = guide.address().text() + ": ";
  if (reply.is_error()) return Status::io_error(asked, "the server says: ", printable(reply.text));
  Map map;
  std::vector<Address> nodes;
  if (is_cluster()) {
    auto slots = read_slots(reply, guide.address());
    if (!slots) return slots.status().prefixed(asked);
    if (slots->nodes.empty()) return Status::io_error(asked, "no node of the cluster has any key");
    map.owners = std::move(slots->owners);
    nodes = std::move(slots->nodes);
  } else {
    auto primary = read_primary(reply, guide.address());
    if (!primary) return primary.status().prefixed(asked);
    nodes = {std::move(primary).value()};
  }
  for (const Address& node : nodes) {
    auto server = server_at(node);
    if (!server) return server.status();
    map.nodes.push_back(std::move(server).value());
  }
  return std::make_shared<const Map>(std::move(map));
}

Result<Servers::Server> Servers::server_at(const Address& address) {
  const std::lock_guard lock(mutex_);
  const std::string text = address.text();
  if (const auto at = servers_.find(text); at != servers_.end()) return at->second;
  // Of the map, of the one before it, and those that servers sent us on to.
  if (servers_.size() >= 3 * kMostNodes) return Status::io_error(text, ": too many servers");
  const bool greets = topology_ == RemoteTopology::kSentinels;
  auto server = std::make_shared<Connections>(
      address, login_, most_, greets ? Connections::Greeting(greet_primary) : nullptr);
  servers_.emplace(text, server);
  return server;
}

Result<Servers::Server> Servers::server_of(const Result<MapRef>& map, std::string_view key) {
  if (!map) return map.status();
  const Map& known = **map;
  if (known.owners.empty()) return known.nodes.front();
  const std::uint16_t slot = slot_of(key);
  const std::uint16_t owner = known.owners[slot];
  if (owner != kNobody) return known.nodes[owner];
  doubt();
  return Status::io_error(name_, ": no node of the cluster has slot ", slot);
}

std::optional<Redirection> Servers::look_into(std::string_view refusal, const Connections& server,
                                              Status& status) {
  auto way = read_redirection(refusal, server.address());
  if (way && !is_cluster()) {
    status = Status::io_error(server.address().text(),
                              ": this is a node of a cluster; name it as one (valkey+cluster://)");
    return std::nullopt;
  }
  if (way) ++redirections_;
  const bool stale = (way && !way->asking) || refusal.starts_with("READONLY") ||
                     refusal.starts_with("CLUSTERDOWN");
  if (stale) doubt();
  return way;
}

// ---- Visits -----------------------------------------------------------------------------------

Status Servers::visit(std::string_view key, const Deadline& deadline, const Visit& visit) {
  std::optional<Redirection> way;
  has_others_ = false;
  for (int round = 0; round <= kMostRedirections; ++round) {
    auto server = way ? server_at(way->to) : server_of(map(deadline), key);
    const bool asking = way && way->asking;
    std::string refusal;
    Status status = server.status();
    if (server) {
      status = (*server)->run(deadline, [&](RespClient& client) {
        client.take_refusal();
        Status done = visit(client, asking);
        refusal = client.take_refusal();
        return done;
      });
    }
    if (status) return status;
    if (refusal.empty()) doubt();
    way = server ? look_into(refusal, **server, status) : std::nullopt;
    if (way) continue;
    has_others_ = (refusal.empty() || is_passing(refusal)) && some_are_well();
    return status;
  }
  has_others_ = some_are_well();
  return Status::io_error("sent on from server to server");
}

Status Servers::visit_all(const Deadline& deadline, const Connections::Operation& visit) {
  doubt();
  const auto all = map(deadline);
  if (!all) return all.status();
  Status status;
  for (const Server& server : (*all)->nodes) {
    if (Status done = server->run(deadline, visit); !done) status = std::move(done);
  }
  return status;
}

bool Servers::some_are_well() const {
  const std::lock_guard lock(mutex_);
  return is_cluster() && map_ &&
         std::any_of(map_->nodes.begin(), map_->nodes.end(),
                     [](const Server& each) { return !each->is_suspended(); });
}

ServerStats Servers::stats() const {
  const std::lock_guard lock(mutex_);
  ServerStats stats;
  static_cast<ConnectionStats&>(stats) = past_;
  for (const auto& [name, server] : servers_) stats += server->stats();
  stats.redirections = redirections_;
  stats.is_suspended = !map_ && !last_failure_;
  if (!map_) return stats;
  stats.servers = map_->nodes.size();
  for (const Server& node : map_->nodes) {
    stats.is_suspended = stats.is_suspended || node->is_suspended();
  }
  return stats;
}

}  // namespace kvcache::remote
