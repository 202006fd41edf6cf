// Records of a remote tier on a server that runs already, beside the same bytes moved by a bare
// client without records, checks or deadlines, and by two ends of a TCP connection that do nothing
// else. Prints GB/s (10^9 bytes), the best of some rounds.
//
//   bench_remote PORT [rounds [TLS_PORT CA_FILE]]      keys begin with "bench:" and are removed
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "remote/remote_store.h"

namespace {

using namespace kvcache;
using persist::RecordRead;

constexpr std::size_t kTotal = 64 << 20;
int rounds = 5;
std::uint16_t port = 0;

void expect(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "bench_remote: %s failed\n", what.c_str());
  std::exit(1);
}

double best(const std::function<void()>& prepare, const std::function<void()>& work) {
  double least = 1e9;
  for (int round = 0; round < rounds; ++round) {
    prepare();
    const auto start = std::chrono::steady_clock::now();
    work();
    const auto end = std::chrono::steady_clock::now();
    least = std::min(least, std::chrono::duration<double>(end - start).count());
  }
  return kTotal / least / 1e9;
}

std::vector<std::byte> noise() {
  std::vector<std::byte> data(kTotal);
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i + 8 <= data.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(data.data() + i, &word, 8);
  }
  return data;
}

int connect_to(std::uint16_t where) {
  const int file = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port = htons(where);
  expect(::connect(file, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0, "connect");
  const int on = 1;
  setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return file;
}

void send_all(int file, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(file, at, bytes, MSG_NOSIGNAL);
    expect(sent > 0, "send");
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
}

void receive_all(int file, void* data, std::size_t bytes) {
  expect(::recv(file, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes), "receive");
}

std::string get_of(const std::string& key) {
  return "*2\r\n$3\r\nGET\r\n$" + std::to_string(key.size()) + "\r\n" + key + "\r\n";
}

// What a client costs that does nothing but move values as large as a record.
class Bare {
 public:
  explicit Bare(std::size_t size) : size_(size), file_(connect_to(port)) {}
  ~Bare() { ::close(file_); }

  void set(const std::vector<std::byte>& data, bool batched) {
    for (std::size_t i = 0; i < kTotal / size_; ++i) {
      const std::string key = name(i);
      const std::string front = "*3\r\n$3\r\nSET\r\n$" + std::to_string(key.size()) + "\r\n" + key +
                                "\r\n$" + std::to_string(size_) + "\r\n";
      send_all(file_, front.data(), front.size());
      send_all(file_, data.data() + i * size_, size_);
      send_all(file_, "\r\n", 2);
      if (!batched) take_ok();
    }
    for (std::size_t i = 0; batched && i < kTotal / size_; ++i) take_ok();
  }

  void get(std::vector<std::byte>& data, bool batched) {
    std::string all;
    for (std::size_t i = 0; i < kTotal / size_; ++i) all += get_of(name(i));
    if (batched) send_all(file_, all.data(), all.size());
    for (std::size_t i = 0; i < kTotal / size_; ++i) {
      const std::string one = get_of(name(i));
      if (!batched) send_all(file_, one.data(), one.size());
      char front[32];
      receive_all(file_, front, 3 + std::to_string(size_).size());
      receive_all(file_, data.data() + i * size_, size_);
      receive_all(file_, front, 2);
    }
  }

  void remove() {
    for (std::size_t i = 0; i < kTotal / size_; ++i) {
      const std::string key = name(i);
      const std::string command =
          "*2\r\n$6\r\nUNLINK\r\n$" + std::to_string(key.size()) + "\r\n" + key + "\r\n";
      send_all(file_, command.data(), command.size());
      char answer[4];
      receive_all(file_, answer, sizeof(answer));
    }
  }

 private:
  std::string name(std::size_t i) const { return "bench:bare:" + std::to_string(i); }
  void take_ok() {
    char answer[5];
    receive_all(file_, answer, sizeof(answer));
    expect(answer[0] == '+', "SET");
  }

  const std::size_t size_;
  const int file_;
};

// Records of `size` bytes through the store.
class Records {
 public:
  Records(std::size_t size, std::uint16_t where, std::shared_ptr<const remote::TlsContext> tls)
      : size_(size), store_(options(where), remote::kPartBytes, std::move(tls)) {}

  void write(std::vector<std::byte>& data) {
    for (std::size_t i = 0; i < kTotal / size_; ++i) {
      const iovec piece{data.data() + i * size_, size_};
      expect(store_.append(header(i), tokens_, {&piece, 1}, "bench").is_ok(), "append");
    }
  }

  void read(std::vector<std::byte>& data, bool batched) {
    std::vector<persist::Digest> keys;
    for (std::size_t i = 0; i < kTotal / size_; ++i) keys.push_back(header(i).key);
    const auto located = store_.find_runs(keys);
    std::vector<RecordRead> reads;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      expect(located[i].has_value(), "find_runs");
      RecordRead read;
      read.record = &*located[i];
      read.tokens.resize(tokens_.size());
      read.payload = {{data.data() + i * size_, size_}};
      reads.push_back(std::move(read));
    }
    const std::size_t step = batched ? reads.size() : 1;
    for (std::size_t i = 0; i < reads.size(); i += step) {
      store_.read(std::span(reads).subspan(i, step));
    }
    for (const RecordRead& each : reads) expect(each.status.is_ok(), each.status.message());
  }

  void remove() {
    persist::TierErasure all;
    all.space = all.tenant = [](std::string_view) { return true; };
    expect(store_.erase(all).is_ok(), "erase");
  }

 private:
  static RemoteTierOptions options(std::uint16_t where) {
    RemoteTierOptions options;
    options.addresses = {{"127.0.0.1", where}};
    options.key_prefix = "bench:";
    options.deadline_ms = 60'000;
    return options;
  }
  static persist::RecordHeader header(std::size_t i) {
    persist::RecordHeader header;
    std::memcpy(header.key.data(), &i, sizeof(i));
    return header;
  }

  const std::size_t size_;
  const std::vector<std::int32_t> tokens_ = std::vector<std::int32_t>(256, 7);
  remote::RemoteStore store_;
};

