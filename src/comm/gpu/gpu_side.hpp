// GPU side of plait's own communicators: ranks joined over sockets get calls on their GPUs. No call
// waits for peers on the host; the process's watch thread checks the peers.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/gpu/gpu_calls.hpp"
#include "comm/liveness/peer_watch.hpp"
#include "comm/node/setup.hpp"

namespace plait {

class GpuSide : private PeerObserver {
 public:
  /// Called by all ranks together. Returns null on all ranks if the options name no device, or
  /// leave the choice to the launcher and a rank has no working GPU (`why_not` says why). Throws
  /// AgreedError alike on all ranks. pair: null = not a pair of a larger communicator.
  static std::unique_ptr<GpuSide> create(const CommunicatorOptions& options, Joined& joined,
                                         const PairOf* pair, std::string& why_not);
  /// Frees memory that peers may still write to once all have detached: at once if that takes only
  /// a moment, else later in a thread (base/deferred_teardown.hpp).
  ~GpuSide() override;
  /// Called before several are destroyed. Starts the time limit for own work, so that the waits of
  /// several communicators do not add up.
  void begin_closing();
  void end_work();
  GpuSide(const GpuSide&) = delete;
  GpuSide& operator=(const GpuSide&) = delete;

  int ordinal() const { return calls_->ordinal(); }
  const Topology& topology() const { return calls_->group().topology; }
  /// Like Communicator::enqueue.
  void enqueue(const Request& request, const void* input, void* output, void* stream,
               const CallOptions& options);
  /// Like Communicator::check.
  void check();
  /// Makes waiting kernels give up. Any thread.
  void abort() noexcept;
  GpuCalls& calls() const { return *calls_; }
  /// The peers; null if there are none.
  std::shared_ptr<const WatchedPeers> peers() const { return peers_; }
  /// The error that ended this side. Any thread.
  std::optional<Error> cause() const;
  void fail(const Error& error);

 private:
  GpuSide(const CommunicatorOptions& options, Joined& joined, const PairOf* pair);
  void set_up(const cuda::Exchange& exchange);
  GpuCallsOptions calls_options(const Env& env, const GpuGroup& group) const;
  void bootstrap_peers(const Deadline& deadline);
  void lost(int rank, int process, Loss how) override;
  void look() override;
  void fail_streams() noexcept override { calls_->rank().fail(); }
  void leave();
  std::string name_of(int rank) const;

  CommunicatorOptions options_;
  Joined& joined_;
  const std::optional<std::uint64_t> pair_bytes_;  ///< device memory of a pair; none = no pair
  const pid_t owner_;
  std::unique_ptr<GpuCalls> calls_;
  mutable std::mutex guard_;  ///< guards cause_
  std::optional<Error> cause_;
  std::atomic<bool> failed_{false};
  std::int64_t closed_ns_ = 0;  ///< set by closing: end of the wait for own work
  bool has_ended_ = false;      ///< this rank's work has ended, or the wait timed out
  std::shared_ptr<WatchedPeers> peers_;
  /// This rank's slot on the process's liveness page; given back unless a deferred teardown takes
  /// the slot.
  struct LivenessSlot {
    int number = -1;
    ~LivenessSlot() { publish_detach(number, DetachStage::unmapped); }
  } liveness_slot_;
};

}  // namespace plait
