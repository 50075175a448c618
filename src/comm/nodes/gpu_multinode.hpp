// GPUs of several nodes for communicators of plait's own: plait in each node, NCCL between them,
// found at run time. The process's watch looks after NCCL and the node meanwhile, since no call
// waits on the host.
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
#include "comm/nodes/node_program_runner.hpp"
#include "exec/cuda/device/event_marker.hpp"

namespace plait {

/// This rank in its node.
struct NodeSide {
  GpuCalls* calls = nullptr;
  std::function<std::optional<Error>()> failure;  ///< what ended it; any thread
  std::function<void(const Error&)> fail;  ///< ends it, and tells the node's ranks; any thread
  /// What ranks of other nodes have told ends it; and they are told what has ended it. By who makes
  /// this rank's calls alone. Null = nobody hears.
  std::function<void()> poll_failures = {};
  std::function<void(const Error&)> publish_failure = {};
  std::function<std::string(int rank)> name = {};  ///< of any rank of all nodes, for people
};

struct GpuMultinodeOptions {
  CallOptions forced;    ///< PLAIT_ALGO
  bool bitwise = false;  ///< sums in rank order alone
  bool mixes_graphs = true;
  double arrive_s = 600;  ///< how long a call between nodes may stand still, or be inside NCCL
};

class GpuMultinode : private PeerObserver {
 public:
  /// All ranks of all nodes together. Throws on all of them alike: AgreedError(unsupported) where
  /// one has no NCCL, timeout where one does not come, peer_lost.
  GpuMultinode(const Nodes& nodes, NodeSide side, const GpuMultinodeOptions& options,
               const cuda::Exchange& exchange, const Deadline& deadline);
  /// Waits a moment for what is under way; what stands still is aborted.
  ~GpuMultinode() override;
  GpuMultinode(const GpuMultinode&) = delete;
  GpuMultinode& operator=(const GpuMultinode&) = delete;

  /// As Communicator::enqueue. A call that stands still for arrive_s is an error (timeout), unless
  /// it was captured in a graph.
  void enqueue(const Request& request, const void* input, void* output, void* stream,
               const CallOptions& options);
  /// This rank's end of what it and `peer` alone move, a rank of another node: a copy, or a
  /// send_recv of these two, of which it is number `me`. In order with all calls of this rank. One
  /// that stands still names the peer, and ends all calls between nodes, whose communicator it is.
  void message(int peer, const Request& request, int me, const void* input, void* output,
               void* stream, bool polls);
  /// Throws what was met first. Where NCCL alone has failed, which names nobody, a rank that knows
  /// why has a moment to tell. hears: this is the thread that makes this rank's calls.
  void check(bool polls);
  /// What waits between nodes ends. Any thread.
  void abort() noexcept { runner_->nccl_transport().abort(); }
  std::string explain(const Request& request);
  /// Calls of all nodes, and bytes by path; "nccl" is what went between nodes.
  void add_to(Counters& counters) const;

 private:
  /// A call between nodes, as far as its events tell: when it began there, and whether it is over.
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
  void put_in_order(cuda::Stream stream, int peer, const std::function<void()>& work);
  void count(const std::string& as, std::uint64_t bytes);
  void lost(int, int, Loss) override {}  // the node's side is told
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
  std::mutex calling_;                  ///< the communicator's calls, and those of its pairs
  std::atomic<int> inside_with_{kAll};  ///< whom the call that may be inside NCCL is with
  std::mutex poll_guard_;  ///< of these two; who finds it taken leaves that to the other
  std::int64_t next_poll_ns_ = 0;
  bool has_published_ = false;
  mutable std::mutex guard_;  ///< of those below
  Counters counters_;
  std::deque<CrossNodeCall> cross_calls_;
  std::optional<Error> nccl_error_;    ///< by NCCL, or that it stands still: the first
  std::int64_t explain_until_ns_ = 0;  ///< then it is the cause, unless another is known
};

}  // namespace plait
