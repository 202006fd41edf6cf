// What the operating system offers for files beyond POSIX, or offers under a name of its own.
// os_files_linux.cc is for Linux, os_files_posix.cc for every other system, macOS among them; the
// build chooses one (KVCACHE_PORTABLE). The calls answer 0, or -1 with the reason in errno.
// Thread safety: thread-safe.
#pragma once

#include <sys/stat.h>

#include <cstdint>

namespace kvcache::persist::os {

// Onto the disk, past its cache: the data and what is needed to find it again; or all of the file.
int sync_data(int file);
int sync(int file);
// Makes bytes zero and gives their blocks back. EOPNOTSUPP: not here, or not at these bytes.
int punch(int file, std::uint64_t offset, std::uint64_t bytes);
// Moves a file or directory to a path that must be free; EEXIST: it is not. EOPNOTSUPP: the system
// or the file system cannot promise that.
int rename_new(const char* from, const char* to);

std::uint64_t changed_ns(const struct stat& info);

}  // namespace kvcache::persist::os
