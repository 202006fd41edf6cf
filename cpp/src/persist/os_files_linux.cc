#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "persist/os_files.h"

namespace kvcache::persist::os {
namespace {

constexpr unsigned kRenameNoReplace = 1;  // RENAME_NOREPLACE of renameat2(2)

// An older kernel, or a file system that lacks it, says so in one of three ways.
int as_unsupported(long answer) {
  if (answer != 0 && (errno == EINVAL || errno == ENOSYS)) errno = EOPNOTSUPP;
  return static_cast<int>(answer);
}

}  // namespace

int sync_data(int file) { return fdatasync(file); }
int sync(int file) { return fsync(file); }

int punch(int file, std::uint64_t offset, std::uint64_t bytes) {
  return as_unsupported(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                  static_cast<off_t>(offset), static_cast<off_t>(bytes)));
}

int rename_new(const char* from, const char* to) {
  return as_unsupported(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, kRenameNoReplace));
}

std::uint64_t changed_ns(const struct stat& info) {
  return static_cast<std::uint64_t>(info.st_mtim.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(info.st_mtim.tv_nsec);
}

}  // namespace kvcache::persist::os
