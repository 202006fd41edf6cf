// A server that speaks as much of RESP2 as a remote tier needs, in this process, and misbehaves
// when it is told to. For tests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace kvcache::fake {

// What the server does from now on.
enum class Mood {
  kHonest,
  kSilent,       // takes everything in and says nothing
  kGarbage,      // answers with bytes that mean nothing
  kHuge,         // announces 2^60 bytes
  kManyItems,    // announces 2^60 replies
  kWrongType,    // answers strings with integers
  kDribbles,     // a byte now and then
  kHangsUp,      // closes in the middle of an answer
  kFull,         // refuses to write: maxmemory
  kRefuses,      // answers every command with an error
  kEndlessLine,  // a line that does not end
  kTalkative,    // adds a reply that nobody asked for
};

class Valkey {
 public:
  using Words = std::vector<std::string>;
  // What is said to a command in place of its usual answer; "" leaves it at that. `asked`: ASKING
  // was said before it, or before its transaction.
  using Script = std::function<std::string(const Words&, bool asked)>;

  Valkey() {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(name);
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&name), size) != 0) std::abort();
    if (::listen(listener_, 64) != 0) std::abort();
    getsockname(listener_, reinterpret_cast<sockaddr*>(&name), &size);
    port_ = ntohs(name.sin_port);
    accepter_ = std::thread([this] { accept_all(); });
  }
  Valkey(const Valkey&) = delete;
  Valkey& operator=(const Valkey&) = delete;
  ~Valkey() {
    stopping_ = true;
    accepter_.join();
    for (std::thread& each : served_) each.join();
    ::close(listener_);
  }

  std::uint16_t port() const { return port_; }
  void set(Mood mood) { mood_ = mood; }
  void set(Script script) {
    const std::lock_guard lock(mutex_);
    script_ = std::make_shared<const Script>(std::move(script));
  }
  // Closes every connection; what is stored stays.
  void hang_up() { ++generation_; }
  std::map<std::string, std::string> values() {
    const std::lock_guard lock(mutex_);
    return values_;
  }
  void put(const std::string& name, const std::string& value) {
    const std::lock_guard lock(mutex_);
    values_[name] = value;
  }
  void remove(const std::string& name) {
    const std::lock_guard lock(mutex_);
    values_.erase(name);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    values_.clear();
  }
  int commands() const { return commands_; }
  int logins() const { return logins_; }
  void require_password(const std::string& password) { password_ = password; }

  static std::string bulk(const std::string& text) {
    return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
  }

 private:
  void accept_all() {
    while (!stopping_) {
      pollfd waiting{listener_, POLLIN, 0};
      if (::poll(&waiting, 1, 10) <= 0) continue;
      const int file = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (file >= 0) served_.emplace_back([this, file] { serve(file); });
    }
  }

  static bool send_all(int file, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(file, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // False: more has to come.
  static bool parse(std::string& input, Words& words) {
    const auto number = [&](std::size_t& at, std::size_t& value) {
      const std::size_t end = input.find("\r\n", at);
      if (end == input.npos) return false;
      std::from_chars(input.data() + at + 1, input.data() + end, value);
      at = end + 2;
      return true;
    };
    std::size_t at = 0;
    std::size_t count = 0;
    if (!number(at, count)) return false;
    words.clear();
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t size = 0;
      if (!number(at, size) || input.size() < at + size + 2) return false;
      words.push_back(input.substr(at, size));
      at += size + 2;
    }
    input.erase(0, at);
    return true;
  }

  void serve(int file) {
    const int generation = generation_;
    std::string input;
    std::vector<Words> queued;
    bool multi = false;
    bool asked = false;
    bool known = password_.empty();
    std::vector<char> bytes(1 << 18);
    while (!stopping_ && generation == generation_) {
      pollfd waiting{file, POLLIN, 0};
      if (::poll(&waiting, 1, 5) <= 0) continue;
      const ssize_t got = ::recv(file, bytes.data(), bytes.size(), 0);
      if (got <= 0) break;
      input.append(bytes.data(), static_cast<std::size_t>(got));
      Words words;
      std::string output;
      while (!input.empty() && parse(input, words)) {
        ++commands_;
        if (words[0] == "AUTH") {
          ++logins_;
          known = words.back() == password_;
          output += known ? "+OK\r\n" : "-WRONGPASS invalid username-password pair\r\n";
        } else if (!known) {
          output += "-NOAUTH Authentication required.\r\n";
        } else if (words[0] == "ASKING") {
          asked = true;
          output += "+OK\r\n";
          continue;
        } else if (const std::string scripted = said(words, asked); !scripted.empty()) {
          if (multi) queued.push_back({"ABORT"});
          output += scripted;
        } else if (words[0] == "MULTI") {
          multi = true;
          queued.clear();
          output += "+OK\r\n";
        } else if (multi && words[0] != "EXEC") {
          const bool full = mood_ == Mood::kFull && words[0] == "SET";
          if (full) queued.push_back({"ABORT"});
          queued.push_back(words);
          output +=
              full ? "-OOM command not allowed when used memory > 'maxmemory'.\r\n" : "+QUEUED\r\n";
        } else if (words[0] == "EXEC") {
          multi = false;
          output += execute(queued);
        } else {
          output += answer(words);
        }
        asked = asked && multi;
      }
      if (!say(file, output)) break;
    }
    ::close(file);
  }

  std::string said(const Words& words, bool asked) {
    std::shared_ptr<const Script> script;
    {
      const std::lock_guard lock(mutex_);
      script = script_;
    }
    return script ? (*script)(words, asked) : "";
  }

  std::string execute(const std::vector<Words>& queued) {
    std::string output = "*" + std::to_string(queued.size()) + "\r\n";
    for (const Words& each : queued) {
      if (each[0] == "ABORT") return "-EXECABORT Transaction discarded\r\n";
      output += answer(each);
    }
    return output;
  }

  std::string answer(const Words& words) {
    const std::lock_guard lock(mutex_);
    const std::string& command = words[0];
    const auto at = words.size() > 1 ? values_.find(words[1]) : values_.end();
    const bool there = at != values_.end();
    if (command == "GET") return there ? bulk(at->second) : "$-1\r\n";
    if (command == "STRLEN") return ":" + std::to_string(there ? at->second.size() : 0) + "\r\n";
    if (command == "GETRANGE") {
      const std::size_t first = std::stoul(words[2]);
      const bool in = there && first < at->second.size();
      return bulk(in ? at->second.substr(first, std::stoul(words[3]) + 1 - first) : "");
    }
    if (command == "SET") {
      if (there && words.size() > 3 && words[3] == "NX") return "$-1\r\n";
      values_[words[1]] = words[2];
      return "+OK\r\n";
    }
    if (command == "UNLINK") return ":" + std::to_string(values_.erase(words[1])) + "\r\n";
    if (command == "PEXPIRE") return there ? ":1\r\n" : ":0\r\n";
    if (command == "SCAN") {
      std::string names;
      std::size_t count = 0;
      for (const auto& [name, value] : values_) {
        if (!name.ends_with(".0")) continue;
        names += bulk(name);
        ++count;
      }
      return "*2\r\n" + bulk("0") + "*" + std::to_string(count) + "\r\n" + names;
    }
    const bool known = command == "WATCH" || command == "UNWATCH" || command == "SELECT";
    return known ? "+OK\r\n" : "-ERR unknown command\r\n";
  }

  // What the mood makes of an answer. False: the connection is closed.
  bool say(int file, const std::string& output) {
    const std::string_view garbage("\0\xff not a reply\r\n\r\n$x\r\n", 22);
    switch (mood_.load()) {
      case Mood::kHonest:
      case Mood::kFull:
        return send_all(file, output);
      case Mood::kSilent:
        return true;
      case Mood::kGarbage:
        return send_all(file, garbage);
      case Mood::kHuge:
        return send_all(file, "$1152921504606846976\r\n");
      case Mood::kManyItems:
        return send_all(file, "*1152921504606846976\r\n");
      case Mood::kWrongType:
        return send_all(file, ":7\r\n:7\r\n:7\r\n:7\r\n");
      case Mood::kRefuses:
        return send_all(file, "-NOPERM this user has no permissions\r\n");
      case Mood::kEndlessLine:
        return send_all(file, "+" + std::string(1 << 16, 'x'));
      case Mood::kTalkative:
        return send_all(file, output + "+OK\r\n");
      case Mood::kHangsUp:
        send_all(file, output.substr(0, output.size() / 2));
        return false;
      case Mood::kDribbles:
        break;
    }
    for (const char& each : output) {
      if (stopping_ || mood_ != Mood::kDribbles) return false;
      if (!send_all(file, {&each, 1})) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return true;
  }

  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> generation_ = 0;
  std::atomic<Mood> mood_ = Mood::kHonest;
  std::atomic<int> commands_ = 0;
  std::atomic<int> logins_ = 0;
  std::string password_;
  std::mutex mutex_;
  std::shared_ptr<const Script> script_;
  std::map<std::string, std::string> values_;
  std::vector<std::thread> served_;  // of the accepting thread, until it has ended
  std::thread accepter_;
};

}  // namespace kvcache::fake
