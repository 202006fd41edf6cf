#include "engine.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "toy_layout.h"

namespace server {

using kvcache::Result;
using kvcache::Sequence;
using kvcache::Status;
using kvcache::StatusCode;

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  kvcache::PlanOptions wanted = toy_layout::options();
  wanted.memory_bytes = options.memory_bytes;
  wanted.sequences = options.sequences;
  auto plan = toy_layout::plan(wanted);
  if (!plan) return plan.status();
  kvcache::CacheOptions cache_options;
  cache_options.costs = toy_layout::kCosts;
  cache_options.weights = "toy-" + std::to_string(options.seed);
  cache_options.disk.path = options.disk;
  cache_options.disk.max_bytes = options.disk.empty() ? 0 : options.disk_bytes;
  auto cache = kvcache::Cache::create(*std::move(plan), cache_options);
  if (!cache) return cache.status();
  return std::unique_ptr<Engine>(new Engine(options, *std::move(cache)));
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<kvcache::Cache> cache)
    : options_(options),
      model_(options.seed),
      cache_(std::move(cache)),
      workers_(options.threads),
      thread_([this] { loop(); }) {}

Engine::~Engine() {
  stop();
  thread_.join();
  // What was published is safe on disk; without a tier there is nothing to wait for.
  if (!options_.disk.empty()) (void)cache_->flush_disk(10'000);
}

void Engine::stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  wake_.notify_all();
}

Answer Engine::answer(Request request) {
  auto job = std::make_unique<Job>();
  const std::int64_t id = request.id;
  const std::uint64_t tokens = request.tokens.size() + request.max_tokens;
  job->tokens = request.tokens;
  job->request = std::move(request);
  auto future = job->done.get_future();
  // The pages and the state of a lone sequence, and what its verify holds beside them.
  const auto bytes = cache_->plan().sequence_bytes(tokens, options_.chunk_tokens);
  if (!bytes) return {id, bytes.status(), {}, 0};
  job->bytes = *bytes + (options_.drafts + 1) * cache_->plan().slot_bytes();
  if (job->bytes > options_.memory_bytes) {
    return {id,
            Status::out_of_capacity(tokens, " tokens take ", job->bytes, " bytes, and there are ",
                                    options_.memory_bytes, "; lower max_tokens, or raise --memory"),
            {},
            0};
  }
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return {id, Status::unsupported("the server is shutting down"), {}, 0};
    if (waiting_.size() >= options_.waiting) {
      return {id,
              Status::out_of_capacity(waiting_.size(), " requests wait already; ask again later"),
              {},
              0};
    }
    waiting_.push_back(std::move(job));
  }
  wake_.notify_all();
  return future.get();
}

void Engine::loop() {
  while (admit()) {
    Members prompts, answers;
    for (const auto& running : running_) {
      (running->to_prefill() > 0 ? prompts : answers).push_back(running.get());
    }
    if (!prompts.empty()) {
      if (Status status = prefill(prompts); !status) {
        recover(prompts, status);
        continue;  // members may be gone
      }
    }
    if (!answers.empty()) {
      Status status = decode(answers, true);
      if (status.code() == StatusCode::kOutOfCapacity) status = decode(answers, false);
      if (!status) recover(answers, status);
    }
    finish_answered();
  }
  for (const auto& running : running_) {
    running->sequence.close();  // before who waits for the answer looks at what is open
    reply(*running->job, Status::unsupported("the server is shutting down"));
  }
  running_.clear();
  const std::lock_guard lock(mutex_);
  for (const auto& job : waiting_) {
    job->done.set_value(
        {job->request.id, Status::unsupported("the server is shutting down"), {}, 0});
  }
  waiting_.clear();
}

bool Engine::admit() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stop_ || !waiting_.empty() || !running_.empty(); });
  if (stop_) return false;
  const double limit = options_.overcommit * static_cast<double>(options_.memory_bytes);
  while (!waiting_.empty() && running_.size() < options_.sequences) {
    const std::uint64_t bytes = promised_bytes_ + waiting_.front()->bytes;
    const bool fits = !short_of_memory_ && static_cast<double>(bytes) <= limit;
    if (!running_.empty() && !fits) break;  // a lone request may always try
    std::unique_ptr<Job> job = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    auto started = start(job);
    if (!started && started.status().code() == StatusCode::kOutOfCapacity && !running_.empty()) {
      lock.lock();
      waiting_.push_front(std::move(job));
      short_of_memory_ = true;
      break;
    }
    if (started) {
      promised_bytes_ = bytes;
      running_.push_back(std::make_unique<Running>(*std::move(started)));
    } else {
      reply(*job, started.status());
    }
    lock.lock();
  }
  return true;
}

