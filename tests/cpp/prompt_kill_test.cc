// A process that is killed by SIGKILL while it replaces a prompt cache: one of the two whole ones
// is loaded afterwards, and it can be replaced again. KVCACHE_KILLS: how often.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "served.h"
#include "tier_files.h"

namespace kvcache {
namespace {

using namespace served;
using persist::files::Directory;

constexpr std::uint64_t kShort = 21;
constexpr std::uint64_t kLong = 60;

// Replaces the prompt cache by turns, the long one first; tells of each.
[[noreturn]] void replace_for_ever(const std::string& path, int told) {
  const auto cache = make_cache(kHybrid, {});
  serve(kHybrid, *cache, prompt(kLong));
  serve(kHybrid, *cache, prompt(kShort, 1));
  for (bool is_long = true;; is_long = !is_long) {
    const auto tokens = is_long ? prompt(kLong) : prompt(kShort, 1);
    if (!cache->save(path, tokens, {}, {.replace = true})) _exit(3);
    if (write(told, "1", 1) != 1) _exit(4);
  }
}

TEST(PromptCache, AKilledWriterLeavesAWholeOne) {
  const char* text = std::getenv("KVCACHE_KILLS");
  const int kills = text == nullptr ? 20 : std::atoi(text);
  const Directory directory;
  const std::string path = directory.tier("prompt");
  std::mt19937 random(11);
  std::uint64_t loaded[2] = {};
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) replace_for_ever(path, told[1]);
    close(told[1]);
    // By a disk however slow, some kills meet the long one and some the short one.
    for (int saves = 1 + kill_number % 2; saves > 0; --saves) {
      char byte = 0;
      ASSERT_EQ(read(told[0], &byte, 1), 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5'000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    close(told[0]);  // not before: a child that tells nobody ends by SIGPIPE
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself with " << WEXITSTATUS(status);
    const auto cache = make_cache(kHybrid, {});
    const auto tokens = cache->load(path, {});
    ASSERT_TRUE(tokens.is_ok()) << tokens.status().message();
    const bool is_long = *tokens == kLong;
    ASSERT_TRUE(is_long || *tokens == kShort) << *tokens;
    ++loaded[is_long];
    auto sequence = cache->open(is_long ? prompt(kLong) : prompt(kShort, 1), {});
    ASSERT_TRUE(sequence.is_ok());
    EXPECT_EQ(sequence->cached_tokens(), *tokens - 1);
    expect_right(kHybrid, *sequence, "after kill " + std::to_string(kill_number));
  }
  EXPECT_GT(loaded[0], 0U);
  EXPECT_GT(loaded[1], 0U);
}

// Children that are forked while it is replaced have the descriptor of its lock, and live on.
TEST(PromptCache, AChildDoesNotHoldTheLockOfAReplacement) {
  const Directory directory;
  const std::string path = directory.tier("prompt");
  const auto cache = make_cache(kFull, {});
  serve(kFull, *cache, prompt(kShort));
  ASSERT_TRUE(cache->save(path, prompt(kShort), {}, {}).is_ok());
  std::atomic<bool> done = false;
  std::atomic<bool> held = false;
  std::thread replacer([&] {
    while (!done && !held) {
      ASSERT_TRUE(cache->save(path, prompt(kShort), {}, {.replace = true}).is_ok());
      const int opened = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      held = flock(opened, LOCK_EX | LOCK_NB) != 0;
      flock(opened, LOCK_UN);
      close(opened);
    }
  });
  int end[2];
  ASSERT_EQ(pipe(end), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 60 && !held; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
    const pid_t child = fork();
    if (child == 0) {
      close(end[1]);
      char byte = 0;
      _exit(read(end[0], &byte, 1) == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  done = true;
  replacer.join();
  EXPECT_FALSE(held);
  close(end[0]);
  close(end[1]);
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace kvcache
