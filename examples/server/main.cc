// An inference server whose decoder state is kept by kvcache; docs/servers.md is its manual.
//
//   kvcache_server [--port N] [--memory BYTES] [--sequences N] [--drafts N] [--disk DIR] ...
//   kvcache_server --check < requests    prints the likeliest token after each of their tokens,
//                                        computed without any cache
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <string_view>

#include "engine.h"
#include "listener.h"
#include "request_line.h"
#include "step_states.h"

namespace {

using kvcache::Status;
using server::Answer;
using server::EngineOptions;

constexpr const char* kUsage =
    "usage: kvcache_server [--port N] [--memory BYTES] [--sequences N] [--chunk TOKENS]\n"
    "         [--overcommit PERCENT] [--drafts N] [--waiting N] [--threads N] [--seed N] [--disk "
    "DIR]\n"
    "         [--disk-bytes BYTES] [--no-reuse] [--check]\n";

struct Options {
  EngineOptions engine;
  std::uint64_t port = 0;
  bool check = false;
};

// The text after `name` as a number of least to most; false: it is none.
bool number(const char* text, std::uint64_t least, std::uint64_t most, std::uint64_t& value) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long parsed = std::strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0' || errno != 0) return false;
  value = parsed;
  return least <= value && value <= most;
}

bool parse(int count, char** arguments, Options& options) {
  std::map<std::string_view, std::uint64_t> values{
      {"--port", 0},
      {"--memory", options.engine.memory_bytes},
      {"--sequences", 32},
      {"--chunk", options.engine.chunk_tokens},
      {"--waiting", 1024},
      {"--overcommit", 150},
      {"--drafts", options.engine.drafts},
      {"--threads", 2},
      {"--disk-bytes", options.engine.disk_bytes},
      {"--seed", 0},
  };
  const std::map<std::string_view, std::pair<std::uint64_t, std::uint64_t>> limits{
      {"--port", {0, 65535}},
      {"--memory", {1, UINT64_MAX / 4}},
      {"--sequences", {1, 4096}},
      {"--chunk", {1, 65536}},
      {"--waiting", {0, 1 << 20}},
      {"--overcommit", {1, 10'000}},
      {"--drafts", {0, 64}},
      {"--threads", {1, 256}},
      {"--disk-bytes", {1, UINT64_MAX / 4}},
      {"--seed", {0, UINT64_MAX}}};
  for (int i = 1; i < count; ++i) {
    const std::string_view name = arguments[i];
    if (name == "--no-reuse") {
      options.engine.reuse = false;
    } else if (name == "--check") {
      options.check = true;
    } else if (i + 1 == count) {
      return false;
    } else if (name == "--disk") {
      options.engine.disk = arguments[++i];
    } else {
      const auto limit = limits.find(name);
      if (limit == limits.end() ||
          !number(arguments[++i], limit->second.first, limit->second.second, values[name])) {
        return false;
      }
    }
  }
  options.port = values["--port"];
  options.engine.memory_bytes = values["--memory"];
  options.engine.sequences = static_cast<std::uint32_t>(values["--sequences"]);
  options.engine.chunk_tokens = values["--chunk"];
  options.engine.waiting = values["--waiting"];
  options.engine.overcommit = static_cast<double>(values["--overcommit"]) / 100;
  options.engine.drafts = values["--drafts"];
  options.engine.threads = values["--threads"];
  options.engine.disk_bytes = values["--disk-bytes"];
  options.engine.seed = values["--seed"];
  return true;
}

// What a server without kvcache computes for the same tokens: no batch, no page, no draft.
Answer compute(const server::ToyModel& model, const server::Request& request,
               server::Workers& workers) {
  server::PlainState state;
  const server::StepRows rows{request.tokens, 0};
  auto picks = model.run({&rows, 1}, state, true, workers);
  if (!picks) return {request.id, picks.status(), {}, 0};
  return {request.id, Status::ok(), *std::move(picks), 0};
}

int check(const Options& options) {
  const server::ToyModel model(options.engine.seed);
  server::Workers workers(1);
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = server::parse_request(line);
    const Answer answer =
        request ? compute(model, *request, workers) : Answer{0, request.status(), {}, 0};
    std::cout << server::answer_line(answer) << std::endl;
  }
  return 0;
}

int serve(const Options& options, const sigset_t& signals) {
  auto engine = server::Engine::create(options.engine);
  if (!engine) {
    std::cerr << "kvcache_server: " << engine.status().message() << "\n";
    return 1;
  }
  const auto answer = [&](std::string_view line) {
    auto request = server::parse_request(line);
    if (!request) return server::answer_line({0, request.status(), {}, 0});
    if (request->stats) return (*engine)->stats_line(request->id);
    return server::answer_line((*engine)->answer(*std::move(request)));
  };
  auto listener = server::Listener::create(static_cast<std::uint16_t>(options.port), answer);
  if (!listener) {
    std::cerr << "kvcache_server: " << listener.status().message() << "\n";
    return 1;
  }
  std::cout << "listening on 127.0.0.1:" << (*listener)->port() << std::endl;
  int signal = 0;
  sigwait(&signals, &signal);
  (*engine)->stop();  // requests that wait or run are answered with an error
  listener->reset();
  std::cout << (*engine)->stats_line(0) << std::endl;
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  if (!parse(count, arguments, options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (options.check) return check(options);
  // Taken by sigwait() alone; threads inherit the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return serve(options, signals);
}
