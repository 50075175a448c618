// Why the native MPI runs a collective. explain.hpp has the words (PLAIT_DEBUG=EXPLAIN).
#pragma once
#include <cstdint>

namespace plait::mpi {

enum class Fallback : std::uint8_t {
  none,           ///< plait serves the call
  job,            ///< holds for the whole job
  bytes,          ///< below PLAIT_MIN_BYTES, or PLAIT_OPS does not name the collective
  arguments,      ///< empty or wrong
  type,           ///< plait does not reduce the type
  op,             ///< plait does not run the operation
  op_on_type,     ///< MPI does not define the operation on the type
  short_sum,      ///< Open MPI's sums of short integers differ from plait's
  communicator,   ///< plait serves none of its calls
  attach,         ///< the communicator could not be attached
  not_attached,   ///< a non-blocking call cannot attach the communicator
  not_on_gpus,    ///< no blocking call has found all ranks' buffers on GPUs
  no_gpu_in_use,  ///< served in GPU memory alone, and no rank uses a GPU
  host_memory,    ///< served in GPU memory alone, and all buffers are in host memory
  own_counts,     ///< parts that two ranks know are served as host memory alone
  resource,       ///< a rank lacks memory or a file descriptor for the call
  many_nodes,     ///< over several nodes only blocking calls are served
  uneven_nodes,   ///< over several nodes only equal parts are served
  thin_nodes,     ///< one rank a node
};

}  // namespace plait::mpi
