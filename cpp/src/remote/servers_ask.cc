// Asking several servers at once: each gets its share of the questions before any answer is
// awaited, and their answers are taken as they come, so that one that is silent costs only its own.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "remote/servers.h"

namespace kvcache::remote {
namespace {

// Replies that are asked for before the ones before them have come.
constexpr std::uint64_t kBytesAhead = 8 << 20;

}  // namespace

class Asking {
 public:
  Asking(Servers& servers, const Questions& questions, const Deadline& deadline)
      : servers_(servers),
        questions_(questions),
        deadline_(deadline),
        statuses_(questions.keys.size()),
        ways_(questions.keys.size()) {
    for (std::size_t i = 0; i < questions.keys.size(); ++i) open_.push_back(i);
  }

  std::vector<Status> run() {
    for (int round = 0; !open_.empty() && round <= kMostRedirections; ++round) {
      std::vector<Share> shares = share_out();
      // Who was lost before is tried behind the others.
      for (Share& share : shares) {
        if (!share.server->is_suspended()) begin(share);
      }
      take_as_they_come(shares);
      for (Share& share : shares) ask_alone(share);
    }
    for (const std::size_t i : open_) {
      statuses_[i] = Status::io_error("sent on from server to server");
    }
    return std::move(statuses_);
  }

 private:
  // What one server is asked.
  struct Share {
    Servers::Server server;
    std::vector<std::size_t> questions;
    std::size_t sent = 0;
    std::size_t taken = 0;
    std::uint64_t ahead = 0;  // bytes of those sent and not taken
    std::optional<Connections::Loan> loan = {};
    bool again = false;  // with a new connection, for the kept one was outdated
    bool is_settled = false;
  };

  bool asking(std::size_t question) const { return ways_[question] && ways_[question]->asking; }
  std::uint64_t bytes(std::size_t question) const {
    return questions_.bytes.empty() ? 0 : questions_.bytes[question];
  }

  // In an order of servers that is the same for all threads: each waits for a connection while it
  // has others.
  std::vector<Share> share_out() {
    const auto map = servers_.map(deadline_);
    std::map<Servers::Server, std::vector<std::size_t>> by_server;
    for (const std::size_t i : std::exchange(open_, {})) {
      auto server =
          ways_[i] ? servers_.server_at(ways_[i]->to) : servers_.server_of(map, questions_.keys[i]);
      if (server) {
        by_server[*server].push_back(i);
      } else {
        statuses_[i] = server.status();
      }
    }
    std::vector<Share> shares;
    for (auto& [server, questions] : by_server) shares.push_back({server, std::move(questions)});
    return shares;
  }

  void begin(Share& share) {
    if (deadline_.has_passed()) return settle_late(share);
    auto loan = share.server->lend(deadline_, share.again);
    if (!loan) return settle(share, loan.status());
    share.loan.emplace(std::move(loan).value());
    share.loan->client().take_refusal();
    if (Status sent = send_more(share); !sent) end(share, std::move(sent));
  }

  Status send_more(Share& share) {
    Commands commands;
    while (share.sent < share.questions.size() &&
           (share.sent == share.taken || share.ahead < kBytesAhead)) {
      const std::size_t i = share.questions[share.sent++];
      if (asking(i)) commands.add({"ASKING"});
      questions_.ask(i, commands);
      share.ahead += bytes(i);
    }
    return commands.count() == 0 ? Status::ok() : share.loan->client().send(commands, deadline_);
  }

  // What has come, or where nobody else waits all of it.
  Status take_replies(Share& share, bool others_wait) {
    RespClient& client = share.loan->client();
    do {
      const std::size_t i = share.questions[share.taken];
      if (asking(i)) {
        Reply ignored;  // where it is refused, the question is
        if (Status come = client.receive({}, ignored, deadline_); !come) return come;
        client.take_refusal();
      }
      Status status = questions_.take(i, client);
      if (client.is_broken()) return status;
      ++share.taken;
      share.ahead -= bytes(i);
      const std::string refusal = client.take_refusal();
      ways_[i].reset();
      if (!status && !refusal.empty()) {
        status = status.prefixed(share.server->address().text() + ": ");
        ways_[i] = servers_.look_into(refusal, *share.server, status);
      }
      if (ways_[i]) open_.push_back(i);
      statuses_[i] = std::move(status);
      if (Status sent = send_more(share); !sent) return sent;
    } while (share.taken < share.questions.size() && (!others_wait || client.has_more()));
    return Status::ok();
  }

  void take_as_they_come(std::vector<Share>& shares) {
    for (;;) {
      std::vector<Share*> waiting;
      std::vector<pollfd> polls;
      for (Share& share : shares) {
        if (!share.loan) continue;
        waiting.push_back(&share);
        polls.push_back({share.loan->client().file(), POLLIN, 0});
      }
      if (waiting.empty()) return;
      // With one server there is nobody else to look after meanwhile.
      const int ready =
          shares.size() == 1 ? -1 : ::poll(polls.data(), polls.size(), deadline_.poll_ms());
      if (ready < 0 && shares.size() > 1 && errno == EINTR) continue;
      for (std::size_t k = 0; k < waiting.size(); ++k) {
        const bool is_ready = polls[k].revents != 0;
        if (is_ready && shares.size() > 1 && deadline_.has_passed()) {
          // Others took all of the time, which is no fault of this one.
          waiting[k]->loan.reset();
          settle_late(*waiting[k]);
        } else if (is_ready || ready <= 0) {
          end(*waiting[k], take_replies(*waiting[k], shares.size() > 1));
        }
      }
    }
  }

  // A server that was lost before, or whose connection was outdated.
  void ask_alone(Share& share) {
    while (!share.is_settled) {
      begin(share);
      if (share.loan) end(share, take_replies(share, false));
    }
  }

  void end(Share& share, Status status) {
    if (status && share.taken < share.questions.size()) return;  // there is more to come
    if (share.loan->is_outdated()) {
      share.loan.reset();
      share.sent = share.taken = share.ahead = 0;
      share.again = true;
      return;
    }
    Connections::Loan loan = std::move(*share.loan);
    share.loan.reset();
    settle(share, share.server->end(std::move(loan), std::move(status)));
  }

  // What was not taken fails with it.
  void settle(Share& share, const Status& status) {
    share.is_settled = true;
    for (; share.taken < share.questions.size(); ++share.taken) {
      statuses_[share.questions[share.taken]] = status;
    }
    if (!status) servers_.doubt();
  }
  void settle_late(Share& share) {
    settle(share, Status::io_error(share.server->address().text(), ": others took the ",
                                   deadline_.ms(), " ms"));
  }

  Servers& servers_;
  const Questions& questions_;
  const Deadline& deadline_;
  std::vector<Status> statuses_;
  std::vector<std::optional<Redirection>> ways_;  // where a question was sent on to
  std::vector<std::size_t> open_;                 // questions without an answer
};

std::vector<Status> Servers::ask(const Questions& questions, const Deadline& deadline) {
  return Asking(*this, questions, deadline).run();
}

}  // namespace kvcache::remote
