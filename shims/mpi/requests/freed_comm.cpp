// Holds the innermost scope of each thread.
#include "shims/mpi/requests/freed_comm.hpp"

namespace plait::mpi {

constinit thread_local FreedCommScope* FreedCommScope::innermost_ = nullptr;

}  // namespace plait::mpi
