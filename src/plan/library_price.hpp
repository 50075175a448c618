// What a call of the library between nodes costs: the way it chooses, the time that takes whatever
// its bytes, and what each member sends to whom.
// Sources: NCCL 2.30.7, src/graph/tuning.cc (latencies, efficiencies, rings, trees, PAT); for MPI
// alpha and beta over the classic algorithms (Thakur et al., IJHPCA 2005).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// Bytes that a member sends to another in the course of a call.
struct Sending {
  int from = 0;  ///< member
  int to = 0;
  double bytes = 0.0;
};

struct LibraryPrice {
  std::string algorithm;  ///< "ring LL128"
  double fixed_ns = 0.0;  ///< before the bytes
  /// All at once, in the order of senders; protocol and efficiency are counted as bytes.
  std::vector<Sending> sendings;
  double alone_ns = 0.0;  ///< all of it, with nothing else on the links
};

using LibraryPrices = std::vector<std::shared_ptr<const LibraryPrice>>;

/// Of each of the plan's calls; calls that are alike share theirs. `devices`: the topology's device
/// of each of the plan's ranks.
LibraryPrices prices_of(const Plan& plan, const Topology& topology,
                        const std::vector<int>& devices);
/// The links of the best path between two devices; none where there is no path, or one device.
std::vector<int> links_between(const Topology& topology, int src_device, int dst_device);

}  // namespace plait
