// Values that the ranks of a machine agree on about GPUs, over any exchange. All later decisions
// follow from these values.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "comm/choose/reach.hpp"
#include "gpu/device/direct_access.hpp"
#include "gpu/select/tuning_table.hpp"
#include "plait/topology.hpp"

namespace plait {

struct GpuGroup {
  int rank = 0;
  int ranks = 1;
  std::vector<int> ordinals;       ///< by rank: CUDA's ordinal in that process
  std::vector<std::string> uuids;  ///< by rank
  std::string kind;                ///< model of all GPUs; empty = several models
  bool in_processes = false;       ///< a process per rank
  std::string through_host;  ///< why arenas lie in host memory; empty = they lie in GPU memory
  /// By rank, of arenas in host memory: ranks with equal numbers, an island, address each other's
  /// GPU memory, and plans copy there. Empty = no rank addresses another's.
  std::vector<int> islands;
  /// Whether plait alone takes arenas in host memory, by PLAIT_THROUGH_HOST=1 or since a driver
  /// mapped no memory of a peer. NCCL may keep direct access then, and times beside an NCCL that
  /// goes through host memory do not count.
  bool nccl_goes_direct = false;
  /// Whether the path check has found broken a direct access that the driver grants. NCCL may hang
  /// on such GPUs, so plait serves all calls that its engines can run, even if NCCL is faster.
  bool has_broken_paths = false;
  Topology topology;  ///< topology of the GPUs; no devices = unknown
  std::string why_no_topology;
  std::vector<int> devices;    ///< by rank, in `topology`; empty = the first devices
  std::string tuning_machine;  ///< names its tables (tuning_machine.hpp); empty = unknown
  Reach reach;                 ///< links that masks leave to kernels
  cuda::TuningTable tuning;    ///< rank 0's table; empty = built-in choices

  /// As many devices as the topology has.
  std::vector<int> devices_of_ranks() const;
  /// True if arenas lie in host memory, and the two ranks address each other's GPU memory.
  bool are_in_one_island(int one, int other) const;
};

/// Exchanges the ranks' GPUs; called by all ranks together. Throws Error(invalid_argument) if two
/// ranks have the same GPU, no_device or unsupported if this rank's GPU cannot be used.
GpuGroup bootstrap_gpus(const cuda::Exchange& exchange, int rank, int ranks, int ordinal);
/// Returns this rank's reason for arenas in host memory, or "": the GPU cannot address a peer's
/// memory, or PLAIT_THROUGH_HOST=1. With PLAIT_THROUGH_HOST=0 such a GPU is Error(unsupported).
std::string why_no_direct_access(const GpuGroup& group, const Env& env,
                                 const cuda::Measure& distance = cuda::distance_between,
                                 const cuda::Addresses& addresses = cuda::address_each_other);
/// Returns '1' by rank for each GPU that this rank's GPU addresses (cuda::direct_peers); empty if
/// PLAIT_THROUGH_HOST=1, or if two ranks leave no island.
std::string direct_peers(const GpuGroup& group, const Env& env,
                         const cuda::Measure& distance = cuda::distance_between,
                         const cuda::Addresses& addresses = cuda::address_each_other);
/// Makes this rank's part on the group's GPUs. Arenas lie in host memory if any rank has a reason;
/// ranks that address each other are islands then. direct: this rank's direct_peers(). If the
/// mapping of arenas or the path check then finds that GPUs do not reach each other, rank 0
/// logs a warning, and all ranks make the part again with arenas in host memory, unless
/// PLAIT_THROUGH_HOST=0. make: called by all ranks together, after agree_on_arenas() on the group.
void make_with_arenas(const GpuGroup& group, const cuda::Exchange& exchange, const Env& env,
                      const std::string& why_no_direct_access, const std::string& direct,
                      const std::function<void(GpuGroup)>& make);
/// Decides where arenas lie, alike on all ranks: in host memory if any rank gives a reason. Then
/// paths between the ranks' GPUs go through the host, and measurements of other paths do not count.
/// why_no_direct_access: this rank's reason; empty = none. direct: as for make_with_arenas().
/// Called by all ranks together, after learn_topology().
void agree_on_arenas(GpuGroup& group, const cuda::Exchange& exchange,
                     const std::string& why_no_direct_access, const std::string& direct = {});
/// Sets the topology found by rank 0, with masks applied; called by all ranks together. A missing
/// topology is an error only with masks, since kernels need no topology.
void learn_topology(GpuGroup& group, const cuda::Exchange& exchange,
                    const std::function<Topology()>& look, const std::vector<std::string>& masks);
/// True if the library's tables compare such GPUs with NCCL on the way that NCCL takes here.
bool is_measured_beside_nccl(const GpuGroup& group);
/// Throws Error(unsupported), alike on all ranks, without data on calls that beat NCCL: GPUs of an
/// unmeasured model, and no tuning table, or one in which NCCL is always faster. why_no_table:
/// empty = `plait tune` can make a table.
void require_measured(const GpuGroup& group, const std::string& why_no_table);
/// Returns this machine's GPUs and links, discovered once per process.
Topology discovered();

}  // namespace plait
