// Ranks for tests of messages: mailboxes of one process, or of two, and messages with known bytes.
#pragma once
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/p2p/mailbox.hpp"

namespace plait_test {

using namespace plait;
using namespace plait::p2p;

constexpr double kLongS = 60;
constexpr std::uint64_t kLarge = kRendezvousFrom + 12345;

using Bytes = std::vector<std::uint8_t>;
using Posted = std::shared_ptr<Message>;

/// The mailboxes of a group, all in this process.
struct Group {
  explicit Group(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) all.push_back(make_mailbox(rank, ranks));
    for (int rank = 0; rank < ranks; ++rank)
      for (int peer = 0; peer < ranks; ++peer) at(rank).connect(peer, at(peer).address());
  }
  Mailbox& at(int rank) { return *all[static_cast<std::size_t>(rank)]; }
  std::vector<std::shared_ptr<Mailbox>> all;
};

inline Bytes numbered(std::uint64_t bytes, int seed) {
  Bytes made(bytes);
  for (std::uint64_t at = 0; at < bytes; ++at)
    made[at] = static_cast<std::uint8_t>((at * 7 + at / 251 + static_cast<unsigned>(seed)) & 0xff);
  return made;
}

inline Posted send(Mailbox& from, int to, const Bytes& bytes, std::int64_t tag = 0,
                   int context = 0) {
  return from.send(to, {context, tag}, bytes.data(), bytes.size());
}
inline Posted receive(Mailbox& to, int from, Bytes& bytes, std::int64_t tag = 0, int context = 0) {
  return to.receive(from, {context, tag}, bytes.data(), bytes.size());
}

inline std::string failure_text(const MessageFailure* failure) {
  return failure == nullptr ? "" : failure->what + ": " + failure->reason;
}

/// Waits for a message that must arrive. Null = a send that is in the ring already.
inline void arrives(Mailbox& mailbox, const Posted& message) {
  if (message == nullptr) return;
  mailbox.wait(message, kLongS);
  REQUIRE(message->is_done());
  INFO(failure_text(message->failure()));
  REQUIRE(message->failure() == nullptr);
}

inline std::string failure_of(Mailbox& mailbox, const Posted& message, double seconds = kLongS) {
  REQUIRE(message != nullptr);
  mailbox.wait(message, seconds);
  REQUIRE(message->is_done());
  return failure_text(message->failure());
}

inline double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

inline double seconds_of(const std::function<void()>& work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  return seconds_since(began);
}

/// Runs `work` in a process of its own; returns its exit status. 128 + signal if killed.
class Child {
 public:
  explicit Child(const std::function<void()>& work) : pid_(::fork()) {
    if (pid_ != 0) return;
    try {
      work();
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      ::_exit(1);
    }
  }
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void kill() const { ::kill(pid_, SIGKILL); }
  int status() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

/// Two ranks: 0 here, 1 in a child. Each makes its mailbox after the fork and passes its address.
struct TwoProcesses {
  explicit TwoProcesses(const std::function<void(Mailbox&)>& work) {
    int down[2], up[2];
    REQUIRE(::pipe(down) == 0);
    REQUIRE(::pipe(up) == 0);
    child = std::make_unique<Child>([&] {
      const auto mine = make_mailbox(1, 2);
      mine->connect(0, exchange(*mine, up[1], down[0]));
      work(*mine);
    });
    mailbox = make_mailbox(0, 2);
    mailbox->connect(1, exchange(*mailbox, down[1], up[0]));
    for (const int end : {down[0], down[1], up[0], up[1]}) ::close(end);
  }
  static std::string exchange(const Mailbox& mine, int out, int in) {
    char theirs[108] = {};
    std::string shown = mine.address();
    shown.resize(sizeof theirs);
    if (::write(out, shown.data(), shown.size()) < 0) throw std::runtime_error("write");
    std::size_t got = 0;
    while (got < sizeof theirs) {
      const ssize_t now = ::read(in, theirs + got, sizeof theirs - got);
      if (now <= 0) throw std::runtime_error("read");
      got += static_cast<std::size_t>(now);
    }
    return theirs;
  }
  std::unique_ptr<Child> child;
  std::shared_ptr<Mailbox> mailbox;
};

inline void check(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace plait_test
