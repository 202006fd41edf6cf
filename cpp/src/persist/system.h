// The calls of the operating system that a segment log makes, behind one class, so that a test can
// make any of them fail, fall short or never reach the disk.
// Thread safety: thread-safe.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvcache::persist {

// Facts of an open file.
struct FileFacts {
  std::uint64_t bytes = 0;
  std::uint64_t changed_ns = 0;  // when it was last modified
  bool is_regular = false;
  bool is_directory = false;
};

// Every call answers as the POSIX call of its name does, but with -errno for an error.
class System {
 public:
  virtual ~System() = default;
  static System& real();

  virtual int open_at(int directory, const char* name, int flags, unsigned mode);
  virtual int make_directory(const char* path, unsigned mode);
  virtual int facts(int file, FileFacts& facts);
  virtual int list(int directory, std::vector<std::string>& names);
  virtual std::int64_t read_at(int file, const iovec* pieces, int count, std::uint64_t offset);
  virtual std::int64_t write_at(int file, const iovec* pieces, int count, std::uint64_t offset);
  virtual int sync(int file);  // data, and what is needed to find it again
  // Makes bytes zero, and gives back their blocks where the file system can. May do a part and
  // fail.
  virtual int clear(int file, std::uint64_t offset, std::uint64_t bytes);
  virtual int truncate(int file, std::uint64_t bytes);
  virtual int rename_at(int directory, const char* from, const char* to);
  virtual int remove_at(int directory, const char* name);
  // Bytes that a file of this directory may still take.
  virtual std::int64_t free_bytes(int directory);
  virtual int lock(int file);  // exclusive, at once; -EWOULDBLOCK: somebody else has it
};

}  // namespace kvcache::persist
