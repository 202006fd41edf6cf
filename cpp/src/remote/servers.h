// The servers behind a tier: one, the primaries of a cluster that share the keys, or the primary
// that sentinels name. Who has a key is learned, and learned anew when a server says so or is lost;
// what is asked about many keys goes to all of them at once. What any of them says of others is
// followed a few times, and believed no further.
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/remote_tier.h"
#include "remote/connections.h"
#include "remote/topology.h"

namespace kvcache::remote {

// Questions about keys, of one command and one reply each.
struct Questions {
  std::vector<std::string_view> keys;
  // Adds the command of one.
  std::function<void(std::size_t question, Commands& commands)> ask;
  // Takes the reply to one. What the server refuses is kIoError and changes nothing.
  std::function<Status(std::size_t question, RespClient& client)> take;
  // About how long the replies are, if they are long: not all of them are asked for at once.
  std::vector<std::uint64_t> bytes = {};
};

struct ServerStats : ConnectionStats {
  std::uint64_t servers = 0;       // primaries that are known
  std::uint64_t redirections = 0;  // answers that another server has the key
};

class Servers {
 public:
  // Connects to nobody yet.
  explicit Servers(const RemoteTierOptions& options,
                   std::shared_ptr<const TlsContext> tls = nullptr);

  // Asks all the questions, and says of each how it went. kIoError: its server is not known, does
  // not answer or refuses; the others are answered all the same.
  std::vector<Status> ask(const Questions& questions, const Deadline& deadline);

  // What takes several steps at the server of a key. `asking`: each command that names the key goes
  // behind ASKING, a transaction as a whole. Where another server has the key it begins anew.
  using Visit = std::function<Status(RespClient& client, bool asking)>;
  Status visit(std::string_view key, const Deadline& deadline, const Visit& visit);
  // Every primary, one after another; how it went at the last that failed.
  Status visit_all(const Deadline& deadline, const Connections::Operation& visit);

  // Whether the last visit() failed for want of one server, while others are well.
  bool has_others() const { return has_others_; }
  // The first address that was given.
  const std::string& name() const { return name_; }
  ServerStats stats() const;

 private:
  friend class Asking;
  using Server = std::shared_ptr<Connections>;
  struct Map {
    std::vector<Server> nodes;
    std::vector<std::uint16_t> owners;  // of slots; empty: the first node has all of them
  };
  using MapRef = std::shared_ptr<const Map>;

  bool is_cluster() const { return topology_ == RemoteTopology::kCluster; }
  Result<MapRef> map(const Deadline& deadline);
  Result<MapRef> learn(const Deadline& deadline);
  Result<MapRef> learn_from(Connections& guide, const Deadline& deadline);
  void install(MapRef map);  // locked
  // Of a key, by the map, or of one that was named by another server.
  Result<Server> server_of(const Result<MapRef>& map, std::string_view key);
  Result<Server> server_at(const Address& address);
  // Where a server that refuses sends on to. Otherwise `status` may tell more.
  std::optional<Redirection> look_into(std::string_view refusal, const Connections& server,
                                       Status& status);
  // The map may be out of date.
  void doubt();
  bool some_are_well() const;

  const RemoteTopology topology_;
  const std::string service_;
  const Login login_;
  const std::size_t most_;
  const std::string name_;
  // Who is asked for the map where no node of it answers; one that is lost is no failure of a
  // server.
  std::vector<Server> guides_;
  std::atomic<std::uint64_t> redirections_ = 0;
  std::atomic<bool> has_others_ = false;

  mutable std::mutex mutex_;
  std::condition_variable learned_;
  std::map<std::string, Server> servers_;  // by address
  MapRef map_;                             // null: none has been learned
  bool doubted_ = false;
  bool learning_ = false;  // somebody does
  std::chrono::steady_clock::time_point next_learning_{};
  Status last_failure_;
  ConnectionStats past_;  // of servers that are none any more
};

// So often a question is sent on from server to server.
inline constexpr int kMostRedirections = 4;

}  // namespace kvcache::remote
