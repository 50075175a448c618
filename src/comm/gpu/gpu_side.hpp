// GPU side of plait's own communicators: ranks joined over sockets get calls on their GPUs. No call
// waits for peers on the host; the process's watch thread checks the peers.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/gpu/device_side.hpp"
#include "comm/gpu/first_start.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "comm/liveness/peer_watch.hpp"
#include "comm/trace/hang.hpp"

namespace plait {

class GpuSide : public DeviceSide, private PeerObserver {
 public:
  /// Called by all ranks together. Returns null on all ranks if the options name no device, or
  /// leave the choice to the launcher and a rank has no working GPU (`why_not` says why). Throws
  /// AgreedError alike on all ranks. pair: null = not a pair of a larger communicator. host:
  /// outlives this object.
  static std::unique_ptr<GpuSide> create(const CommunicatorOptions& options, HostSide& host,
                                         const PairOf* pair, std::string& why_not);
  /// Frees memory that peers may still write to once all have detached: at once if that takes only
  /// a moment, else later in a thread (base/deferred_teardown.hpp).
  ~GpuSide() override;
  GpuSide(const GpuSide&) = delete;
  GpuSide& operator=(const GpuSide&) = delete;

  void enqueue(const Request& request, const void* input, void* output, void* stream,
               const CallOptions& options) override;
  void enqueue(const RmsNorm& norm, const RmsNormBuffers& buffers, void* stream,
               const CallOptions& options) override;
  void check() override;
  void require_suspendable() const override {}
  void finish_work() const override;
  void suspend() override;
  void resume() override { calls_->resume(peers_check_until_late("the ranks resume")); }
  GpuMemory gpu_memory() const override { return calls_->rank().gpu_memory(); }
  const Topology& topology() const { return calls_->group().topology; }
  const Topology& topology_or(const Topology&) const override { return topology(); }
  std::string tuning_file(const std::string& nccl) const override {
    return plait::tuning_file(read_env(), calls_->group(), nccl);
  }
  bool on_device(const void* pointer) const override { return calls_->on_device(pointer); }
  std::string explain(const Request& request) override { return calls_->explain(request); }
  void add_to(Counters& counters) const override { calls_->add_to(counters); }
  void abort() noexcept override;
  void begin_closing() override;
  void end_work() override;
  std::shared_ptr<const WatchedPeers> peers() const override { return peers_; }
  void lend_to(PairOf& pair) const override;
  GpuCalls& calls() const { return *calls_; }
  /// The error that ended this side. Any thread.
  std::optional<Error> cause() const;
  void fail(const Error& error);

 private:
  GpuSide(const CommunicatorOptions& options, HostSide& host, const PairOf* pair);
  void set_up(const cuda::Exchange& exchange, const Deadline& deadline);
  GpuCallsOptions calls_options(const Env& env, const GpuGroup& group) const;
  void bootstrap_peers(const Deadline& deadline);
  void lost(int rank, int process, Loss how) override;
  void look() override;
  void query() override;
  void check_running() const;
  std::function<void()> peers_check_until_late(const char* step);
  /// Enqueues by `body`, with the request in the recorder of calls.
  template <class Body>
  void record(const Request& request, const Body& body);
  void watch_peers();
  void end_flight();
  void fail_streams() noexcept override { calls_->rank().fail(); }
  void leave();
  std::string name_of(int rank) const;

  CommunicatorOptions options_;
  HostSide& host_;
  const std::optional<std::uint64_t> pair_bytes_;  ///< device memory of a pair; none = no pair
  const std::string pair_through_host_;  ///< PairOf::through_host; empty = no reason, or no pair
  std::unique_ptr<GpuCalls> calls_;
  mutable std::mutex guard_;  ///< guards cause_
  std::optional<Error> cause_;
  std::atomic<bool> failed_{false};
  std::int64_t closed_ns_ = 0;  ///< set by closing: end of the wait for own work
  bool has_ended_ = false;      ///< this rank's work has ended, or the wait timed out
  std::shared_ptr<WatchedPeers> peers_;
  std::unique_ptr<Flight> flight_;  ///< null for one rank
  std::unique_ptr<HangWatch> hang_;
  /// This rank's slot on the process's liveness page; given back unless a deferred teardown takes
  /// the slot.
  struct LivenessSlot {
    int number = -1;
    ~LivenessSlot() { publish_detach(number, DetachStage::unmapped); }
  } liveness_slot_;
};

}  // namespace plait
