// Records whose every byte follows from their number, directories for them, and a system whose
// calls fail, fall short, or lose what was not synchronised. For tests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "persist/segment_log.h"
#include "persist/system.h"

namespace kvcache::persist::files {

namespace fs = std::filesystem;

class Directory {
 public:
  Directory() {
    // In memory where there is such a place: these tests synchronise thousands of times.
    const fs::path memory = "/dev/shm";
    const fs::path parent = access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path();
    std::string name = (parent / "kvcache-tier-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  // A tier's path in it, which is not there yet.
  std::string tier(const std::string& name = "tier") const { return path_ / name; }

 private:
  fs::path path_;
};

using Bytes = std::vector<char>;

inline Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline void put_byte(const std::string& path, std::size_t at, char byte) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

inline std::vector<std::string> segment_files(const std::string& path) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (segment_number(entry.path().filename().string())) found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

inline Digest digest_of(std::uint64_t number) {
  Sha256 sha;
  sha.update(&number, sizeof(number));
  return sha.finish();
}

// The record of a number: a chain of runs, every third of them followed by a boundary.
struct Sample {
  explicit Sample(std::uint64_t number, std::uint64_t bytes = 0) {
    header.kind = number % 3 == 2 ? RecordKind::kBoundary : RecordKind::kRun;
    header.key = digest_of(number);
    header.parent = digest_of(number == 0 ? 0 : number - 1);
    header.origin = digest_of(1000);
    header.first = number * 4;
    for (std::uint64_t i = 0; i < number % 5; ++i) {
      tokens.push_back(static_cast<std::int32_t>(number * 100 + i));
    }
    payload.resize(bytes != 0 ? bytes : 50 + number * 37 % 200);
    owner = "owner " + std::to_string(number % 4);
    for (std::size_t i = 0; i < payload.size(); ++i) {
      payload[i] = static_cast<std::byte>(number * 7 + i * 13 + 1);
    }
  }
  iovec piece() { return {payload.data(), payload.size()}; }
  Status append_to(SegmentLog& log) {
    const iovec bytes = piece();
    return log.append(header, tokens, {&bytes, 1}, owner);
  }

  RecordHeader header;
  std::vector<std::int32_t> tokens;
  std::vector<std::byte> payload;
  std::string owner;
};

enum class Outcome { kAbsent, kDamaged, kWrong, kEqual };

// What a log gives for the record of a number.
inline Outcome look_up(const SegmentLog& log, std::uint64_t number, std::uint64_t bytes = 0) {
  const Sample expected(number, bytes);
  const auto found = log.find(expected.header.kind, expected.header.key);
  if (!found) return Outcome::kAbsent;
  if (found->header.tokens > 1000 || found->header.payload_bytes > 1 << 24) return Outcome::kWrong;
  std::vector<std::int32_t> tokens(found->header.tokens);
  std::vector<std::byte> payload(found->header.payload_bytes);
  const iovec piece{payload.data(), payload.size()};
  if (!found->read(tokens, {&piece, 1})) return Outcome::kDamaged;
  const bool equal = tokens == expected.tokens && payload == expected.payload &&
                     found->header.parent == expected.header.parent &&
                     found->header.first == expected.header.first;
  return equal ? Outcome::kEqual : Outcome::kWrong;
}

constexpr std::uint32_t kSmallAlignment = 64;

inline LogOptions small_options(Durability durability = Durability::kGroup) {
  LogOptions options;
  options.max_bytes = 64 << 10;
  options.segment_bytes = 4 << 10;
  options.alignment = kSmallAlignment;
  options.durability = durability;
  options.group_bytes = 1 << 10;
  return options;
}

// Fails one call that may change or read something, or all from one on; counts them.
class FaultySystem : public System {
 public:
  std::uint64_t calls = 0;
  std::uint64_t fail_at = UINT64_MAX;
  bool fail_after = false;  // every later call as well
  int error = EIO;
  std::size_t most_bytes = SIZE_MAX;  // that one read or write moves

  int open_at(int directory, const char* name, int flags, unsigned mode) override {
    return fails() ? -error : System::open_at(directory, name, flags, mode);
  }
  int facts(int file, FileFacts& found) override {
    return fails() ? -error : System::facts(file, found);
  }
  int list(int directory, std::vector<std::string>& names) override {
    return fails() ? -error : System::list(directory, names);
  }
  std::int64_t read_at(int file, const iovec* pieces, int count, std::uint64_t offset) override {
    if (fails()) return -error;
    if (most_bytes == SIZE_MAX) return System::read_at(file, pieces, count, offset);
    const iovec piece{pieces->iov_base, std::min(pieces->iov_len, most_bytes)};
    return System::read_at(file, &piece, 1, offset);
  }
  std::int64_t write_at(int file, const iovec* pieces, int count, std::uint64_t offset) override {
    if (fails()) {
      // Part of it may have been written.
      const iovec half{pieces->iov_base, pieces->iov_len / 2};
      System::write_at(file, &half, 1, offset);
      return -error;
    }
    if (most_bytes == SIZE_MAX) return System::write_at(file, pieces, count, offset);
    const iovec piece{pieces->iov_base, std::min(pieces->iov_len, most_bytes)};
    return System::write_at(file, &piece, 1, offset);
  }
  int sync(int file) override { return fails() ? -error : System::sync(file); }
  int clear(int file, std::uint64_t offset, std::uint64_t bytes) override {
    return fails() ? -error : System::clear(file, offset, bytes);
  }
  int truncate(int file, std::uint64_t bytes) override {
    return fails() ? -error : System::truncate(file, bytes);
  }
  int rename_at(int directory, const char* from, const char* to) override {
    return fails() ? -error : System::rename_at(directory, from, to);
  }
  int remove_at(int directory, const char* name) override {
    return fails() ? -error : System::remove_at(directory, name);
  }
  int lock(int file) override { return fails() ? -error : System::lock(file); }

 private:
  bool fails() {
    const std::uint64_t call = calls++;
    return call == fail_at || (fail_after && call > fail_at);
  }
};

// Remembers what each file of a directory held when it was last synchronised, and which names the
// directory had then. After `cut_at` calls nothing changes any more, as if the process were gone.
class PowerCutSystem : public System {
 public:
  enum class Shape { kLost, kZeroed, kHalf, kOutOfOrder };

  std::uint64_t calls = 0;
  std::uint64_t cut_at = UINT64_MAX;

  int open_at(int directory, const char* name, int flags, unsigned mode) override {
    if ((flags & O_CREAT) != 0 && is_cut()) return -EIO;
    return System::open_at(directory, name, flags, mode);
  }
  std::int64_t write_at(int file, const iovec* pieces, int count, std::uint64_t offset) override {
    return is_cut() ? -EIO : System::write_at(file, pieces, count, offset);
  }
  int clear(int file, std::uint64_t offset, std::uint64_t bytes) override {
    return is_cut() ? -EIO : System::clear(file, offset, bytes);
  }
  int truncate(int file, std::uint64_t bytes) override {
    return is_cut() ? -EIO : System::truncate(file, bytes);
  }
  int rename_at(int directory, const char* from, const char* to) override {
    return is_cut() ? -EIO : System::rename_at(directory, from, to);
  }
  int remove_at(int directory, const char* name) override {
    return is_cut() ? -EIO : System::remove_at(directory, name);
  }
  int sync(int file) override {
    if (is_cut()) return -EIO;
    const fs::path path = fs::read_symlink("/proc/self/fd/" + std::to_string(file));
    if (fs::is_directory(path)) {
      names_.clear();
      for (const auto& entry : fs::directory_iterator(path)) {
        names_.push_back(entry.path().filename().string());
      }
    } else {
      durable_[path.filename().string()] = read_file(path.string());
    }
    return System::sync(file);
  }

  // Makes of the directory what a machine that lost its power might find.
  void cut(const std::string& path, Shape shape) const {
    for (const auto& entry : fs::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (name == kTierLock) continue;
      const std::string file = entry.path().string();
      const Bytes now = read_file(file);
      const auto kept = durable_.find(name == kTierMarker ? "TIER.new" : name);
      Bytes then = kept == durable_.end() ? Bytes() : kept->second;
      const bool named = std::find(names_.begin(), names_.end(), name) != names_.end();
      if (!named && shape == Shape::kLost) {
        fs::remove(file);
        continue;
      }
      if (shape == Shape::kZeroed) then.resize(now.size());
      if (shape == Shape::kHalf && now.size() > then.size()) {
        then.assign(now.begin(), now.begin() + static_cast<std::ptrdiff_t>(
                                                   then.size() + (now.size() - then.size()) / 2));
      }
      if (shape == Shape::kOutOfOrder) {  // every other sector of what came later
        const std::size_t known = then.size();
        then.resize(now.size());
        for (std::size_t at = known; at < now.size(); ++at) {
          if (at / 512 % 2 == 0) then[at] = now[at];
        }
      }
      write_file(file, then);
    }
  }

 private:
  bool is_cut() { return calls++ >= cut_at; }

  std::map<std::string, Bytes> durable_;
  std::vector<std::string> names_;
};

}  // namespace kvcache::persist::files
