// Ranks of H200s, a process each, for tests over the fake driver.
#pragma once
#include <string>

#include "comm/gpu/gpu_calls.hpp"

namespace plait_test {

/// why: this rank's reason for arenas in host memory; empty = none.
inline plait::GpuGroup h200_group(int rank, int ranks, const plait::cuda::Exchange& exchange,
                                  const std::string& why) {
  plait::GpuGroup group;
  group.rank = rank;
  group.ranks = ranks;
  group.ordinals.assign(static_cast<std::size_t>(ranks), 0);
  group.kind = "NVIDIA H200";
  group.in_processes = true;
  group.topology = plait::load_topology("hgx-h200");
  agree_on_arenas(group, exchange, why);
  return group;
}

}  // namespace plait_test
