// Files and directories as the rest of persist sees them: opened without following links, read and
// written whole, with the path in every error.
// Thread safety: thread-compatible.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::persist {

// kIoError for errno `error`.
Status os_error(std::string_view action, const std::string& path, int error);

// Gives back the lock of an open file. Closing it would not: a child of fork() has it open as well.
void unlock(int descriptor);

// An open descriptor and the path it came from.
class File {
 public:
  File() = default;
  File(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File() { close(); }

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  void close();

  Result<std::uint64_t> size() const;
  // kCorruption: the file ends before.
  Status read_at(std::uint64_t offset, void* data, std::size_t bytes) const;
  Status write(const void* data, std::size_t bytes);
  // Reads or writes pieces of memory one behind another; they are used up. At `offset`, or where
  // writing has come to.
  Status read_pieces_at(std::uint64_t offset, std::span<iovec> pieces) const;
  Status write_pieces(std::span<iovec> pieces);
  Status sync() const;

 private:
  int descriptor_ = -1;
  std::string path_;
};

// A directory the caller names; a link to one is fine. kCorruption: it is no directory.
Result<File> open_directory(const std::string& path);
// Entries of a directory. A link, or an entry of another type, is kCorruption, as is a missing one:
// the directory is not what it claims to be.
Result<File> open_directory_at(const File& directory, const std::string& name);
Result<File> open_file_at(const File& directory, const std::string& name);

// New, empty, for writing. kIoError: it exists.
Result<File> create_file(const std::string& path);
Status create_directory(const std::string& path);
Status sync_path(const std::string& path);  // a file or a directory

// A whole file of at most `max_bytes`. kCorruption: it is larger.
Result<std::string> read_small_file(const File& directory, const std::string& name,
                                    std::uint64_t max_bytes);

// Pieces of memory that are moved in one call.
class Pieces {
 public:
  // So much that its checksum finds it in the processor's cache.
  static constexpr std::size_t kEnough = 256 << 10;

  bool is_full() const { return count_ == pieces_.size() || bytes_ >= kEnough; }
  bool is_empty() const { return count_ == 0; }
  std::uint64_t bytes() const { return bytes_; }
  void add(void* data, std::size_t bytes);
  std::uint32_t checksum(std::uint32_t crc) const;  // of them, behind what `crc` is of
  // For one call, which uses them up.
  std::span<iovec> take();

 private:
  std::array<iovec, 128> pieces_;
  std::size_t count_ = 0;
  std::uint64_t bytes_ = 0;
};

// Writes a file, and checksums it. What is appended stays where it is until finish().
class ChecksumWriter {
 public:
  explicit ChecksumWriter(File file) : file_(std::move(file)) {}
  Status append(const void* data, std::size_t bytes);
  Status finish() { return flush(); }
  std::uint64_t bytes() const { return bytes_; }
  std::uint32_t crc() const { return crc_; }

 private:
  Status flush();

  File file_;
  Pieces pieces_;
  std::uint64_t bytes_ = 0;
  std::uint32_t crc_ = 0;
};

// Reads bytes [begin, end) of a file one behind another, and checksums them.
class ChecksumReader {
 public:
  ChecksumReader(const File& file, std::uint64_t begin, std::uint64_t end)
      : file_(file), end_(end), next_(begin) {}
  Status read(void* data, std::size_t bytes);
  // The same, but `data` may be filled only when another call returns.
  Status read_later(void* data, std::size_t bytes);
  Status skip(std::uint64_t bytes);  // reads and forgets
  Status skip_rest();                // all that is left
  std::uint32_t crc() const { return crc_; }

 private:
  Status flush();

  const File& file_;
  const std::uint64_t end_;
  std::uint64_t next_;  // file offset of the pieces
  Pieces pieces_;
  std::vector<std::byte> skipped_;
  std::uint32_t crc_ = 0;
};

}  // namespace kvcache::persist
