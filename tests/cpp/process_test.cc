// Handles in a child of fork(), taken while other threads hold locks and change shared state.
#include "base/process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "kvcache/cache.h"
#include "kvcache/verify.h"

namespace kvcache {
namespace {

constexpr std::array<std::int32_t, 9> kTokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
constexpr std::uint64_t kWidth = 8;

std::unique_ptr<Cache> make_cache() {
  const StateDecl keys = {.id = "k",
                          .layer = 0,
                          .component = "attention.keys",
                          .kind = StateKind::kPagedKv,
                          .dtype = DType::kF16,
                          .shape = {1, kWidth}};
  const StateDecl state = {.id = "r",
                           .layer = 1,
                           .component = "state.recurrent",
                           .kind = StateKind::kRecurrent,
                           .dtype = DType::kF32,
                           .shape = {4}};
  auto plan = StatePlan::create({keys, state}, {1 << 20, 4, 16});
  return Cache::create(std::move(plan).value(), {}).value();
}

Status run(Sequence& sequence, std::uint64_t stop) {
  std::vector<float> rows(stop * kWidth, 1.0F);
  const codec::RowsView view = {rows.data(), DType::kF32, stop, 1, kWidth, kWidth * 4, kWidth * 4};
  if (Status status = sequence.write(0, 0, {&view, 1}); !status) return status;
  return sequence.advance(stop);
}

// What `body` returned in a child, or -1 when it did not come to an end.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool refused(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument &&
         status.message().find("before fork()") != std::string::npos;
}

// The number of the first call that is not refused, or 0.
int first_accepted(Cache& cache, Sequence& sequence, VerifySession& session) {
  std::array<float, kWidth> row{};
  const codec::RowsView from = {row.data(), DType::kF32, 1, 1, kWidth, kWidth * 4, kWidth * 4};
  const codec::MutableRowsView to = {row.data(), DType::kF32, 1, 1, kWidth, kWidth * 4, kWidth * 4};
  const std::vector<std::function<Status()>> calls = {
      [&] { return cache.open(kTokens, {}).status(); },
      [&] { return cache.save("unused", kTokens, {}, {}).status(); },
      [&] { return cache.load("unused", {}).status(); },
      [&] { return cache.check_process(); },
      [&] { return sequence.check_process(); },
      [&] { return sequence.written(0).status(); },
      [&] { return sequence.extend(kTokens); },
      [&] { return sequence.write(0, 0, {&from, 1}); },
      [&] { return sequence.read(0, 0, {&to, 1}); },
      [&] { return sequence.state(1, "state.recurrent").status(); },
      [&] { return sequence.advance(1); },
      [&] { return sequence.snapshot().status(); },
      [&] { return sequence.publish(); },
      [&] { return sequence.fork().status(); },
      [&] { return sequence.truncate(0); },
      [&] { return sequence.record().status(); },
      [&] { return sequence.rollback(0); },
      [&] { return sequence.begin_verify({}).status(); },
      [&] { return session.check_process(); },
      [&] { return session.write(0, {&from, 1}); },
      [&] { return session.state(0, 1, "state.recurrent").status(); },
      [&] { return session.commit(1).status(); },
      [&] { return session.rollback(); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!refused(calls[i]())) return static_cast<int>(i) + 1;
  }
  return 0;
}

TEST(ProcessMutex, NeitherBlocksNorBelongsInAChild) {
  ProcessMutex mutex;
  mutex.lock();
  EXPECT_EQ(in_child([&] {
              mutex.lock();
              mutex.unlock();
              ProcessMutex own;
              return mutex.is_own_process() || !own.is_own_process() ? 1 : 0;
            }),
            0);
  EXPECT_TRUE(mutex.check_process().is_ok());
  mutex.unlock();
}

TEST(ProcessFork, EveryCallIsRefusedInAChildAndGettersAnswerAsIfClosed) {
  const auto cache = make_cache();
  Sequence sequence = cache->open(kTokens, {}).value();
  ASSERT_TRUE(run(sequence, 8).is_ok());
  Sequence busy = cache->open({kTokens.data(), 1}, {}).value();
  VerifySession session = busy.begin_verify({}).value();
  EXPECT_EQ(in_child([&] { return first_accepted(*cache, sequence, session); }), 0);
  EXPECT_EQ(in_child([&] {
              const bool quiet = !sequence.is_open() && sequence.length() == 0 &&
                                 sequence.tokens().empty() && sequence.prefill_stops().empty() &&
                                 !session.is_open() && cache->stats().used_bytes == 0 &&
                                 !cache->explain(kTokens, {}).is_ok();
              return quiet ? 0 : 1;
            }),
            0);
  EXPECT_EQ(sequence.length(), 8U);
  EXPECT_TRUE(session.is_open());
}

TEST(ProcessFork, HundredsOfForksAmongBusyThreadsNeitherHangNorCrash) {
  const auto cache = make_cache();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        Sequence sequence = cache->open(kTokens, {}).value();
        if (sequence.length() == 0) static_cast<void>(run(sequence, 8));
        Sequence child = sequence.fork().value();
        static_cast<void>(child.snapshot());
        static_cast<void>(child.publish());
        if (cache->stats().opens % 64 == 0) cache->clear();
      }
    });
  }
  for (int round = 0; round < 200; ++round) {
    auto sequence = std::make_unique<Sequence>(cache->open(kTokens, {}).value());
    auto view = std::make_unique<Result<StateView>>(sequence->state(1, "state.recurrent"));
    Sequence waiting = cache->open({kTokens.data(), 1}, {}).value();
    VerifySession session = waiting.begin_verify({}).value();
    ASSERT_EQ(in_child([&] {
                const int accepted = first_accepted(*cache, *sequence, session);
                cache->clear();
                sequence->close();
                session = VerifySession();
                waiting = Sequence();
                sequence.reset();
                view.reset();
                return accepted;
              }),
              0)
        << "round " << round;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  cache->clear();
  EXPECT_EQ(cache->stats().used_bytes, 0U);
}

TEST(ProcessFork, AChildMakesItsOwnCacheWhichItsOwnChildCannotUse) {
  const auto cache = make_cache();
  EXPECT_EQ(in_child([] {
              const auto own = make_cache();
              Sequence sequence = own->open(kTokens, {}).value();
              if (!run(sequence, 8)) return 1;
              if (in_child([&] { return refused(sequence.advance(1)) ? 0 : 1; }) != 0) return 2;
              sequence.close();
              return own->stats().used_bytes == 0 ? 0 : 3;
            }),
            0);
}

}  // namespace
}  // namespace kvcache
