// NCCL beside plait's calls while a machine is measured: a communicator of the same ranks, split
// off and destroyed with the measurement, so that NCCL keeps no memory for calls that the program
// never makes.
#pragma once
#include <memory>

#include "comm/gpu/gpu_bench.hpp"
#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// Splits the communicator. Called by all ranks together, while attaching. Throws Error.
std::unique_ptr<BesideLibrary> nccl_beside(CommState& state);

}  // namespace plait::nccl
