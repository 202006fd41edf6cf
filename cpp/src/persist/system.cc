#include "persist/system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "persist/os_files.h"

namespace kvcache::persist {
namespace {

template <typename Call>
auto retried(const Call& call) {
  auto answer = call();
  while (answer < 0 && errno == EINTR) answer = call();
  return answer < 0 ? static_cast<decltype(answer)>(-errno) : answer;
}

}  // namespace

System& System::real() {
  static System system;
  return system;
}

int System::open_at(int directory, const char* name, int flags, unsigned mode) {
  return retried([&] { return openat(directory, name, flags | O_CLOEXEC, mode); });
}

int System::make_directory(const char* path, unsigned mode) {
  return retried([&] { return mkdir(path, mode); });
}

int System::facts(int file, FileFacts& facts) {
  struct stat info = {};
  if (fstat(file, &info) != 0) return -errno;
  facts.bytes = static_cast<std::uint64_t>(info.st_size);
  facts.changed_ns = os::changed_ns(info);
  facts.is_regular = S_ISREG(info.st_mode);
  facts.is_directory = S_ISDIR(info.st_mode);
  return 0;
}

int System::list(int directory, std::vector<std::string>& names) {
  const int own = open_at(directory, ".", O_RDONLY | O_DIRECTORY, 0);
  if (own < 0) return own;
  DIR* stream = fdopendir(own);
  if (stream == nullptr) {
    const int error = errno;
    close(own);
    return -error;
  }
  names.clear();
  errno = 0;
  while (const dirent* entry = readdir(stream)) names.emplace_back(entry->d_name);
  const int error = errno;
  closedir(stream);
  return -error;
}

std::int64_t System::read_at(int file, const iovec* pieces, int count, std::uint64_t offset) {
  return retried([&] { return preadv(file, pieces, count, static_cast<off_t>(offset)); });
}

std::int64_t System::write_at(int file, const iovec* pieces, int count, std::uint64_t offset) {
  return retried([&] { return pwritev(file, pieces, count, static_cast<off_t>(offset)); });
}

int System::sync(int file) {
  return retried([&] { return os::sync_data(file); });
}

int System::clear(int file, std::uint64_t offset, std::uint64_t bytes) {
  const int punched = retried([&] { return os::punch(file, offset, bytes); });
  if (punched != -EOPNOTSUPP) return punched;
  std::array<std::byte, 1 << 14> zeros{};
  while (bytes > 0) {
    const iovec piece{zeros.data(), std::min<std::uint64_t>(bytes, zeros.size())};
    const std::int64_t put = write_at(file, &piece, 1, offset);
    if (put <= 0) return put == 0 ? -EIO : static_cast<int>(put);
    offset += static_cast<std::uint64_t>(put);
    bytes -= static_cast<std::uint64_t>(put);
  }
  return 0;
}

int System::truncate(int file, std::uint64_t bytes) {
  return retried([&] { return ftruncate(file, static_cast<off_t>(bytes)); });
}

int System::rename_at(int directory, const char* from, const char* to) {
  return retried([&] { return renameat(directory, from, directory, to); });
}

int System::remove_at(int directory, const char* name) {
  return retried([&] { return unlinkat(directory, name, 0); });
}

std::int64_t System::free_bytes(int directory) {
  struct statvfs info = {};
  const int failed = retried([&] { return fstatvfs(directory, &info); });
  if (failed < 0) return failed;
  const std::uint64_t most = INT64_MAX / std::max<std::uint64_t>(1, info.f_frsize);
  return static_cast<std::int64_t>(std::min<std::uint64_t>(info.f_bavail, most) * info.f_frsize);
}

int System::lock(int file) {
  return retried([&] { return flock(file, LOCK_EX | LOCK_NB); });
}

}  // namespace kvcache::persist
