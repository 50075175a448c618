// Chooses between the strategies over nodes and a library's own call, for ranks of several nodes.
#pragma once
#include <cstdint>
#include <string>

#include "comm/bootstrap/nodes.hpp"
#include "plait/communicator.hpp"

namespace plait {

/// Number of rails (ranks of equal place in all nodes): as many as the smallest node has ranks.
int rails_of(const Nodes& nodes);
/// Shorter all_reduces go to NCCL if no strategy is named. Under NCCL on two nodes of two GPUs,
/// multi_node had 0.65 to 0.71 of NCCL's speed at 64 KiB and 1.4 times from 1 MiB on. The value is
/// halfway, since nothing between was measured (E-0392).
inline constexpr std::uint64_t kLeastNodeBytes = 256ull << 10;
/// Least all_reduces over RDMA NICs, where nothing was measured, by simulation with engines inside
/// nodes (E-0490). With faster NICs the least message is larger. Shorter messages are NCCL's: the
/// prediction changes sides with NCCL's protocols, and leaves out the waits between streams.
/// Between more than two nodes NCCL's trees send twice.
inline constexpr std::uint64_t kLeastRdmaBytes = 16ull << 20, kLeastRdmaBytesOfMany = 4ull << 20;
/// Faster networks are NCCL's. NCCL's one kernel keeps NICs and NVLink busy at once, and plait's
/// steps in a node and between nodes take turns: with NICs of 3200 Gb/s a node multi_node takes up
/// to 1.44 times as long.
inline constexpr double kMostNetworkGbPerS = 200;
/// True if strategy node_order serves the request: sums in rank order over two nodes.
bool serves_node_order(const Nodes& nodes, const Request& request);
/// Whether sums in each of two nodes, added by NCCL, are the tree of all ranks: a sum of two has
/// one order. In `tree` only types that hold partial sums, since a node's sum is rounded to the
/// type.
bool serves_node_tree(const Nodes& nodes, const Request& request, SumOrder order);
/// Returns why NCCL does the call if the caller names no strategy, for messages; empty if plait
/// does the call. bitwise: PLAIT_BITWISE=1, a demand for equal bits rather than speed.
std::string why_library(const Nodes& nodes, const Request& request, bool bitwise,
                        SumOrder order = SumOrder::rank_order);
/// Returns the strategy if the caller names none. Depends on the request and the nodes alone.
/// bitwise: prefer rank order.
CallOptions multinode_options(const Nodes& nodes, const Request& request, bool bitwise,
                              SumOrder order = SumOrder::rank_order);
/// Returns PLAIT_ALGO if it names a multi-node strategy, else nothing.
CallOptions multinode_algo(const std::string& algo);

}  // namespace plait
