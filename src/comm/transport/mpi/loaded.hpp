// The MPI library that this process uses, if any. Functions are looked up in the library itself,
// since a preloaded drop-in defines the same names.
#pragma once
#include <string>

#include "comm/transport/mpi/abi.hpp"

namespace plait::mpi {

struct LoadedMpi {
  void* library = nullptr;  ///< handle for dlsym; null = no MPI
  std::string path;
  Abi abi;
};

/// Returns the library that is loaded now; opens none.
LoadedMpi find_loaded();

}  // namespace plait::mpi
