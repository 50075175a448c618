// Ranks' GPUs in a topology, and the links that masks leave to kernels and copy engines. Kernels
// and copy engines store directly into peers' memory and use host memory, whatever the topology
// says. Plans follow the topology, as far as memory allows.
#pragma once
#include <string>
#include <vector>

#include "base/env.hpp"
#include "plait/plan.hpp"
#include "plait/topology.hpp"

namespace plait {

struct Reach {
  std::string why_no_kernels;  ///< empty = every pair of GPUs has a direct link
  bool host = true;            ///< every GPU reaches host memory
};

/// Says why no kernel runs if masks have left out the link from a rank to another.
std::string why_no_link(std::size_t from, std::size_t to);

/// devices: of the ranks, in the masked topology. A pair without a link never had a link unless a
/// mask names a link between two GPUs.
Reach reach_of(const Topology& topology, const std::vector<int>& devices,
               const std::vector<std::string>& masks);

/// Removes paths over GPUs outside `devices`.
Topology without_others(const Topology& topology, const std::vector<int>& devices);
/// Returns the number of each rank's island, from the peers of each rank as '1' by rank: all ranks
/// of an island address each other. Empty if no island has two ranks.
std::vector<int> islands_of(const std::vector<std::string>& direct);

/// Returns the topology's device of this GPU: by uuid if the topology has uuids, else by CUDA
/// ordinal; -1 = none.
int device_of_gpu(const Topology& topology, const std::string& uuid, int ordinal);

/// Returns `given`, or PLAIT_WITHOUT if that is empty.
std::vector<std::string> requested_masks(const std::vector<std::string>& given, const Env& env);
/// Returns the masks of links between GPUs, or (shm:) of links between processes.
std::vector<std::string> masks_of(const std::vector<std::string>& masks, bool between_processes);

}  // namespace plait
