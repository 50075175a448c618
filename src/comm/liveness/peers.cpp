// Checks peers on this host. A dead process takes precedence over ranks' reports about the process:
// every survivor names the dead rank.
#include "comm/liveness/peers.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/process_file.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/trace/status.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr std::int64_t kPollEveryNs = 5'000'000;
/// A rank without a watch thread answers `plait status` itself, once it has waited so long.
constexpr std::int64_t kAnswerAfterNs = 1'000'000'000;

}  // namespace

int Peers::pid_of(int rank) const {
  for (const Peer& peer : peers_)
    if (peer.rank == rank) return peer.pid;
  return getpid();
}

std::string Peers::name_of(int rank) const {
  return names_.empty() ? text("rank {}", rank) : names_[static_cast<std::size_t>(rank)];
}

Error Peers::relayed(int rank, const std::pair<ErrorCode, std::string>& failure) const {
  return reported_by(name_of(rank), failure.first, failure.second);
}

bool Peers::is_awaited(int rank) const {
  if (controls_ == nullptr) return true;
  const Control& control = controls_->of(rank);
  return call_ == 0 ? load(control.left) == 0 : !reached(load(control.finished), call_);
}

void Peers::check_processes(const std::string& waiting_for) const {
  std::vector<pollfd> entries;  // a single poll for all peers
  for (const Peer& peer : peers_) entries.push_back({peer.process.get(), POLLIN, 0});
  poll(entries.data(), entries.size(), 0);
  // A rank that failed because of another rank and then exited is not the cause: name that other
  // rank first.
  const Peer* follower = nullptr;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Peer& peer = peers_[i];
    if ((entries[i].revents == 0 && !has_died(peer.rank)) || !is_awaited(peer.rank)) continue;
    if (controls_ != nullptr && controls_->failure_of(peer.rank)) {
      follower = &peer;
      continue;
    }
    throw Error(ErrorCode::peer_lost,
                text("{} (pid {}) ended while {}", name_of(peer.rank), peer.pid, waiting_for));
  }
  if (follower == nullptr) return;
  const auto failure = controls_->failure_of(follower->rank);
  throw relayed(follower->rank, *failure);
}

void Peers::check_control_pages(const std::string& waiting_for) const {
  if (controls_ == nullptr) return;
  for (const Peer& peer : peers_) {
    const Control& control = controls_->of(peer.rank);
    const bool left = load(control.left) != 0;
    if ((!left && load(control.failed) != 2) || !is_awaited(peer.rank)) continue;
    check_processes(waiting_for);
    if (const auto failure = controls_->failure_of(peer.rank)) throw relayed(peer.rank, *failure);
    throw Error(ErrorCode::peer_lost, text("{} (pid {}) closed its communicator while {}",
                                           name_of(peer.rank), peer.pid, waiting_for));
  }
}

Error Peers::cause_of(const Error& error) const {
  if (error.code() != ErrorCode::peer_lost) return error;
  try {
    check_processes("this call ran");
    check_control_pages("this call ran");
  } catch (const Error& cause) {
    return cause;
  }
  return error;
}

void Peers::check_one(int rank, const std::string& waiting_for) const {
  if (aborted()) throw Error(ErrorCode::aborted, text("abort() was called while {}", waiting_for));
  for (const Peer& peer : peers_) {
    if (peer.rank != rank) continue;
    if (const auto failure = controls_->failure_of(rank)) throw relayed(rank, *failure);
    const bool ended = has_ended(peer.process) || has_died(rank);
    if (!ended && load(controls_->of(rank).left) == 0) continue;
    throw Error(ErrorCode::peer_lost,
                text("{} (pid {}) {} while {}", name_of(peer.rank), peer.pid,
                     ended ? "ended" : "closed its communicator", waiting_for));
  }
}

void Peers::check(const std::string& waiting_for) {
  if (aborted()) throw Error(ErrorCode::aborted, text("abort() was called while {}", waiting_for));
  check_control_pages(waiting_for);
  if (now_ns() < next_poll_ns_) return;
  next_poll_ns_ = now_ns() + kPollEveryNs;
  check_processes(waiting_for);
  if (remote_check_) remote_check_();
  if (interrupt_) interrupt_();
  if (controls_ != nullptr) warn(waiting_for);
}

/// Inside a call the recorders say more than the sentence does.
void Peers::warn(const std::string& waiting_for) {
  const FlightRing& mine = controls_->mine().host_flight;
  if (hang_ == nullptr || mine.written() == mine.ended())
    return warning_.look(controls_->rank(), [&] { return waiting_for; });
  if (FlightRing::coarse_ns() - mine.last_entered_ns() > kAnswerAfterNs) {
    StatusSocket::open();
    StatusSocket::answer();
  }
  if (!hang_->is_due()) return;
  const std::string line = hang_->look(CallsEnded::no, waiting_for);
  if (!line.empty()) warn_unasked(controls_->rank(), line);
}

}  // namespace plait