// One end writes, the other reads, and nobody looks at the bytes.
double socket_limit(std::vector<std::byte>& data) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(name);
  expect(::bind(listener, reinterpret_cast<sockaddr*>(&name), bytes) == 0, "bind");
  expect(::listen(listener, 1) == 0, "listen");
  getsockname(listener, reinterpret_cast<sockaddr*>(&name), &bytes);
  const int near = connect_to(ntohs(name.sin_port));
  const int far = ::accept(listener, nullptr, nullptr);
  std::vector<std::byte> sink(kTotal);
  const double rate = best([] {},
                           [&] {
                             std::thread writer([&] { send_all(far, data.data(), kTotal); });
                             receive_all(near, sink.data(), kTotal);
                             writer.join();
                           });
  ::close(near);
  ::close(far);
  ::close(listener);
  return rate;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "bench_remote PORT [rounds [TLS_PORT CA_FILE]]\n");
    return 2;
  }
  port = static_cast<std::uint16_t>(std::atoi(argv[1]));
  if (argc > 2) rounds = std::max(1, std::atoi(argv[2]));
  std::shared_ptr<const remote::TlsContext> tls;
  const auto tls_port = static_cast<std::uint16_t>(argc > 4 ? std::atoi(argv[3]) : 0);
  if (tls_port > 0) {
    auto made = remote::TlsContext::create({true, argv[4], "", "", true});
    expect(made.is_ok(), made.status().message());
    tls = *made;
  }
  std::vector<std::byte> data = noise();
  std::vector<std::byte> back(kTotal);
  std::printf("socket %.2f\n", socket_limit(data));
  for (const std::size_t mebibytes : {1, 4, 16}) {
    const std::size_t size = mebibytes << 20;
    Bare bare(size);
    const auto nothing = [] {};
    const auto line = [&](const char* who, const char* what, double rate) {
      std::printf("%s %s %zu %.2f\n", who, what, mebibytes, rate);
    };
    line("bare", "put", best([&] { bare.remove(); }, [&] { bare.set(data, false); }));
    line("bare", "put-batched", best([&] { bare.remove(); }, [&] { bare.set(data, true); }));
    line("bare", "get", best(nothing, [&] { bare.get(back, false); }));
    line("bare", "get-batched", best(nothing, [&] { bare.get(back, true); }));
    bare.remove();
    const auto run = [&](const char* who, std::uint16_t where, const auto& secured) {
      Records records(size, where, secured);
      line(who, "put", best([&] { records.remove(); }, [&] { records.write(data); }));
      std::fill(back.begin(), back.end(), std::byte{});
      line(who, "get", best(nothing, [&] { records.read(back, false); }));
      line(who, "get-batched", best(nothing, [&] { records.read(back, true); }));
      expect(back == data, "the comparison of bytes");
      records.remove();
    };
    run("tier", port, std::shared_ptr<const remote::TlsContext>());
    if (tls) run("tls", tls_port, tls);
  }
  return 0;
}
