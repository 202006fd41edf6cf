#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>

#include "persist/os_files.h"

namespace kvcache::persist::os {
namespace {

int unsupported() {
  errno = EOPNOTSUPP;
  return -1;
}

#if defined(__APPLE__)
const timespec& changed(const struct stat& info) { return info.st_mtimespec; }

// It names an operation that a file system lacks by another number.
int as_unsupported(int answer) {
  if (answer == 0) return 0;
  return errno == ENOTSUP || errno == EINVAL || errno == ENOTTY ? unsupported() : -1;
}

int flush(int file) {
  // fsync() of macOS leaves the data in the disk's own cache. Not every file system has this one.
  const int flushed = as_unsupported(fcntl(file, F_FULLFSYNC) == -1 ? -1 : 0);
  return flushed != 0 && errno == EOPNOTSUPP ? fsync(file) : flushed;
}
#else
const timespec& changed(const struct stat& info) { return info.st_mtim; }
int flush(int file) { return fsync(file); }
#endif

}  // namespace

int sync_data(int file) { return flush(file); }
int sync(int file) { return flush(file); }

int punch(int file, std::uint64_t offset, std::uint64_t bytes) {
#if defined(F_PUNCHHOLE)
  fpunchhole_t hole = {};  // whole blocks of the file system only
  hole.fp_offset = static_cast<off_t>(offset);
  hole.fp_length = static_cast<off_t>(bytes);
  return as_unsupported(fcntl(file, F_PUNCHHOLE, &hole) == -1 ? -1 : 0);
#else
  return unsupported();
#endif
}

int rename_new(const char* from, const char* to) {
#if defined(RENAME_EXCL)
  return as_unsupported(renamex_np(from, to, RENAME_EXCL));
#else
  return unsupported();
#endif
}

std::uint64_t changed_ns(const struct stat& info) {
  return static_cast<std::uint64_t>(changed(info).tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(changed(info).tv_nsec);
}

}  // namespace kvcache::persist::os
