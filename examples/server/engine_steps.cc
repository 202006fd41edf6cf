// The steps of an Engine: rows of many sequences through the model, and what became of them.
#include <algorithm>
#include <utility>

#include "engine.h"
#include "step_states.h"

namespace server {

using kvcache::Batch;
using kvcache::Sequence;
using kvcache::Status;

// The next chunk of every prompt; all but its last token, which decode() runs.
Status Engine::prefill(const Members& members) {
  std::vector<Sequence*> sequences;
  std::vector<StepRows> step;
  std::vector<std::uint64_t> counts;
  std::uint64_t computed = 0;
  for (Running* member : members) {
    const std::uint64_t start = member->sequence.length();
    std::uint64_t end = start + std::min(options_.chunk_tokens, member->to_prefill());
    const auto stop = std::upper_bound(member->stops.begin(), member->stops.end(), start);
    if (stop != member->stops.end()) end = std::min(end, *stop);
    sequences.push_back(&member->sequence);
    counts.push_back(end - start);
    step.push_back({std::span(member->job->tokens).subspan(start, end - start), start});
    computed += end - start;
  }
  auto batch = Batch::create(sequences);
  if (!batch) return batch.status();
  // Pages first: fixed-size state is updated in place, and a chunk that failed half-way would have
  // to be computed from the beginning.
  if (Status status = batch->prepare(counts); !status) return status;
  PrefillState state(*cache_, *batch, sequences, step);
  Status status = model_.run(step, state, false, workers_).status();
  if (status) status = batch->advance(counts);
  if (!status) return Status::internal("a prepared chunk failed: ", status.message());
  for (Running* member : members) {
    const std::uint64_t length = member->sequence.length();
    if (std::binary_search(member->stops.begin(), member->stops.end(), length)) {
      keep(member->sequence);
    }
  }
  const std::lock_guard lock(mutex_);
  counters_.computed_tokens += computed;
  ++counters_.steps;
  return Status::ok();
}

Status Engine::decode(const Members& members, bool speculate) {
  std::vector<std::int32_t> drafts, proposed(options_.drafts);
  std::vector<std::uint64_t> counts;
  for (const Running* member : members) {
    const std::uint64_t most = std::min(options_.drafts, member->to_answer() - 1);
    std::uint64_t count = 0;
    if (speculate && most > 0) {
      const auto found =
          member->job->lookup->propose(member->job->tokens, std::span(proposed).first(most));
      count = found ? *found : 0;  // without memory for its index a request is not sped up
    }
    drafts.insert(drafts.end(), proposed.begin(),
                  proposed.begin() + static_cast<std::ptrdiff_t>(count));
    counts.push_back(count);
  }
  Status status = verify(members, drafts, counts);
  if (!status) {
    for (const Running* member : members) {
      if (member->job->lookup) (void)member->job->lookup->abandon();
    }
  }
  return status;
}

Status Engine::verify(const Members& members, std::span<const std::int32_t> drafts,
                      std::span<const std::uint64_t> counts) {
  std::vector<Sequence*> sequences;
  for (Running* member : members) sequences.push_back(&member->sequence);
  auto batch = Batch::create(sequences);
  if (!batch) return batch.status();
  auto session = batch->begin_verify(drafts, counts, {});
  if (!session) return session.status();
  std::vector<StepRows> step;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto first = static_cast<std::size_t>(session->offsets()[i]);
    step.push_back({std::span(session->tokens()).subspan(first, counts[i] + 1),
                    static_cast<std::uint64_t>(session->starts()[i])});
  }
  VerifyState state(*cache_, *batch, *session);
  const auto picks = model_.run(step, state, true, workers_);
  if (!picks) return picks.status();

  // A row counts when the row before it picked its token.
  std::vector<std::uint64_t> accepted;
  std::vector<std::span<const std::int32_t>> picked;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto first = static_cast<std::size_t>(session->offsets()[i]);
    const auto own = std::span(*picks).subspan(first, counts[i] + 1);
    std::uint64_t rows = 1;
    while (rows <= counts[i] && step[i].tokens[rows] == own[rows - 1]) ++rows;
    accepted.push_back(rows);
    picked.push_back(own.first(rows));
  }
  if (const auto lengths = session->commit(accepted); !lengths) return lengths.status();
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < members.size(); ++i) {
    Job& job = *members[i]->job;
    job.tokens.insert(job.tokens.end(), picked[i].begin(), picked[i].end());
    // The last pick is the one token that waits; it was drafted by nobody.
    if (Status status = members[i]->sequence.extend(picked[i].last(1)); !status) return status;
    if (counts[i] > 0) (void)job.lookup->settle(accepted[i] - 1);
    counters_.drafted_tokens += counts[i];
    counters_.accepted_tokens += accepted[i] - 1;
    counters_.output_tokens += accepted[i];
  }
  counters_.computed_tokens += picks->size();
  ++counters_.steps;
  return Status::ok();
}

}  // namespace server
