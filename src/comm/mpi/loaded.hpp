// The MPI that this process uses, if there is one: taken from the library itself, since a preloaded
// drop-in owns its names.
#pragma once
#include <string>

#include "comm/mpi/abi.hpp"

namespace plait::mpi {

struct LoadedMpi {
  void* library = nullptr;  ///< for dlsym; null = there is no MPI
  std::string path;
  Abi abi;
};

/// What is in the process now; none is opened.
LoadedMpi find_loaded();

}  // namespace plait::mpi