// `job` is moved from only if this succeeds.
Result<Engine::Running> Engine::start(std::unique_ptr<Job>& job) {
  if (!job->lookup && options_.drafts > 0) {
    auto lookup =
        kvcache::PromptLookupIndex::create({.max_drafts = options_.drafts, .history_tokens = 4096});
    if (!lookup) return lookup.status();
    job->lookup = *std::move(lookup);
  }
  auto sequence = cache_->open(job->tokens, {});
  if (!sequence) return sequence.status();
  {
    const std::lock_guard lock(mutex_);
    if (!job->started) {
      job->cached_tokens = sequence->cached_tokens();
      counters_.prompt_tokens += job->tokens.size();
      counters_.cached_tokens += job->cached_tokens;
    }
    job->started = true;
  }
  Running running{std::move(job), *std::move(sequence), {}};
  if (options_.reuse) running.stops = running.sequence.prefill_stops();
  return running;
}

// Without memory for it there is less to reuse, and nothing else.
void Engine::keep(Sequence& sequence) {
  if (!options_.reuse) return;
  (void)sequence.snapshot();
  (void)sequence.publish();
}

// A step that failed has left its sequences at their last complete position.
void Engine::recover(const Members& members, const Status& status) {
  if (status.code() == StatusCode::kOutOfCapacity && running_.size() > 1) {
    preempt_youngest();
    return;
  }
  for (Running* member : members) {
    member->sequence.close();
    reply(*member->job, status);
  }
  std::erase_if(running_, [&](const auto& running) {
    const bool failed = std::find(members.begin(), members.end(), running.get()) != members.end();
    if (failed) promised_bytes_ -= running->job->bytes;
    return failed;
  });
  short_of_memory_ = false;
}

// It goes on later, from what the cache still has of it then; the oldest always gets through.
void Engine::preempt_youngest() {
  Running& youngest = *running_.back();
  keep(youngest.sequence);
  promised_bytes_ -= youngest.job->bytes;
  short_of_memory_ = true;
  {
    const std::lock_guard lock(mutex_);
    ++counters_.preemptions;
    waiting_.push_front(std::move(youngest.job));
  }
  running_.pop_back();
}

void Engine::finish_answered() {
  std::erase_if(running_, [&](const auto& running) {
    if (running->to_answer() > 0) return false;
    keep(running->sequence);  // where the next turn of the conversation goes on
    running->sequence.close();
    promised_bytes_ -= running->job->bytes;
    short_of_memory_ = false;
    reply(*running->job, Status::ok());
    return true;
  });
}

void Engine::reply(Job& job, const Status& status) {
  const auto prompt = static_cast<std::ptrdiff_t>(job.request.tokens.size());
  Answer answer{
      job.request.id, status, {job.tokens.begin() + prompt, job.tokens.end()}, job.cached_tokens};
  {
    const std::lock_guard lock(mutex_);
    ++(status ? counters_.answered : counters_.failed);
  }
  job.done.set_value(std::move(answer));
}

std::string Engine::stats_line(std::int64_t id) const {
  const kvcache::CacheStats cache = cache_->stats();
  std::ostringstream text;
  const std::lock_guard lock(mutex_);
  const auto add = [&](const char* name, std::uint64_t value) {
    text << ", \"" << name << "\": " << value;
  };
  text << "{\"id\": " << id;
  add("answered", counters_.answered);
  add("failed", counters_.failed);
  add("preemptions", counters_.preemptions);
  add("steps", counters_.steps);
  add("prompt_tokens", counters_.prompt_tokens);
  add("cached_tokens", counters_.cached_tokens);
  add("computed_tokens", counters_.computed_tokens);
  add("output_tokens", counters_.output_tokens);
  add("drafted_tokens", counters_.drafted_tokens);
  add("accepted_tokens", counters_.accepted_tokens);
  add("budget_bytes", cache.budget_bytes);
  add("peak_bytes", cache.peak_bytes);
  add("open_sequences", cache.open_sequences);
  add("evicted_blocks", cache.evicted_blocks);
  add("evicted_snapshots", cache.evicted_snapshots);
  if (const auto disk = cache_->disk_stats()) {
    add("disk_bytes", disk->bytes);
    add("disk_fetched_tokens", disk->fetched_tokens);
  }
  text << "}";
  return text.str();
}

}  // namespace server
