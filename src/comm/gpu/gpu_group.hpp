// What the ranks of one machine agree on about their GPUs, whatever carries their bytes: the same
// value on all of them, from which every later decision follows.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "comm/gpu/reach.hpp"
#include "exec/cuda/tuning_table.hpp"
#include "plait/topology.hpp"

namespace plait {

struct GpuGroup {
  int rank = 0;
  int ranks = 1;
  std::vector<int> ordinals;       ///< by rank: CUDA's number there
  std::vector<std::string> uuids;  ///< by rank
  std::string kind;                ///< that all GPUs are of; empty = of several
  bool in_processes = false;       ///< each rank is in one of its own
  Topology topology;               ///< of the GPUs; no devices where nothing is known of them
  std::string why_no_topology;
  std::vector<int> devices;  ///< by rank, in `topology`; empty = the first ones
  Reach reach;               ///< what masks leave to kernels
  cuda::TuningTable tuning;  ///< rank 0's; empty = by what is built in

  /// As many as the topology has.
  std::vector<int> devices_of_ranks() const;
};

/// All ranks together: each shows its GPU. Error(invalid_argument) where two have the same,
/// no_device or unsupported where this rank's is none.
GpuGroup bootstrap_gpus(const cuda::Exchange& exchange, int rank, int ranks, int ordinal);
/// What joins the GPUs, as rank 0 sees it, less what is masked: all ranks together. Kernels need no
/// topology, so its lack is no error, but where masks are to be heeded.
void learn_topology(GpuGroup& group, const cuda::Exchange& exchange,
                    const std::function<Topology()>& look, const std::vector<std::string>& masks);
/// Rank 0's table of this machine, for everybody: all ranks together. nccl: the version that runs
/// here, where that matters; rank 0 warns of a table that was measured beside another.
void load_tuning(GpuGroup& group, const cuda::Exchange& exchange, const Env& env,
                 const std::string& nccl = "");
/// Error(unsupported) where nothing tells which calls are faster than NCCL's: no table, and GPUs of
/// a kind that plait was not measured on. Alike on all ranks. why_no_table: empty = `plait tune`
/// makes one.
void require_measured(const GpuGroup& group, const std::string& why_no_table);
/// This machine's GPUs and links; looked at once a process.
Topology discovered();

}  // namespace plait
