// Continuous batching: one thread runs all admitted requests side by side, a step at a time, and
// keeps all of their decoder state in one kvcache::Cache.
// Thread safety: Engine is thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kvcache/batch.h"
#include "kvcache/cache.h"
#include "kvcache/prompt_lookup.h"
#include "request_line.h"
#include "toy_model.h"
#include "workers.h"

namespace server {

struct EngineOptions {
  std::uint64_t memory_bytes = std::uint64_t{16} << 20;
  std::uint32_t sequences = 32;     // that run at once
  std::uint64_t chunk_tokens = 64;  // of a prompt in one step
  std::uint64_t drafts = 8;         // most of one verify; 0: no speculation
  std::size_t waiting = 1024;       // requests; more are refused
  double overcommit = 1.5;          // memory promised to running requests, by memory
  bool reuse = true;                // false: every prompt is computed from its first token
  std::string disk;                 // directory of a disk tier; empty: none
  std::uint64_t disk_bytes = std::uint64_t{1} << 30;
  std::size_t threads = 2;
  std::uint64_t seed = 0;  // of the weights
};

struct EngineCounters {
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t steps = 0;
  std::uint64_t prompt_tokens = 0;    // asked
  std::uint64_t cached_tokens = 0;    // of them, restored
  std::uint64_t computed_tokens = 0;  // rows of the model, rejected drafts included
  std::uint64_t output_tokens = 0;
  std::uint64_t drafted_tokens = 0;
  std::uint64_t accepted_tokens = 0;
};

class Engine {
 public:
  // Errors of StatePlan::create() and Cache::create().
  static kvcache::Result<std::unique_ptr<Engine>> create(const EngineOptions& options);
  // Fails what waits or runs and ends the thread.
  ~Engine();

  // Waits for the answer. Its status is kOutOfCapacity when the request can never fit the memory,
  // or too many wait, and kUnsupported once the engine stops.
  Answer answer(Request request);
  void stop();
  // The counters of engine and cache as one JSON object.
  std::string stats_line(std::int64_t id) const;

 private:
  struct Job {  // a request until it is answered, across preemptions
    Request request;
    std::vector<std::int32_t> tokens;  // prompt and answer so far
    std::uint64_t cached_tokens = 0;
    std::uint64_t bytes = 0;  // most that it takes
    bool started = false;
    std::unique_ptr<kvcache::PromptLookupIndex> lookup;
    std::promise<Answer> done;
  };
  struct Running {
    std::unique_ptr<Job> job;
    kvcache::Sequence sequence;
    std::vector<std::uint64_t> stops;  // where prefill chunks end with a snapshot

    std::uint64_t to_prefill() const { return job->tokens.size() - 1 - sequence.length(); }
    std::uint64_t to_answer() const {
      return job->request.tokens.size() + job->request.max_tokens - job->tokens.size();
    }
  };
  using Members = std::vector<Running*>;

  Engine(const EngineOptions& options, std::unique_ptr<kvcache::Cache> cache);

  void loop();
  bool admit();  // false: stop
  kvcache::Result<Running> start(std::unique_ptr<Job>& job);
  kvcache::Status prefill(const Members& members);
  kvcache::Status decode(const Members& members, bool speculate);
  kvcache::Status verify(const Members& members, std::span<const std::int32_t> drafts,
                         std::span<const std::uint64_t> counts);
  void keep(kvcache::Sequence& sequence);  // for others to reuse
  void recover(const Members& members, const kvcache::Status& status);
  void preempt_youngest();
  void finish_answered();
  void reply(Job& job, const kvcache::Status& status);

  const EngineOptions options_;
  const ToyModel model_;
  const std::unique_ptr<kvcache::Cache> cache_;
  Workers workers_;

  // Of the engine's thread.
  std::vector<std::unique_ptr<Running>> running_;  // oldest first
  std::uint64_t promised_bytes_ = 0;
  bool short_of_memory_ = false;  // nobody is admitted until somebody is done

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<Job>> waiting_;
  EngineCounters counters_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace server
