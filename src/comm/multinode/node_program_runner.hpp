// Runs calls on GPUs of several nodes, for the drop-in under NCCL and for plait's own
// communicators. Steps in a rank's node go on the caller's stream, NCCL calls between nodes on a
// side stream, so a piece travels while the next is reduced (Micro 2021).
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "base/lru_cache.hpp"
#include "comm/multinode/node_program.hpp"
#include "comm/transport/nccl/nccl_transport.hpp"
#include "comm/transport/nccl/side_stream.hpp"

namespace plait {

/// Calls among the ranks of a node, made by the owner of the node's engines.
struct InNode {
  /// Whether a request is served; the same on all ranks of all nodes. Null = all are served.
  std::function<bool(const Request&)> takes;
  std::function<void(const Request&, const void* input, void* output, cuda::Stream stream)> enqueue;
};

class NodeProgramRunner {
 public:
  /// forced: PLAIT_ALGO if it names a multi-node strategy. bitwise: prefer sums in `order`.
  NodeProgramRunner(Nodes nodes, InNode inside, std::unique_ptr<nccl::SideStream> side,
                    std::unique_ptr<nccl::NcclTransport> nccl_transport, CallOptions forced,
                    bool bitwise, SumOrder order = SumOrder::rank_order);

  /// Returns the program of the request, made once. Any thread. Throws Error(unsupported) if a
  /// strategy named by the caller cannot serve the request.
  std::shared_ptr<const NodeProgram> program(const Request& request, const CallOptions& options);
  /// Enqueues the program in stream order. Does not check the memory.
  void enqueue(const NodeProgram& program, const void* input, void* output, cuda::Stream stream,
               double scalar = 1.0);
  nccl::NcclTransport& nccl_transport() { return *nccl_transport_; }
  const Nodes& nodes() const { return nodes_; }

 private:
  bool is_served(const NodeProgram& program) const;

  const Nodes nodes_;
  InNode inside_;
  std::unique_ptr<nccl::SideStream> side_;
  std::unique_ptr<nccl::NcclTransport> nccl_transport_;
  const CallOptions forced_;
  const bool bitwise_;
  const SumOrder order_;
  using Key = std::tuple<int, std::uint64_t, int, int, int, int, std::string,
                         std::map<std::string, std::int64_t>>;
  std::mutex guard_;
  LruCache<Key, std::shared_ptr<const NodeProgram>> programs_{4096};
};

}  // namespace plait
