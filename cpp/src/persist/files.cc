#include "persist/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/crc32c.h"

namespace kvcache::persist {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

Result<File> open_at(const File& directory, const std::string& name, int flags, bool want_file) {
  const std::string path = directory.path() + '/' + name;
  // O_NONBLOCK: a pipe in the place of a file must not make the caller wait.
  const int descriptor = openat(directory.descriptor(), name.c_str(),
                                flags | O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) {
    const int error = errno;
    if (error == ENOENT) return Status::corruption(path, ": missing");
    if (error == ELOOP) return Status::corruption(path, ": a symbolic link is not followed");
    if (error == ENOTDIR) return Status::corruption(path, ": no directory");
    if (error == ENXIO || error == ENAMETOOLONG) return Status::corruption(path, ": no file");
    return os_error("open", path, error);
  }
  File file(descriptor, path);
  struct stat info = {};
  if (fstat(descriptor, &info) != 0) return os_error("stat", path, errno);
  if (want_file && !S_ISREG(info.st_mode)) return Status::corruption(path, ": no regular file");
  return file;
}

}  // namespace

Status os_error(std::string_view action, const std::string& path, int error) {
  return Status::io_error("cannot ", action, " ", path, ": ",
                          std::system_category().message(error));
}

// ---- File -------------------------------------------------------------------------------------

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

void File::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

Result<std::uint64_t> File::size() const {
  struct stat info = {};
  if (fstat(descriptor_, &info) != 0) return os_error("stat", path_, errno);
  return static_cast<std::uint64_t>(info.st_size);
}

Status File::read_at(std::uint64_t offset, void* data, std::size_t bytes) const {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error("read", path_, errno);
    if (got == 0) return Status::corruption(path_, ": cut off at byte ", offset);
    to += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return Status::ok();
}

Status File::write(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(descriptor_, from, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return os_error("write", path_, errno);
    from += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return Status::ok();
}

Status File::sync() const {
  return fsync(descriptor_) == 0 ? Status::ok() : os_error("synchronise", path_, errno);
}

// ---- Opening and creating ---------------------------------------------------------------------

Result<File> open_directory(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY);
  if (descriptor >= 0) return File(descriptor, path);
  if (errno == ENOTDIR) return Status::corruption(path, ": no directory");
  return os_error("open", path, errno);
}

Result<File> open_directory_at(const File& directory, const std::string& name) {
  return open_at(directory, name, O_DIRECTORY, false);
}

Result<File> open_file_at(const File& directory, const std::string& name) {
  return open_at(directory, name, 0, true);
}

Result<File> create_file(const std::string& path) {
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor < 0) return os_error("create", path, errno);
  return File(descriptor, path);
}

Status create_directory(const std::string& path) {
  return mkdir(path.c_str(), 0777) == 0 ? Status::ok() : os_error("create", path, errno);
}

Status sync_directory(const std::string& path) {
  auto directory = open_directory(path);
  return directory ? directory->sync() : directory.status();
}

Result<std::string> read_small_file(const File& directory, const std::string& name,
                                    std::uint64_t max_bytes) {
  auto file = open_file_at(directory, name);
  if (!file) return file.status();
  const auto size = file->size();
  if (!size) return size.status();
  if (*size > max_bytes) {
    return Status::corruption(file->path(), ": ", *size, " bytes, at most ", max_bytes,
                              " are accepted");
  }
  std::string text(*size, '\0');
  if (Status status = file->read_at(0, text.data(), text.size()); !status) return status;
  return text;
}

// ---- Checksummed streams ----------------------------------------------------------------------

ChecksumWriter::ChecksumWriter(File file) : file_(std::move(file)), buffer_(kBufferBytes) {}

Status ChecksumWriter::append(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  bytes_ += bytes;
  while (bytes > 0) {
    const std::size_t count = std::min(bytes, buffer_.size() - used_);
    std::memcpy(buffer_.data() + used_, from, count);
    used_ += count;
    from += count;
    bytes -= count;
    if (used_ < buffer_.size()) continue;
    if (Status status = flush(); !status) return status;
  }
  return Status::ok();
}

Status ChecksumWriter::flush() {
  crc_ = crc32c(crc_, buffer_.data(), used_);
  return file_.write(buffer_.data(), std::exchange(used_, 0));
}

Status ChecksumWriter::finish() {
  if (Status status = flush(); !status) return status;
  return file_.sync();
}

ChecksumReader::ChecksumReader(const File& file, std::uint64_t bytes)
    : file_(file),
      total_(bytes),
      buffer_(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kBufferBytes))) {}

Status ChecksumReader::fill() {
  if (next_ == total_) return Status::corruption(file_.path(), ": cut off at byte ", next_);
  from_ = 0;
  until_ = static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), total_ - next_));
  if (Status status = file_.read_at(next_, buffer_.data(), until_); !status) return status;
  crc_ = crc32c(crc_, buffer_.data(), until_);
  next_ += until_;
  return Status::ok();
}

Status ChecksumReader::read(void* data, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    if (from_ == until_) {
      if (Status status = fill(); !status) return status;
    }
    const std::size_t count = std::min(bytes, until_ - from_);
    std::memcpy(to, buffer_.data() + from_, count);
    from_ += count;
    to += count;
    bytes -= count;
  }
  return Status::ok();
}

Status ChecksumReader::skip(std::uint64_t bytes) {
  while (bytes > 0) {
    if (from_ == until_) {
      if (Status status = fill(); !status) return status;
    }
    const auto count = std::min<std::uint64_t>(bytes, until_ - from_);
    from_ += static_cast<std::size_t>(count);
    bytes -= count;
  }
  return Status::ok();
}

Status ChecksumReader::skip_rest() { return skip(total_ - next_ + (until_ - from_)); }

}  // namespace kvcache::persist
