// Functions of the drop-in that the native MPI calls, as MPI declares them.
#pragma once
#include "comm/transport/mpi/abi.hpp"

namespace plait::mpi {

using CopyAttribute = int(Handle comm, int keyval, void* extra, void* in, void* out, int* flag);
using DeleteAttribute = int(Handle comm, int keyval, void* value, void* extra);
using HandleError = void(void* comm, int* code, ...);
using QueryRequest = int(void* extra, void* status);
using FreeRequest = int(void* extra);
using CancelRequest = int(void* extra, int complete);

}  // namespace plait::mpi
