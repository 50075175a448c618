// What carries cards between the ranks of a communicator that NCCL has just made: ncclAllGather, of
// 4096 bytes a rank.
#pragma once
#include <string>
#include <vector>

#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

inline constexpr std::size_t kSetupBytes = 4096;

/// Returns when NCCL has made the communicator or its child, or taken a call, in the background.
/// Throws where it failed, was ended, or takes too long. By one thread a communicator at a time.
void wait_ready(CommState& state);

class SetupExchange {
 public:
  explicit SetupExchange(CommState& state);
  /// From here on, the `count` ranks of this process meet before each exchange. Allocating may wait
  /// for every kernel of the process: a rank whose NCCL kernel already waits for a rank that still
  /// allocates would wait for ever.
  void synchronize_process(const std::string& name, int count) {
    barrier_name_ = name, in_process_ = count;
  }
  /// From here on, an exchange that waits for one of them ends when it dies.
  void watch_for(std::shared_ptr<const WatchedPeers> peers) { peers_ = std::move(peers); }
  /// All ranks' bytes. AgreedError where what comes is no card.
  std::vector<std::string> allgather(const std::string& mine);

 private:
  CommState& state_;
  std::shared_ptr<const WatchedPeers> peers_;
  std::string barrier_name_;
  int in_process_ = 1;
  int round_ = 0;
};

}  // namespace plait::nccl
