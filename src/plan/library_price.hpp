// Cost of a call of the library between nodes (NCCL or MPI): the chosen algorithm, the fixed time,
// and the bytes that each member sends. The simulator and the cost model use it. Sources: NCCL
// 2.30.7, src/graph/tuning.cc (latencies, efficiencies, rings, trees, PAT); for MPI alpha and beta
// over the classic algorithms (Thakur et al., IJHPCA 2005).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// Bytes from a member of a call to another member.
struct Sending {
  int from = 0;  ///< index of the member
  int to = 0;
  double bytes = 0.0;
};

struct LibraryPrice {
  std::string algorithm;  ///< "ring LL128"
  double fixed_ns = 0.0;  ///< latency, whatever the number of bytes
  /// All at once, in order of senders. A protocol's inefficiency counts as more bytes.
  std::vector<Sending> sendings;
  double alone_ns = 0.0;  ///< total time if nothing else uses the links
};

using LibraryPrices = std::vector<std::shared_ptr<const LibraryPrice>>;

/// Returns the price of each of the plan's calls; equal calls share a price. `devices`: topology
/// device of each of the plan's ranks.
LibraryPrices prices_of(const Plan& plan, const Topology& topology,
                        const std::vector<int>& devices);
/// Links of the best path between two devices; empty without a path, or for a single device.
std::vector<int> links_between(const Topology& topology, int src_device, int dst_device);

}  // namespace plait
