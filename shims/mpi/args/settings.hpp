// The PLAIT_ variables of the drop-in: what is served, from which size on.
#pragma once
#include <cstdint>
#include <string>

#include "comm/choose/mpi_sizes.hpp"
#include "plait/plan.hpp"

namespace plait::mpi {

/// MPI waits for a rank without a limit; a rank that exits is noticed at once.
constexpr double kUnlimitedS = 1e8;

struct MpiSettings {
  bool disabled = false;
  bool host = false;      ///< host memory is served
  bool maps_gpus = true;  ///< ranks may map the memory of peers' GPUs
  bool broken = false;    ///< a variable is invalid; all ranks learn this
  MpiSizes sizes;
  bool min_bytes_is_set = false;  ///< PLAIT_MIN_BYTES
  int node_size = 0;              ///< PLAIT_NODE_SIZE
  std::string topology;
  double arrive_s = kUnlimitedS, deadline_s = kUnlimitedS;
};

MpiSettings& settings();
/// Reads the variables, also those of counting.hpp. An invalid value does not end the program: this
/// rank then asks for native calls.
void read_settings();

/// Smallest message served: host memory in a node, over several nodes, GPU memory; kNever = not
/// served.
std::uint64_t min_bytes_on_host(Collective collective);
std::uint64_t min_bytes_multinode(Collective collective);
std::uint64_t min_bytes_on_gpus(Collective collective);

}  // namespace plait::mpi
