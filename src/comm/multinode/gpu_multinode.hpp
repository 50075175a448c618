// GPUs of several nodes for plait's own communicators: plait's engines in each node, NCCL between
// nodes, found at run time. No call waits on the host, so the process's watch thread checks NCCL
// and the node meanwhile.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/bootstrap/socket.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "comm/liveness/peer_watch.hpp"
#include "comm/multinode/node_program_runner.hpp"
#include "gpu/device/event_marker.hpp"

namespace plait {

/// This rank's connection to the node.
struct NodeSide {
  GpuCalls* calls = nullptr;
  /// The error that ended the node side; any thread.
  std::function<std::optional<Error>()> failure;
  /// Ends the node side and reports to the node's ranks; any thread.
  std::function<void(const Error&)> fail;
  /// poll_failures ends the node side if a rank of another node has published a failure.
  /// publish_failure reports this side's failure to other nodes. Only the thread that makes this
  /// rank's calls uses the callbacks. Null = no reports between nodes.
  std::function<void()> poll_failures = {};
  std::function<void(const Error&)> publish_failure = {};
  std::function<std::string(int rank)> name = {};  ///< name of any rank of all nodes, for messages
};

struct GpuMultinodeOptions {
  CallOptions forced;    ///< parsed PLAIT_ALGO
  bool bitwise = false;  ///< only sums in `order`
  SumOrder order = SumOrder::rank_order;
  bool mixes_graphs = true;
  double arrive_s = 600;  ///< longest time that a call between nodes may stall, or be inside NCCL
};

class GpuMultinode : private PeerObserver {
 public:
  /// Called by all ranks of all nodes together. Throws alike on all ranks: AgreedError(unsupported)
  /// if a rank has no NCCL, timeout if a rank does not come, peer_lost.
  GpuMultinode(const Nodes& nodes, NodeSide side, const GpuMultinodeOptions& options,
               const cuda::Exchange& exchange, const Deadline& deadline);
  /// Waits up to 2 s for calls under way, then aborts them.
  ~GpuMultinode() override;
  GpuMultinode(const GpuMultinode&) = delete;
  GpuMultinode& operator=(const GpuMultinode&) = delete;

  /// Like Communicator::enqueue. A call that stalls for arrive_s fails with timeout, unless
  /// captured in a graph.
  void enqueue(const Request& request, const void* input, void* output, void* stream,
               const CallOptions& options);
  /// Enqueues this rank's end of a copy or send_recv with rank `peer` of another node. `me` is this
  /// rank's number in the request of two ranks. Runs in order with all calls of this rank. A
  /// stalled message names the peer and ends all calls between nodes, since all use the same
  /// communicator.
  void message(int peer, const Request& request, int me, const void* input, void* output,
               void* stream, bool polls);
  /// Throws the first error. Peers get 1 s to publish the cause, since NCCL's errors name no rank.
  /// polls: true in the thread that makes this rank's calls.
  void check(bool polls);
  /// Ends all waits between nodes. Any thread.
  void abort() noexcept { runner_->nccl_transport().abort(); }
  std::string explain(const Request& request);
  /// Adds the calls of all nodes and the bytes by path. Path "nccl" counts bytes between nodes.
  void add_to(Counters& counters) const;

 private:
  /// Tracks a call between nodes by two events on the side stream.
  struct CrossNodeCall {
    cuda::Event started = nullptr, ended = nullptr;
    int peer = kAll;
    bool is_used = false;
    std::int64_t seen_ns = 0;
  };
  static constexpr int kAll = -1;
  CrossNodeCall* free_cross_call();
  void require_order(const Request& request, const NodeProgram& program) const;
  void put(cuda::Stream stream, int peer, bool polls, const std::function<void()>& work);
  void put_in_order(cuda::Stream stream, int peer, bool& is_eager,
                    const std::function<void()>& work);
  void count(const std::string& as, std::uint64_t bytes);
  void lost(int, int, Loss) override {}  // the node side handles lost ranks
  void fail_streams() noexcept override {}
  void look() override;
  void query() override;
  std::optional<Error> stuck_in_nccl();
  std::optional<Error> stalled_call();
  Error with_suspects(ErrorCode code, const std::string& what, int peer) const;
  void fail_and_abort() noexcept;
  void abort_nccl(const Error& said);
  bool is_unexplained();
  void await_explanation(bool polls);
  void adopt_nccl_error();
  void poll_failures(bool now);
  void publish_failure(const Error& cause);

  NodeSide side_;
  GpuMultinodeOptions options_;
  int rank_ = 0, ranks_ = 0;
  nccl::SideStream* side_stream_ = nullptr;
  std::unique_ptr<NodeProgramRunner> runner_;
  cuda::EventMarker marker_{cuda::api()};
  cuda::CallOrder<cuda::EventMarker, cuda::Stream> order_;
  std::mutex calling_;                  ///< serialises calls of the communicator and pairs
  std::atomic<int> inside_with_{kAll};  ///< peer of the call that may be inside NCCL
  /// Guards the next two; a thread that finds the lock taken skips the poll.
  std::mutex poll_guard_;
  std::int64_t next_poll_ns_ = 0;
  bool has_published_ = false;
  mutable std::mutex guard_;  ///< guards the members below
  Counters counters_;
  std::deque<CrossNodeCall> cross_calls_;
  std::optional<Error> nccl_error_;  ///< the first error of NCCL, or of a stalled call
  std::int64_t explain_until_ns_ =
      0;  ///< from then on nccl_error_ is the cause, unless another is known
};

}  // namespace plait
