// Requests of persistent collectives that plait serves.
#pragma once
#include <optional>

#include "shims/mpi/args/collective_args.hpp"
#include "shims/mpi/args/fallback.hpp"

namespace plait::mpi {

/// Makes the request of a collective; returns nothing if the collective is native, and `why` then
/// has the reason. Collective over the communicator.
std::optional<int> init_served(const CollectiveArgs& args, void* request, Fallback& why);

}  // namespace plait::mpi
