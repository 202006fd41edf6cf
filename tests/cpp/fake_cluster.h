// Three servers in this process that share the slots of a cluster, and sentinels that name one of
// several servers. For tests.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fake_valkey.h"
#include "kvcache/remote_tier.h"
#include "remote/topology.h"

namespace kvcache::fake {

class Cluster {
 public:
  static constexpr std::size_t kNodes = 3;

  Cluster() {
    for (std::size_t i = 0; i < kNodes; ++i) {
      nodes_[i] = std::make_unique<Valkey>();
      ports_[i] = nodes_[i]->port();
      nodes_[i]->set([this, i](const Valkey::Words& words, bool asked) {
        if (words[0] == "CLUSTER") return ++lessons_, slots();
        const bool has_key = words[0] == "GET" || words[0] == "GETRANGE" || words[0] == "SET" ||
                             words[0] == "STRLEN" || words[0] == "UNLINK" ||
                             words[0] == "PEXPIRE" || words[0] == "WATCH";
        return has_key ? redirection(i, words[1], asked) : "";
      });
    }
  }

  Valkey& node(std::size_t i) { return *nodes_[i]; }
  void kill(std::size_t i) { nodes_[i] = nullptr; }
  // All slots are those of the next node from now on, and who asks is told so, or the old map.
  void rotate(bool tell) {
    ++shift_;
    if (tell) ++told_;
  }
  // What a node does not have is to be had from the next one, by ASKING.
  void set_moving(bool moving) { moving_ = moving; }
  // In place of the usual word on who has a slot.
  using Word = std::function<std::string(std::size_t node, std::uint16_t slot)>;
  void set(Word word) { word_ = std::move(word); }

  std::size_t owner(std::uint16_t slot) const { return (slot / 5462U + shift_) % kNodes; }
  std::string place(std::size_t i) const { return "127.0.0.1:" + std::to_string(ports_[i]); }
  int lessons() const { return lessons_; }

  RemoteTierOptions options(std::uint64_t deadline_ms = 60'000) const {
    RemoteTierOptions options;
    for (const std::uint16_t port : ports_) options.addresses.push_back({"127.0.0.1", port});
    options.topology = RemoteTopology::kCluster;
    options.deadline_ms = deadline_ms;
    return options;
  }

 private:
  std::string slots() const {
    std::string reply = "*3\r\n";
    for (std::size_t part = 0; part < kNodes; ++part) {
      const std::size_t node = (part + told_) % kNodes;
      const std::size_t last = std::min<std::size_t>(part * 5462 + 5461, remote::kSlots - 1);
      // The node that is asked gives no host, as some do.
      reply += "*3\r\n:" + std::to_string(part * 5462) + "\r\n:" + std::to_string(last) +
               "\r\n*4\r\n$0\r\n\r\n:" + std::to_string(ports_[node]) + "\r\n" +
               Valkey::bulk(std::string(40, 'a')) + "*0\r\n";
    }
    return reply;
  }

  std::string redirection(std::size_t i, const std::string& key, bool asked) {
    const std::uint16_t slot = remote::slot_of(key);
    if (word_) {
      const std::string word = word_(i, slot);
      if (!word.empty()) return word;
    }
    const std::size_t here = owner(slot);
    const std::size_t next = (here + 1) % kNodes;
    const auto send_on = [&](const char* how, std::size_t to) {
      return std::string(how) + std::to_string(slot) + " " + place(to) + "\r\n";
    };
    if (moving_ && i == here && !nodes_[i]->values().contains(key)) return send_on("-ASK ", next);
    if (moving_ && i == next && asked) return "";
    return i == here ? "" : send_on("-MOVED ", here);
  }

  std::array<std::uint16_t, kNodes> ports_{};
  std::atomic<unsigned> shift_ = 0;
  std::atomic<unsigned> told_ = 0;
  std::atomic<bool> moving_ = false;
  std::atomic<int> lessons_ = 0;
  Word word_;
  std::array<std::unique_ptr<Valkey>, kNodes> nodes_;  // the last member: they use the others
};

}  // namespace kvcache::fake
