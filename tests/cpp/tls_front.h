// The server's end of TLS before a server in the clear, in this process; certificates for it; and a
// wire that goes wrong at any byte. For tests.
#pragma once

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace kvcache::fake {

// Accepts on a loopback port, and serves each connection on a thread of its own.
class Listener {
 public:
  std::uint16_t port() const { return port_; }

 protected:
  Listener() {
    file_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in name = address(0);
    socklen_t size = sizeof(name);
    if (::bind(file_, reinterpret_cast<sockaddr*>(&name), size) != 0) std::abort();
    if (::listen(file_, 64) != 0) std::abort();
    getsockname(file_, reinterpret_cast<sockaddr*>(&name), &size);
    port_ = ntohs(name.sin_port);
  }
  ~Listener() { ::close(file_); }

  void start(std::function<void(int)> serve) {
    accepter_ = std::thread([this, serve = std::move(serve)] {
      while (!stopping_) {
        pollfd waiting{file_, POLLIN, 0};
        if (::poll(&waiting, 1, 10) <= 0) continue;
        const int file = ::accept4(file_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (file < 0) continue;
        served_.emplace_back([serve, file] {
          // Who writes to a client that has gone is this thread, of which OpenSSL asks the system
          // for a signal. The client under test must not.
          sigset_t broken;
          sigemptyset(&broken);
          sigaddset(&broken, SIGPIPE);
          pthread_sigmask(SIG_BLOCK, &broken, nullptr);
          serve(file);
          ::close(file);
        });
      }
    });
  }
  void stop() {
    stopping_ = true;
    accepter_.join();
    for (std::thread& each : served_) each.join();
  }

  static sockaddr_in address(std::uint16_t port) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port = htons(port);
    return name;
  }
  static int connect_to(std::uint16_t port) {
    const int file = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in name = address(port);
    if (::connect(file, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) std::abort();
    ::fcntl(file, F_SETFL, O_NONBLOCK);
    return file;
  }
  // False: it does not go any more.
  bool send_all(int file, std::string_view bytes) const {
    while (!bytes.empty() && !stopping_) {
      const ssize_t sent = ::send(file, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
      if (sent > 0) continue;
      if (errno != EAGAIN) return false;
      wait(file, POLLOUT);
    }
    return bytes.empty();
  }
  static void wait(int file, short events) {
    pollfd waiting{file, events, 0};
    ::poll(&waiting, 1, 10);
  }

  std::atomic<bool> stopping_ = false;

 private:
  int file_ = -1;
  std::uint16_t port_ = 0;
  std::vector<std::thread> served_;  // of the accepting thread, until it has ended
  std::thread accepter_;
};

struct FrontOptions {
  std::string certificate;
  std::string key;
  std::string client_ca;  // whose certificates a client has to have; empty: none
  long version = 0;       // the only one that is spoken; 0: any
  bool farewell = false;  // the end of data is said before the connection is closed
};

class TlsFront : public Listener {
 public:
  TlsFront(std::uint16_t behind, const FrontOptions& options)
      : behind_(behind), farewell_(options.farewell) {
    context_ = call<void*>("SSL_CTX_new", call<void*>("TLS_server_method"));
    const char* certificate = options.certificate.c_str();
    bool good = call<int>("SSL_CTX_use_certificate_chain_file", context_, certificate) == 1;
    good = good && call<int>("SSL_CTX_use_PrivateKey_file", context_, options.key.c_str(), 1) == 1;
    const char* authority = options.client_ca.c_str();
    const char* folder = nullptr;
    if (*authority != '\0') {
      good = good && call<int>("SSL_CTX_load_verify_locations", context_, authority, folder) == 1;
      call<void>("SSL_CTX_set_verify", context_, 1 | 2, nullptr);
    }
    if (options.version != 0) {
      // What is old is offered on no other level of security.
      good = good && call<int>("SSL_CTX_set_cipher_list", context_, "ALL:@SECLEVEL=0") == 1;
      for (const int bound : {123, 124}) {
        good = good && call<long>("SSL_CTX_ctrl", context_, bound, options.version, nullptr) == 1;
      }
    }
    if (!good) std::abort();
    start([this](int file) { serve(file); });
  }
  ~TlsFront() {
    stop();
    call<void>("SSL_CTX_free", context_);
  }

 private:
  template <typename Result, typename... Arguments>
  static Result call(const char* name, Arguments... arguments) {
    static void* const library = [] {
      void* found = ::dlopen("libssl.so.3", RTLD_NOW);
      return found != nullptr ? found : ::dlopen("libssl.so.1.1", RTLD_NOW);
    }();
    return reinterpret_cast<Result (*)(Arguments...)>(::dlsym(library, name))(arguments...);
  }

  // A call until it is done, which is above 0, or fails.
  template <typename Call>
  int complete(void* ssl, int file, const Call& attempt) const {
    while (!stopping_) {
      call<void>("ERR_clear_error");
      const int done = attempt();
      if (done > 0) return done;
      const int kind = call<int>("SSL_get_error", ssl, done);
      if (kind != 2 && kind != 3) return -1;
      wait(file, kind == 2 ? POLLIN : POLLOUT);
    }
    return -1;
  }

  void serve(int file) {
    void* ssl = call<void*>("SSL_new", context_);
    call<int>("SSL_set_fd", ssl, file);
    if (complete(ssl, file, [&] { return call<int>("SSL_accept", ssl); }) > 0) {
      const int behind = connect_to(behind_);
      pass_on(ssl, file, behind);
      ::close(behind);
      if (farewell_) call<int>("SSL_shutdown", ssl);
    }
    call<void>("SSL_free", ssl);
  }

  void pass_on(void* ssl, int file, int behind) {
    std::vector<char> bytes(1 << 16);
    const auto size = static_cast<int>(bytes.size());
    while (!stopping_) {
      if (call<int>("SSL_pending", ssl) == 0) {
        pollfd both[2] = {{file, POLLIN, 0}, {behind, POLLIN, 0}};
        if (::poll(both, 2, 10) <= 0) continue;
      }
      call<void>("ERR_clear_error");
      const int got = call<int>("SSL_read", ssl, static_cast<void*>(bytes.data()), size);
      const int kind = got > 0 ? 0 : call<int>("SSL_get_error", ssl, got);
      if (got <= 0 && kind != 2 && kind != 3) return;
      if (got > 0 && !send_all(behind, {bytes.data(), static_cast<std::size_t>(got)})) return;
      const ssize_t come = ::recv(behind, bytes.data(), bytes.size(), 0);
      if (come == 0 || (come < 0 && errno != EAGAIN)) return;
      for (int at = 0; at < come;) {
        const auto left = static_cast<int>(come) - at;
        const void* data = bytes.data() + at;
        const int sent =
            complete(ssl, file, [&] { return call<int>("SSL_write", ssl, data, left); });
        if (sent <= 0) return;
        at += sent;
      }
    }
  }

  const std::uint16_t behind_;
  const bool farewell_;
  void* context_ = nullptr;
};

// Passes bytes on between clients and a server, and spoils those of the server from one of them on.
class Wire : public Listener {
 public:
  enum class Fault { kNone, kCut, kStall, kFlip, kDribble };

  Wire(std::uint16_t behind, Fault fault, std::uint64_t at)
      : behind_(behind), fault_(fault), at_(at) {
    start([this](int file) { serve(file); });
  }
  ~Wire() { stop(); }
  // Bytes of the server so far, of all connections.
  std::uint64_t passed() const { return passed_; }

 private:
  void serve(int file) {
    const int behind = connect_to(behind_);
    std::vector<char> bytes(1 << 14);
    std::uint64_t of_server = 0;
    while (!stopping_) {
      pollfd both[2] = {{file, POLLIN, 0}, {behind, POLLIN, 0}};
      if (::poll(both, 2, 10) <= 0) continue;
      const ssize_t asked = ::recv(file, bytes.data(), bytes.size(), 0);
      if (asked == 0 || (asked < 0 && errno != EAGAIN)) break;
      if (asked > 0 && !send_all(behind, {bytes.data(), static_cast<std::size_t>(asked)})) break;
      const ssize_t come = ::recv(behind, bytes.data(), bytes.size(), 0);
      if (come == 0 || (come < 0 && errno != EAGAIN)) break;
      if (come <= 0) continue;
      const std::string_view said(bytes.data(), static_cast<std::size_t>(come));
      if (!say(file, said, of_server)) break;
      of_server += said.size();
      passed_ += said.size();
    }
    ::close(behind);
  }

  // False: the connection is closed.
  bool say(int file, std::string_view said, std::uint64_t before) {
    const std::uint64_t good = at_ > before ? at_ - before : 0;
    if (fault_ == Fault::kNone || good >= said.size()) return send_all(file, said);
    if (!send_all(file, said.substr(0, good))) return false;
    switch (fault_) {
      case Fault::kCut:
        return false;
      case Fault::kFlip: {
        std::string wrong(said.substr(good));
        if (at_ >= before) wrong[0] = static_cast<char>(wrong[0] ^ 1);
        return send_all(file, wrong);
      }
      case Fault::kDribble:
        for (const char& each : said.substr(good)) {
          if (stopping_ || !send_all(file, {&each, 1})) return false;
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return true;
      default:
        return true;  // it stalls
    }
  }

  const std::uint16_t behind_;
  const Fault fault_;
  const std::uint64_t at_;
  std::atomic<std::uint64_t> passed_ = 0;
};

// PEM files, made by the program openssl.
class Certificates {
 public:
  Certificates() {
    std::string folder = (std::filesystem::temp_directory_path() / "kvcache_tls_XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) std::abort();
    folder_ = folder;
  }
  Certificates(const Certificates&) = delete;
  ~Certificates() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  // Whether there is such a program.
  static bool can_be_made() { return std::system("openssl version >/dev/null 2>&1") == 0; }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string certificate(const std::string& name) const { return path(name + ".pem"); }
  std::string key(const std::string& name) const { return path(name + ".key"); }
  // One that vouches for itself, for such names as "DNS:localhost,IP:127.0.0.1".
  void make(const std::string& name, const std::string& names) const {
    run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" + name +
        " -addext subjectAltName=" + names + " -keyout " + key(name) + " -out " +
        certificate(name));
  }
  void run(const std::string& arguments) const {
    const std::string command = "openssl " + arguments + " >/dev/null 2>&1";
    if (std::system(command.c_str()) != 0) std::abort();
  }

 private:
  std::string folder_;
};

}  // namespace kvcache::fake
