// Smallest messages that the drop-in under MPI serves. The drop-in and `plait plan` decide by the
// same numbers.
#pragma once
#include <array>
#include <cstdint>

#include "base/env.hpp"
#include "plait/plan.hpp"

namespace plait {

inline constexpr std::uint64_t kNever = ~std::uint64_t{0};

/// Smallest message served, indexed by Collective; kNever = none is.
using MinBytes = std::array<std::uint64_t, 16>;

struct MpiSizes {
  MinBytes on_host{};    ///< in host memory, in a node
  MinBytes on_gpus{};    ///< in GPU memory, in a node
  MinBytes multinode{};  ///< in host memory, over several nodes
};

/// Applies PLAIT_MPI_HOST, PLAIT_OPS (names of collectives) and PLAIT_MIN_BYTES (holds for all
/// collectives). Throws Error(invalid_argument) for a name that is no collective's.
MpiSizes mpi_sizes(const Env& env);

}  // namespace plait
