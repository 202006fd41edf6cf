// What a batched verify costs beside its forward pass, and state put at the accepted position
// beside memcpy of the same bytes.
//   bench_verify [batch] [drafts] [rounds]
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "../arena/measure.h"
#include "kvcache/batch_verify.h"
#include "kvcache/cache.h"
#include "kvcache/verify.h"
#include "kvcache/verify_table.h"

namespace {

using kvcache::Batch;
using kvcache::Cache;
using kvcache::Sequence;
using kvcache::StateDecl;
using kvcache::measure::median;
using kvcache::measure::must;
using kvcache::measure::seconds;
using kvcache::measure::value_of;
using Tokens = std::vector<std::int32_t>;

struct Model {
  const char* name;
  std::int32_t attention_layers;
  std::int32_t state_layers;
  bool table;
};

std::vector<StateDecl> declarations(const Model& model, std::uint64_t state_floats) {
  std::vector<StateDecl> decls;
  for (std::int32_t layer = 0; layer < model.attention_layers; ++layer) {
    for (const char* component : {"attention.keys", "attention.values"}) {
      decls.push_back({.id = std::string(component) + std::to_string(layer),
                       .layer = layer,
                       .component = component,
                       .kind = kvcache::StateKind::kPagedKv,
                       .dtype = kvcache::DType::kF16,
                       .shape = {1, 8}});
    }
  }
  for (std::int32_t layer = 0; layer < model.state_layers; ++layer) {
    decls.push_back({.id = std::string("h") + std::to_string(layer),
                     .layer = model.attention_layers + layer,
                     .component = "state.recurrent",
                     .kind = kvcache::StateKind::kRecurrent,
                     .dtype = kvcache::DType::kF32,
                     .shape = {state_floats}});
  }
  return decls;
}

std::unique_ptr<Cache> make_cache(const Model& model, std::uint64_t state_floats,
                                  std::uint32_t sequences, std::uint64_t memory) {
  auto plan = value_of(kvcache::StatePlan::create(
      declarations(model, state_floats),
      {.memory_bytes = memory, .block_tokens = 16, .sequences = sequences}));
  return value_of(Cache::create(std::move(plan), {}));
}

// begin_verify() and commit() of a batch whose kernels store rows in place. Microseconds.
void overhead(const Model& model, std::uint32_t size, std::uint64_t drafts, int rounds) {
  const auto cache = make_cache(model, 16, size, 512 << 20);
  std::vector<Sequence> sequences;
  std::vector<Sequence*> handles;
  for (std::uint32_t i = 0; i < size; ++i) {
    sequences.push_back(value_of(cache->open(Tokens{1}, {})));
  }
  for (Sequence& sequence : sequences) handles.push_back(&sequence);
  Batch batch = value_of(Batch::create(handles));
  std::vector<kvcache::VerifyTable> tables;
  if (model.table) tables.push_back(value_of(kvcache::VerifyTable::create(cache->plan(), size)));
  const Tokens proposed(size * drafts, 7), sampled(size, 3);
  const std::vector<std::uint64_t> counts(size, drafts);
  std::vector<std::uint64_t> accepted(size);
  std::vector<double> begins, commits;
  for (int round = 0; round < rounds; ++round) {
    for (std::uint32_t i = 0; i < size; ++i) accepted[i] = 1 + (round + i) % (drafts + 1);
    kvcache::BatchVerifySession session;
    begins.push_back(seconds([&] {
      session = value_of(batch.begin_verify(proposed, counts,
                                            {.table = tables.empty() ? nullptr : tables.data()}));
    }));
    commits.push_back(seconds([&] { value_of(session.commit(accepted, true)); }));
    must(batch.extend(sampled, {}));
  }
  const double begin = 1e6 * median(begins), commit = 1e6 * median(commits);
  std::printf("%-44s begin %6.2f us  commit %6.2f us  both %6.2f us\n", model.name, begin, commit,
              begin + commit);
}

// State of one sequence, `rows` states after it. Commit puts one of them in place of the live one,
// rollback none; memcpy moves the same bytes between the same kinds of memory.
void steps(std::uint64_t state_bytes, std::uint64_t rows) {
  const Model model = {"steps", 0, 1, false};
  const auto cache = make_cache(model, state_bytes / 4, 1, (rows + 4) * state_bytes + (8 << 20));
  Sequence sequence = value_of(cache->open(Tokens{1}, {}));
  char* from = kvcache::measure::map(state_bytes);
  char* to = kvcache::measure::map(state_bytes);
  std::memset(from, 1, state_bytes);
  std::memset(to, 1, state_bytes);
  const Tokens proposed(rows - 1, 7);
  std::vector<double> copies, takes, commits, rollbacks;
  for (int round = 0; round < 31; ++round) {
    for (const bool keep : {true, false}) {
      auto session = value_of(sequence.begin_verify(proposed));
      for (std::uint64_t row = 0; row < rows; ++row) {
        // The first time a row is taken it becomes a copy of the one before.
        takes.push_back(seconds([&] { value_of(session.state(row, 0, "state.recurrent")); }));
      }
      copies.push_back(seconds([&] { std::memcpy(to, from, state_bytes); }));
      if (keep) {
        commits.push_back(seconds([&] { value_of(session.commit(1 + round % rows)); }));
        must(sequence.extend(Tokens{3}));
      } else {
        rollbacks.push_back(seconds([&] { must(session.rollback()); }));
      }
    }
  }
  const double copy = median(copies);
  const auto gigabytes = [&](double time) {
    return 1e-9 * static_cast<double>(state_bytes) / time;
  };
  std::printf(
      "%5.1f MiB a state: memcpy %5.2f GB/s  commit %5.2f GB/s (%.2fx)  row %5.2f GB/s "
      "(%.2fx)  rollback %.2f us\n",
      static_cast<double>(state_bytes) / (1 << 20), gigabytes(copy), gigabytes(median(commits)),
      copy / median(commits), gigabytes(median(takes)), copy / median(takes),
      1e6 * median(rollbacks));
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int index, int otherwise) {
    return argc > index ? std::atoi(argv[index]) : otherwise;
  };
  const auto batch = static_cast<std::uint32_t>(argument(1, 32));
  const auto drafts = static_cast<std::uint64_t>(argument(2, 4));
  const int rounds = argument(3, 2000);
  std::printf("batch %u, %d drafts each, %d rounds, medians of processor time\n", batch,
              static_cast<int>(drafts), rounds);
  overhead({"attention: 32 layers", 32, 0, false}, batch, drafts, rounds);
  overhead({"hybrid: 12 attention, 36 states, by table", 12, 36, true}, batch, drafts, rounds);
  for (const std::uint64_t mib : {1, 8, 64}) steps(mib << 20, 5);
  return 0;
}
