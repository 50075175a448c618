// The GPU side of a communicator of plait's own: ranks that have met over sockets -> calls on their
// GPUs. The process's watch looks after the other ranks meanwhile, since no call of ours waits for
// them.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/bootstrap/setup.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "comm/liveness/peer_watch.hpp"

namespace plait {

class GpuSide : private PeerObserver {
 public:
  /// All ranks together; null on all where the options ask for no device, or leave it to the
  /// launcher and some rank has none, or none that works: `why_not` says so. Throws AgreedError on
  /// all ranks alike.
  /// pair: null = not of two ranks of a larger communicator.
  static std::unique_ptr<GpuSide> create(const CommunicatorOptions& options, Joined& joined,
                                         const PairOf* pair, std::string& why_not);
  /// What the others may still write into is freed when they are through: now, where that takes no
  /// longer than a moment, or later by a thread (base/deferred_teardown.hpp).
  ~GpuSide() override;
  /// Before several are destroyed: own work is awaited for a moment from now on, then all ranks are
  /// told that this one is through; so their waits do not add up.
  void begin_closing();
  void end_work();
  GpuSide(const GpuSide&) = delete;
  GpuSide& operator=(const GpuSide&) = delete;

  int ordinal() const { return calls_->ordinal(); }
  const Topology& topology() const { return calls_->group().topology; }
  /// As Communicator::enqueue.
  void enqueue(const Request& request, const void* input, void* output, void* stream,
               const CallOptions& options);
  /// As Communicator::check.
  void check();
  /// Kernels that wait give up. Any thread.
  void abort() noexcept;
  GpuCalls& calls() const { return *calls_; }
  /// The other ranks; null where there are none.
  std::shared_ptr<const WatchedPeers> peers() const { return peers_; }
  /// What ended this side, and its end; any thread.
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
  const std::optional<std::uint64_t> pair_bytes_;  ///< of device memory; none = it is no pair
  const pid_t owner_;
  std::unique_ptr<GpuCalls> calls_;
  mutable std::mutex guard_;  ///< of cause_
  std::optional<Error> cause_;
  std::atomic<bool> failed_{false};
  std::int64_t closed_ns_ = 0;  ///< when closing: own work is awaited until then
  bool has_ended_ = false;      ///< this rank's work, or it was waited for in vain
  std::shared_ptr<WatchedPeers> peers_;
  /// This rank's on its process's page, given back where nobody leaves by it.
  struct LivenessSlot {
    int number = -1;
    ~LivenessSlot() { publish_detach(number, DetachStage::unmapped); }
  } liveness_slot_;
};

}  // namespace plait
