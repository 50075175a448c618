// State and internal functions of Communicator, shared by the source files.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error_reason.hpp"
#include "base/forks.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/choose/choose.hpp"
#include "comm/gpu/gpu_side.hpp"
#include "comm/multinode/gpu_multinode.hpp"
#include "comm/multinode/multinode.hpp"
#include "comm/node/setup.hpp"
#include "comm/p2p/pairs.hpp"
#include "comm/shm/buffers.hpp"
#include "plait/communicator.hpp"

namespace plait {

/// A call as written by the caller, with plan and descriptor; cached for equal calls.
struct CachedCall {
  Request request;
  std::string strategy;
  std::map<std::string, std::int64_t> params;
  std::shared_ptr<const ProvedPlan> plan;
  CallDescriptor shown;
  bool is_of(const Request& request_given, const CallOptions& how) const {
    return request == request_given && strategy == how.strategy && params == how.params;
  }
};

struct Communicator::State {
  CommunicatorOptions options;
  Multinode multinode;  ///< null transport_comm = all ranks are on one host
  Joined joined;        ///< set-up result for the ranks of my node
  std::string why_no_gpu;
  std::unique_ptr<GpuSide> device;      ///< null = host memory only
  std::unique_ptr<GpuMultinode> rails;  ///< NCCL between nodes; null = none
  Peers peers;
  Chooser chooser;
  std::vector<Mapping> arena_memory;
  Arenas arenas;
  std::uint32_t call = 0;   ///< number of the current or last call
  std::uint32_t epoch = 0;  ///< value to which flags in these arenas have been raised
  int parity = 0;
  const pid_t owner = getpid();  ///< a forked child must not act for the parent
  std::mutex calling;
  std::atomic<std::thread::id> caller{std::this_thread::get_id()};  ///< thread of the last call
  WritablePages writable;
  const std::uint32_t forks = forks_so_far();
  std::mutex guard;  ///< guards failure, counters, cached_calls and remote_pairs
  std::array<std::shared_ptr<const CachedCall>, 16> cached_calls;
  std::optional<Error> failure;
  Counters counters;  ///< without the last calls of plan `counted`:
  std::shared_ptr<const ProvedPlan> counted;
  std::uint64_t counted_calls = 0;
  std::unique_ptr<PairCommunicators> pairs;  ///< with ranks of my node
  /// With ranks of other nodes, by rank.
  std::map<int, std::unique_ptr<Communicator>> remote_pairs;

  /// For a pair with a rank of another node: the larger communicator, owner of the GPUs.
  struct RemoteLink {
    const State* whole = nullptr;  ///< null = no pair across nodes, or no GPUs
    int peer = 0;                  ///< the peer's rank in `whole`
  } remote_link;
  std::string about;         ///< for a pair: prefix of errors
  std::vector<int> devices;  ///< for a pair: devices in the topology

  State(const CommunicatorOptions& given, const PairOf* pair, Multinode nodes);
  ~State();
  bool is_caller() const { return caller.load() == std::this_thread::get_id(); }
  int rank() const { return options.rank; }
  int ranks() const { return options.ranks; }
  int local_rank() const { return joined.controls.rank(); }
  int local_ranks() const { return joined.controls.ranks(); }
  Deadline deadline_after(double seconds);
  Joined join_nodes(const PairOf* pair);
  CommunicatorOptions in_node() const;
  std::unique_ptr<GpuSide> multinode_device(const PairOf* pair);
  NodeSide node_side();
  void join_rails();
  void name_peers();
  std::vector<double> scalars_of(const ProvedPlan& plan);
  using Body = std::function<void()>;
  void in_call(const CallDescriptor& mine, const Body& body, const OwnCounts* counts = nullptr);
  Request completed(const Request& given, const OwnCounts& mine);
  std::unique_lock<std::mutex> begin();
  GpuSide& gpu() const;
  /// The GPU side that this communicator's arrays may be on; null = no GPU.
  const GpuSide* gpu_side() const {
    return remote_link.whole != nullptr ? remote_link.whole->device.get() : device.get();
  }
  void send_remote(const Request& request, const void* input, void* output, void* stream,
                   const CallOptions& how) const;
  void run(const std::shared_ptr<const ProvedPlan>& plan, const void* input, void* output);
  std::shared_ptr<const CachedCall> call_of(const Request& given, const CallOptions& how);
  Request placed(const Request& request) const;
  std::shared_ptr<const ProvedPlan> plan_for(const Request& request, const CallOptions& how);
  std::optional<Error> agree(const CallDescriptor& mine, const OwnCounts* counts);
  void ensure_arenas(const ArenaSizes& wanted);
  void count(const std::shared_ptr<const ProvedPlan>& plan);
  Counters counted_so_far();
  void fail(const Error& error);
  std::optional<Error> failed();
  void end_device_work();
  template <class Work>
  void with_context(const Work& work) const;
  CommunicatorOptions pair_options(const PairOf& pair) const;
  std::unique_ptr<Communicator> make_pair(int peer);
  void rename(PairOf& pair) const;
  Communicator& remote_pair(int peer);
  Communicator& pair_with(int peer);
  std::vector<Communicator*> all_pairs();
};

/// Runs `work`; errors of a pair get the prefix `about`.
template <class Work>
void Communicator::State::with_context(const Work& work) const {
  try {
    work();
  } catch (const Error& error) {
    if (about.empty()) throw;
    throw Error(error.code(), about + reason_of(error));
  }
}

}  // namespace plait
