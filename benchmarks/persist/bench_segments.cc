// The segment log of a disk tier beside the files of the same system: records of 1 to 16 MiB
// written and read, synchronised in groups and one by one, and a tier of 100,000 records opened.
// Prints GB/s (10^9 bytes), the best of some rounds, and ratios of the same run.
//
//   bench_segments DIR [rounds]      DIR is made, filled with less than 1 GiB and removed
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "persist/segment_log.h"

namespace {

using namespace kvcache;
using namespace kvcache::persist;
namespace fs = std::filesystem;

int rounds = 5;
std::string root;

void expect(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "bench_segments: %s failed\n", what.c_str());
  std::exit(1);
}

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double best(const std::function<void()>& prepare, const std::function<void()>& work) {
  double least = 1e9;
  for (int round = 0; round < rounds; ++round) {
    prepare();
    least = std::min(least, seconds(work));
  }
  return least;
}

// Memory that begins at a page, as the pages of a cache do: on some processors copies to addresses
// a little behind the source's, modulo a page, are three times as slow.
std::unique_ptr<std::byte[], decltype(&std::free)> aligned(std::size_t bytes) {
  return {static_cast<std::byte*>(std::aligned_alloc(4096, bytes)), &std::free};
}

std::vector<std::byte> noise(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(data.data() + i, &word, 8);
  }
  return data;
}

std::unique_ptr<SegmentLog> open_log(Durability durability, std::uint64_t group_bytes = 64 << 20) {
  LogOptions options;
  options.max_bytes = std::uint64_t{64} << 30;
  options.durability = durability;
  options.group_bytes = group_bytes;
  auto log = SegmentLog::open(System::real(), root + "/tier", options);
  expect(log.is_ok(), log.status().message());
  return std::move(log).value();
}

Digest key_of(std::uint64_t number) {
  Digest key{};
  std::memcpy(key.data(), &number, sizeof(number));
  return key;
}

void append(SegmentLog& log, std::uint64_t number, const void* data, std::size_t bytes) {
  RecordHeader record;
  record.key = key_of(number);
  const iovec piece{const_cast<void*>(data), bytes};
  expect(log.append(record, {}, {&piece, 1}).is_ok(), "append");
}

void write_plain(const std::string& path, const std::byte* data, std::size_t bytes, bool safe) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  expect(file >= 0, "open");
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t put = write(file, data + at, bytes - at);
    expect(put > 0, "write");
    at += static_cast<std::size_t>(put);
  }
  if (safe) expect(fsync(file) == 0, "fsync");
  close(file);
}

void read_plain(const std::string& path, std::byte* data, std::size_t bytes) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  expect(file >= 0, "open");
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t got = read(file, data + at, bytes - at);
    expect(got > 0, "read");
    at += static_cast<std::size_t>(got);
  }
  close(file);
}

void clear() {
  fs::remove_all(root);
  fs::create_directory(root);
}

void bench_size(std::size_t bytes) {
  const std::size_t count = (std::size_t{128} << 20) / bytes;
  const std::vector<std::byte> data = noise(bytes);
  const auto back = aligned(bytes);
  const double total = static_cast<double>(count * bytes) / 1e9;
  const auto file = [](std::size_t i) { return root + "/plain-" + std::to_string(i); };
  const double plain_write = best(clear, [&] {
    for (std::size_t i = 0; i < count; ++i) write_plain(file(i), data.data(), bytes, false);
  });
  const double plain_read = best([] {},
                                 [&] {
                                   for (std::size_t i = 0; i < count; ++i)
                                     read_plain(file(i), back.get(), bytes);
                                 });
  const double log_write = best(clear, [&] {
    const auto log = open_log(Durability::kNone);
    for (std::size_t i = 0; i < count; ++i) append(*log, i, data.data(), bytes);
  });
  const auto log = open_log(Durability::kNone);
  const auto read_some = [&](std::size_t first, std::size_t step, std::byte* to) {
    for (std::size_t i = first; i < count; i += step) {
      const auto found = log->find(RecordKind::kRun, key_of(i));
      const iovec piece{to, bytes};
      expect(found && found->read({}, {&piece, 1}).is_ok(), "read");
    }
  };
  const double log_read = best([] {}, [&] { read_some(0, 1, back.get()); });
  const auto other = aligned(bytes);
  const double log_read_2 = best([] {},
                                 [&] {
                                   std::thread second([&] { read_some(1, 2, other.get()); });
                                   read_some(0, 2, back.get());
                                   second.join();
                                 });
  std::printf("%3zu MiB | %5.2f | %5.2f | %4.2f | %5.2f | %5.2f | %4.2f | %5.2f | %4.2f\n",
              bytes >> 20, total / plain_write, total / log_write, plain_write / log_write,
              total / plain_read, total / log_read, plain_read / log_read, total / log_read_2,
              plain_read / log_read_2);
}

void bench_sync() {
  constexpr std::size_t kBytes = 1 << 20;
  constexpr std::size_t kCount = 64;
  const std::vector<std::byte> data = noise(kBytes);
  const double total = static_cast<double>(kCount * kBytes) / 1e9;
  const double plain = best(clear, [&] {
    for (std::size_t i = 0; i < kCount; ++i) {
      write_plain(root + "/plain-" + std::to_string(i), data.data(), kBytes, true);
    }
  });
  const auto with = [&](Durability durability) {
    return best(clear, [&] {
      const auto log = open_log(durability);
      for (std::size_t i = 0; i < kCount; ++i) append(*log, i, data.data(), kBytes);
      expect(log->sync().is_ok(), "sync");
    });
  };
  const double record = with(Durability::kRecord);
  const double group = with(Durability::kGroup);
  std::printf(
      "\n64 records of 1 MiB, safe at the end: a file each with fsync %.2f GB/s, "
      "record %.2f (%.1fx), group %.2f (%.1fx)\n",
      total / plain, total / record, plain / record, total / group, plain / group);
}

void bench_open() {
  clear();
  constexpr std::uint64_t kRecords = 100'000;
  {
    const auto log = open_log(Durability::kNone);
    const std::byte byte{1};
    for (std::uint64_t i = 0; i < kRecords; ++i) append(*log, i, &byte, 1);
    expect(log->close().is_ok(), "close");
  }
  std::unique_ptr<SegmentLog> log;
  const double open = best([&] { log.reset(); }, [&] { log = open_log(Durability::kNone); });
  expect(log->stats().records == kRecords, "open");
  std::printf("open of 100,000 records in %llu segments: %.0f ms\n",
              static_cast<unsigned long long>(log->stats().segments), open * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  expect(argc > 1, "bench_segments DIR [rounds]: a directory to make");
  root = argv[1];
  if (argc > 2) rounds = std::max(1, std::atoi(argv[2]));
  expect(fs::create_directory(root), "making " + root);
  std::printf("GB/s    | file w | log w | ratio | file r | log r | ratio | 2 threads | ratio\n");
  for (const std::size_t mib : {1, 4, 16}) bench_size(mib << 20);
  bench_sync();
  bench_open();
  fs::remove_all(root);
  return 0;
}
