#include "persist/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/iovecs.h"
#include "persist/os_files.h"

namespace kvcache::persist {
namespace {

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
    if (error == ENXIO || error == EOPNOTSUPP || error == ENAMETOOLONG)
      return Status::corruption(path, ": no file");
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

void unlock(int descriptor) { ::flock(descriptor, LOCK_UN); }

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
  iovec piece{data, bytes};
  return read_pieces_at(offset, {&piece, 1});
}

Status File::write(const void* data, std::size_t bytes) {
  iovec piece{const_cast<void*>(data), bytes};
  return write_pieces({&piece, 1});
}

Status File::read_pieces_at(std::uint64_t offset, std::span<iovec> pieces) const {
  for (pieces = drop_front(pieces, 0); !pieces.empty();) {
    const ssize_t got = preadv(descriptor_, pieces.data(), static_cast<int>(pieces.size()),
                               static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error("read", path_, errno);
    if (got == 0) return Status::corruption(path_, ": cut off at byte ", offset);
    offset += static_cast<std::uint64_t>(got);
    pieces = drop_front(pieces, static_cast<std::size_t>(got));
  }
  return Status::ok();
}

Status File::write_pieces(std::span<iovec> pieces) {
  for (pieces = drop_front(pieces, 0); !pieces.empty();) {
    const ssize_t put = writev(descriptor_, pieces.data(), static_cast<int>(pieces.size()));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return os_error("write", path_, errno);
    pieces = drop_front(pieces, static_cast<std::size_t>(put));
  }
  return Status::ok();
}

Status File::sync() const {
  return os::sync(descriptor_) == 0 ? Status::ok() : os_error("synchronise", path_, errno);
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

Status sync_path(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return os_error("open", path, errno);
  return File(descriptor, path).sync();
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

void Pieces::add(void* data, std::size_t bytes) {
  pieces_[count_++] = {data, bytes};
  bytes_ += bytes;
}

std::uint32_t Pieces::checksum(std::uint32_t crc) const {
  return crc32c(crc, std::span(pieces_).first(count_));
}

std::span<iovec> Pieces::take() {
  bytes_ = 0;
  return std::span(pieces_).first(std::exchange(count_, 0));
}

Status ChecksumWriter::append(const void* data, std::size_t bytes) {
  auto* from = static_cast<std::byte*>(const_cast<void*>(data));  // it is only read
  bytes_ += bytes;
  while (bytes > 0) {
    const std::size_t count = std::min(bytes, Pieces::kEnough);
    pieces_.add(from, count);
    from += count;
    bytes -= count;
    if (!pieces_.is_full()) continue;
    if (Status status = flush(); !status) return status;
  }
  return Status::ok();
}

Status ChecksumWriter::flush() {
  crc_ = pieces_.checksum(crc_);
  return file_.write_pieces(pieces_.take());
}

Status ChecksumReader::read_later(void* data, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const std::size_t count = std::min(bytes, Pieces::kEnough);
    pieces_.add(to, count);
    to += count;
    bytes -= count;
    if (!pieces_.is_full()) continue;
    if (Status status = flush(); !status) return status;
  }
  return Status::ok();
}

Status ChecksumReader::flush() {
  const std::uint64_t bytes = pieces_.bytes();
  if (bytes > end_ - next_) {
    return Status::corruption(file_.path(), ": cut off at byte ", end_);
  }
  // Reading uses the pieces up.
  Pieces read = pieces_;
  if (Status status = file_.read_pieces_at(next_, pieces_.take()); !status) return status;
  crc_ = read.checksum(crc_);
  next_ += bytes;
  return Status::ok();
}

Status ChecksumReader::read(void* data, std::size_t bytes) {
  if (Status status = read_later(data, bytes); !status) return status;
  return flush();
}

Status ChecksumReader::skip(std::uint64_t bytes) {
  skipped_.resize(
      std::min<std::uint64_t>(std::max<std::uint64_t>(bytes, skipped_.size()), Pieces::kEnough));
  while (bytes > 0) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, skipped_.size()));
    if (Status status = read(skipped_.data(), count); !status) return status;
    bytes -= count;
  }
  return Status::ok();
}

Status ChecksumReader::skip_rest() {
  if (Status status = flush(); !status) return status;
  return skip(end_ - next_);
}

}  // namespace kvcache::persist
