// Liveness. A dead process is named before any rank's report about it, so every survivor says who died.
#include "comm/peers.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr std::int64_t kPollEveryNs = 5'000'000;

}  // namespace

Fd own_pid_descriptor() {
  const long fd = syscall(SYS_pidfd_open, getpid(), 0);  // close-on-exec by itself
  if (fd < 0)
    throw Error(ErrorCode::unsupported,
                text("pidfd_open: ", std::strerror(errno), "; plait wants Linux 5.4 or later"));
  return Fd(static_cast<int>(fd));
}

int Peers::pid_of(int rank) const {
  for (const Peer& peer : peers_)
    if (peer.rank == rank) return peer.pid;
  return getpid();
}

bool Peers::wanted(int rank) const {
  return controls_ == nullptr || !reached(controls_->of(rank).finished.load(std::memory_order_acquire), call_);
}

void Peers::check_processes(const std::string& waiting_for) const {
  std::vector<pollfd> entries;
  for (const Peer& peer : peers_) entries.push_back({peer.process.get(), POLLIN, 0});
  if (poll(entries.data(), entries.size(), 0) <= 0) return;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (entries[i].revents != 0 && wanted(peers_[i].rank))
      throw Error(ErrorCode::peer_lost, text("rank ", peers_[i].rank, " (pid ", peers_[i].pid,
                                             ") ended while ", waiting_for));
}

void Peers::check_words(const std::string& waiting_for) const {
  if (controls_ == nullptr) return;
  for (const Peer& peer : peers_) {
    const Control& control = controls_->of(peer.rank);
    const bool left = control.left.load(std::memory_order_acquire) != 0;
    if ((!left && control.failed.load() != 2) || !wanted(peer.rank)) continue;
    check_processes(waiting_for);
    if (const auto failure = controls_->failure_of(peer.rank))
      throw Error(failure->first, text("rank ", peer.rank, " reports: ", failure->second));
    throw Error(ErrorCode::peer_lost,
                text("rank ", peer.rank, " (pid ", peer.pid, ") closed its communicator while ", waiting_for));
  }
}

void Peers::check(const std::string& waiting_for) {
  if (aborted()) throw Error(ErrorCode::aborted, text("abort() was called while ", waiting_for));
  check_words(waiting_for);
  if (now_ns() < next_poll_ns_) return;
  next_poll_ns_ = now_ns() + kPollEveryNs;
  check_processes(waiting_for);
}

}  // namespace plait
