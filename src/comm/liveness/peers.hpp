// Peers of a communicator: turns pidfds (each rank sends its own pidfd, so no pid is looked up) and
// published failures into the error that ends a rank's wait.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/bootstrap/interrupt.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/wait_warning.hpp"
#include "comm/liveness/control.hpp"
#include "comm/liveness/peer_watch.hpp"
#include "comm/trace/hang.hpp"
#include "plait/error.hpp"

namespace plait {

struct Peer {
  int rank = 0;
  int pid = 0;
  Fd process;
};

class Peers : public Watch {
 public:
  Peers() = default;
  Peers(std::vector<Peer> peers) : peers_(std::move(peers)) {}

  /// liveness: pages of ranks that take long to exit because of GPU memory; null = none.
  void use(const Controls* controls, std::shared_ptr<const WatchedPeers> liveness) {
    controls_ = controls;
    watch(std::move(liveness));
  }
  /// Sets these pages while other threads may check ranks.
  void watch(std::shared_ptr<const WatchedPeers> liveness) {
    liveness_.store(liveness.get());
    owned_.push_back(std::move(liveness));
  }
  /// Explains waits in calls by the ranks' flight recorders from here on; `info` outlives this
  /// object.
  void explain_by(const FlightInfo& info) { hang_ = std::make_unique<HangWatch>(info); }
  /// Rank names for error messages; default: the numbers.
  void set_names(std::vector<std::string> names) { names_ = std::move(names); }
  /// Called as often as processes are checked. Throws if a rank of another host has failed.
  void set_remote_check(std::function<void()> check) { remote_check_ = std::move(check); }
  /// Sets the current call. A peer that has finished this call may exit. Before the first call all
  /// waits are of a set-up: a peer may exit once it has closed its complete communicator.
  void begin_call(std::uint32_t call) {
    call_ = call;
    warning_.begin();
  }
  void check(const std::string& waiting_for) override;
  bool meanwhile() override { return meanwhile_ && meanwhile_(); }
  void set_meanwhile(std::function<bool()> work) { meanwhile_ = std::move(work); }
  /// Called now and then in checks. Throws if the program wants the wait to end.
  void set_interrupt(std::function<void()> ask) { interrupt_ = now_and_then(std::move(ask)); }
  /// Checks a rank that must still answer, whatever calls that rank has finished. After use().
  void check_one(int rank, const std::string& waiting_for) const;
  /// Returns the cause of an error seen as a closed socket: an exited rank, or a rank that
  /// published a failure.
  Error cause_of(const Error& error) const;
  /// Makes every later check throw Error(aborted). Any thread.
  void abort() noexcept { aborted_.store(true); }
  bool aborted() const { return aborted_.load(); }
  int pid_of(int rank) const;
  const std::vector<Peer>& all() const { return peers_; }

 private:
  bool is_awaited(int rank) const;
  bool has_died(int rank) const {
    const WatchedPeers* const pages = liveness_.load();
    return pages != nullptr && pages->has_died(rank);
  }
  std::string name_of(int rank) const;
  Error relayed(int rank, const std::pair<ErrorCode, std::string>& failure) const;
  void check_processes(const std::string& waiting_for) const;
  void check_control_pages(const std::string& waiting_for) const;
  void warn(const std::string& waiting_for);

  std::vector<Peer> peers_;
  const Controls* controls_ = nullptr;
  std::atomic<const WatchedPeers*> liveness_{nullptr};
  std::vector<std::shared_ptr<const WatchedPeers>> owned_;  ///< all pages used so far
  std::uint32_t call_ = 0;
  std::int64_t next_poll_ns_ = 0;
  WaitWarning warning_;
  std::unique_ptr<HangWatch> hang_;  ///< null until the communicator is complete
  std::atomic<bool> aborted_{false};
  std::function<bool()> meanwhile_;
  std::function<void()> interrupt_;
  std::function<void()> remote_check_;
  std::vector<std::string> names_;
};

}  // namespace plait
