// Exchanges set-up records between the ranks of a communicator that NCCL has just made: through
// shared memory if all ranks are on this host, else by ncclAllGather of 4096 bytes a rank.
#pragma once
#include <string>
#include <vector>

#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

inline constexpr std::size_t kSetupBytes = 4096;

/// Waits until NCCL has made the communicator or a child, or has taken a call, in the background.
/// Throws if NCCL failed, the wait is cancelled, or the time is over. One thread at a time per
/// communicator.
void wait_ready(CommState& state);
/// Throws Error(aborted) if the program ends the communicator while plait attaches.
void require_not_cancelled(const CommState& state);

class SetupExchange {
 public:
  /// Meets the peers of this host; prepares the exchange over NCCL if they are not all ranks.
  explicit SetupExchange(CommState& state);
  /// Adds a barrier of the `count` ranks of this process before each exchange over NCCL. Allocating
  /// may wait for every kernel of the process. Without the barrier, an NCCL kernel of a rank could
  /// wait for a rank that still allocates, for ever.
  void synchronize_process(const std::string& name, int count) {
    barrier_name_ = name, in_process_ = count;
  }
  /// Returns a word that no other communicator has, the same on all ranks; empty if ranks exchange
  /// over NCCL.
  std::string word_of_all() const {
    return met_here_ ? state_.meeting->word_of_all() : std::string();
  }
  /// Ends later exchanges with an error when any of the peers dies.
  void watch_for(std::shared_ptr<const WatchedPeers> peers) { peers_ = std::move(peers); }
  /// Returns all ranks' records. Throws AgreedError if a peer sends another format.
  std::vector<std::string> allgather(const std::string& mine);

 private:
  /// Returns a function that throws if this round is pointless.
  std::function<void()> give_up();
  std::vector<std::string> allgather_over_nccl(const std::string& mine);

  CommState& state_;
  bool met_here_ = false;  ///< all ranks are on this host
  std::shared_ptr<const WatchedPeers> peers_;
  std::string barrier_name_;
  int in_process_ = 1;
  int round_ = 0;
};

}  // namespace plait::nccl
