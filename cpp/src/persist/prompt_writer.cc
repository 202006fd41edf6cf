#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "persist/files.h"
#include "persist/generation.h"
#include "persist/manifest.h"
#include "persist/os_files.h"
#include "persist/prompt_cache.h"
#include "persist/safetensors.h"
#include "persist/shards.h"

namespace kvcache::persist {
namespace {

namespace fs = std::filesystem;

// A directory being filled. Removed with all it holds, unless it was moved into place.
class Staging {
 public:
  explicit Staging(const std::string& parent) {
    static std::atomic<std::uint64_t> counter{0};
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    path_ = parent + "/.kvcache-tmp-" + std::to_string(getpid()) + '-' +
            std::to_string(now.count()) + '-' + std::to_string(counter++);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    std::error_code ignored;  // what is left behind is hidden and named as temporary
    if (created_) fs::remove_all(path_, ignored);
  }

  Status create() {
    Status status = create_directory(path_);
    created_ = status.is_ok();
    return status;
  }
  void moved() { created_ = false; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool created_ = false;
};

struct Destination {
  std::string path;
  std::string parent;
  bool exists = false;
};

Result<Destination> check_destination(const std::string& path, bool replace) {
  Destination found;
  found.path = path;
  while (found.path.size() > 1 && found.path.back() == '/') found.path.pop_back();
  const std::size_t slash = found.path.rfind('/');
  const std::string name = slash == found.path.npos ? found.path : found.path.substr(slash + 1);
  if (name.empty() || name == "." || name == ".." || path.find('\0') != path.npos) {
    return Status::invalid_argument("save: '", path, "' does not name a directory to create");
  }
  found.parent = slash == found.path.npos ? "." : slash == 0 ? "/" : found.path.substr(0, slash);
  struct stat info = {};
  if (lstat(found.path.c_str(), &info) != 0) {
    if (errno == ENOENT) return found;
    return os_error("stat", found.path, errno);
  }
  found.exists = true;
  if (!replace) {
    return Status::invalid_argument("save: ", found.path, " exists; pass replace to overwrite it");
  }
  struct stat generations = {};
  const std::string inside = found.path + '/' + kGenerations;
  if (!S_ISDIR(info.st_mode) || lstat(inside.c_str(), &generations) != 0 ||
      !S_ISDIR(generations.st_mode)) {
    return Status::invalid_argument("save: ", found.path,
                                    " is no prompt cache and is not replaced");
  }
  return found;
}

Status write_text(const std::string& path, const std::string& text) {
  auto file = create_file(path);
  return file ? file->write(text.data(), text.size()) : file.status();
}

struct Prefix {
  const StatePlan& plan;
  std::span<const std::int32_t> tokens;
  const PrefixShape& shape;
  const PrefixBytes& bytes;
  bool durable = true;
};

// Files first: what a directory names is whole. All is written before anything is synchronised, so
// that most of it is one transaction of the file system.
Status sync_all(const Prefix& prefix, const std::vector<std::string>& paths) {
  if (!prefix.durable) return Status::ok();
  for (const std::string& path : paths) {
    if (Status status = sync_path(path); !status) return status;
  }
  return Status::ok();
}

Status rename_path(const std::string& from, const std::string& to) {
  return std::rename(from.c_str(), to.c_str()) == 0 ? Status::ok()
                                                    : os_error("rename", from, errno);
}

// Moves a directory to a path that must be free.
Status rename_new(const std::string& from, const std::string& to) {
  int failed = os::rename_new(from.c_str(), to.c_str());
  // A plain rename still refuses all but an empty directory.
  if (failed != 0 && errno == EOPNOTSUPP) failed = std::rename(from.c_str(), to.c_str());
  if (failed == 0) return Status::ok();
  const int error = errno;
  if (error == EEXIST || error == ENOTEMPTY || error == ENOTDIR) {
    return Status::invalid_argument("save: ", to, " exists; pass replace to overwrite it");
  }
  return os_error("rename", from, error);
}

Result<ShardEntry> write_shard(const std::string& directory, const ShardSpec& shard,
                               const Prefix& prefix) {
  auto file = create_file(directory + '/' + shard.file);
  if (!file) return file.status();
  ChecksumWriter writer(std::move(file).value());
  const std::string header = safetensors::header(shard);
  if (header.size() > safetensors::kMaxHeaderBytes) {
    return Status::unsupported(shard.file, ": ", shard.arrays.size(), " arrays are too many");
  }
  if (Status status = writer.append(header.data(), header.size()); !status) return status;
  for (const ArraySpec& array : shard.arrays) {
    Status status;
    if (array.source == ArraySpec::Source::kTokens) {
      status = writer.append(prefix.tokens.data(), prefix.tokens.size_bytes());
    } else {
      status = for_each_piece(
          prefix.plan, array, prefix.shape, prefix.bytes,
          [&](std::byte* piece, std::size_t bytes) { return writer.append(piece, bytes); });
    }
    if (!status) return status;
  }
  if (Status status = writer.finish(); !status) return status;
  return ShardEntry{shard.file, writer.bytes(), writer.crc()};
}

// Fills `directory` and returns the name it must get. Nothing is synchronised yet.
Result<std::string> write_generation(const std::string& directory, const std::string& space,
                                     const Prefix& prefix) {
  const auto shards = shard_specs(prefix.plan, prefix.shape);
  if (!shards) return shards.status();
  Manifest manifest;
  manifest.space = space;
  manifest.prefix_sha256 = prefix_sha256(prefix.tokens);
  manifest.shape = prefix.shape;
  for (const ShardSpec& shard : *shards) {
    auto entry = write_shard(directory, shard, prefix);
    if (!entry) return entry.status();
    manifest.shards.push_back(std::move(entry).value());
  }
  const std::string text = write_manifest(prefix.plan, manifest);
  if (text.size() > kMaxManifestBytes) {
    return Status::unsupported("save: a manifest of ", text.size(), " bytes would not be read");
  }
  if (Status status = write_text(directory + '/' + kManifest, text); !status) return status;
  return generation_name(text);
}

// The files of a generation, and itself.
std::vector<std::string> paths_of(const std::string& generation) {
  return {generation + '/' + kStateFile, generation + '/' + kManifest, generation};
}

Status publish_new(const Destination& destination, const std::string& space, const Prefix& prefix) {
  Staging root(destination.parent);
  if (Status status = root.create(); !status) return status;
  const std::string generations = root.path() + '/' + kGenerations;
  const std::string filling = generations + "/filling";
  if (Status status = create_directory(generations); !status) return status;
  if (Status status = create_directory(filling); !status) return status;
  const auto name = write_generation(filling, space, prefix);
  if (!name) return name.status();
  const std::string generation = generations + '/' + *name;
  if (Status status = rename_path(filling, generation); !status) return status;
  const std::string current = root.path() + '/' + kCurrent;
  if (Status status = write_text(current, *name + '\n'); !status) return status;
  std::vector<std::string> paths = paths_of(generation);
  paths.insert(paths.end(), {current, generations, root.path()});
  if (Status status = sync_all(prefix, paths); !status) return status;
  if (Status status = rename_new(root.path(), destination.path); !status) return status;
  root.moved();
  return sync_all(prefix, {destination.parent});
}

// Best effort: the new generation is in place whatever happens here.
void remove_other_generations(const std::string& generations, const std::string& keep) {
  std::error_code error;
  std::vector<fs::path> others;
  for (fs::directory_iterator at(generations, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name != keep && name.starts_with(kGenerationPrefix)) others.push_back(at->path());
  }
  for (const fs::path& other : others) fs::remove_all(other, error);
}

Status publish_replacement(const Destination& destination, const std::string& space,
                           const Prefix& prefix) {
  const std::string generations = destination.path + '/' + kGenerations;
  Staging filling(generations);
  if (Status status = filling.create(); !status) return status;
  const auto name = write_generation(filling.path(), space, prefix);
  if (!name) return name.status();
  Staging pointer(destination.path);
  if (Status status = pointer.create(); !status) return status;
  const std::string current = pointer.path() + '/' + kCurrent;
  if (Status status = write_text(current, *name + '\n'); !status) return status;
  std::vector<std::string> paths = paths_of(filling.path());
  paths.push_back(current);
  if (Status status = sync_all(prefix, paths); !status) return status;

  // Two replacers must not take each other's generation for the old one.
  auto root = open_directory(destination.path);
  if (!root) return root.status();
  while (flock(root->descriptor(), LOCK_EX) != 0) {
    if (errno != EINTR) return os_error("lock", destination.path, errno);
  }
  const std::shared_ptr<const File> lock(&*root,
                                         [](const File* file) { unlock(file->descriptor()); });
  const std::string published = generations + '/' + *name;
  if (Status status = rename_path(filling.path(), published); !status) return status;
  filling.moved();
  Status status = sync_all(prefix, {generations});
  if (status) status = rename_path(current, destination.path + '/' + kCurrent);
  if (!status) {
    std::error_code ignored;
    fs::remove_all(published, ignored);
    return status;
  }
  if (status = sync_all(prefix, {destination.path}); !status) return status;
  remove_other_generations(generations, *name);
  return Status::ok();
}

}  // namespace

Status write_prompt_cache(const std::string& path, const StatePlan& plan, const std::string& space,
                          std::span<const std::int32_t> tokens, const PrefixShape& shape,
                          const PrefixBytes& bytes, const SaveOptions& options) {
  if (tokens.size() > kMaxTokens) {
    return Status::unsupported("save: ", tokens.size(), " tokens, at most ", kMaxTokens);
  }
  const auto destination = check_destination(path, options.replace);
  if (!destination) return destination.status();
  const Prefix prefix{plan, tokens, shape, bytes, options.durable};
  return destination->exists ? publish_replacement(*destination, space, prefix)
                             : publish_new(*destination, space, prefix);
}

}  // namespace kvcache::persist
