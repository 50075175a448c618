// Says why the native MPI runs a call (PLAIT_DEBUG=EXPLAIN): one log line for each function and
// reason, by rank 0 of the communicator, with the first such call.
#pragma once
#include <string>

#include "shims/mpi/args/collective_args.hpp"
#include "shims/mpi/args/fallback.hpp"

namespace plait::mpi {

/// Explains a collective. The caller checks is_explaining().
[[gnu::cold]] void explain_fallback(const char* function, const CollectiveArgs& args, Fallback why);
/// Explains a message between two ranks.
[[gnu::cold]] void explain_message(const char* function, Count count, Handle type, Handle comm,
                                   const std::string& why);

}  // namespace plait::mpi
