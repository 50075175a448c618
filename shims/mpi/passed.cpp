// Messages between two ranks, and scans: the MPI's, which gets host memory for buffers on GPUs.
#include "shims/mpi/exports.hpp"
#include "shims/mpi/native.hpp"

namespace plait::mpi {

/// NATIVE calls the MPI's own.
#define PLAIT_MPI_PASSED(name, comm_of, parameters, arguments, buffers, full)                 \
  PLAIT_EXPORT full parameters {                                                              \
    if (!may_meet_gpus()) return NATIVE(name, PLAIT_MPI_UNPACKED arguments);                  \
    return staged(                                                                            \
        comm_of, [&](Staging& staging) { staging.buffers; },                                  \
        [&](auto... given) { return NATIVE(name, given...); }, PLAIT_MPI_UNPACKED arguments); \
  }                                                                                           \
  PLAIT_EXPORT P##full parameters PLAIT_TWIN(full);

#define PLAIT_MPI_PASSED_RECEIVE(name, comm_of, parameters, arguments, buffers, full)         \
  PLAIT_EXPORT full(PLAIT_MPI_UNPACKED parameters, void* status) {                            \
    if (!may_meet_gpus()) return NATIVE(name, PLAIT_MPI_UNPACKED arguments, status);          \
    return staged_receive(                                                                    \
        comm_of, status, [&](Staging& staging) { staging.buffers; },                          \
        [&](auto... given) { return NATIVE(name, given...); }, PLAIT_MPI_UNPACKED arguments); \
  }                                                                                           \
  PLAIT_EXPORT P##full(PLAIT_MPI_UNPACKED parameters, void* status) PLAIT_TWIN(full);

/// MAKE: begin_staged or persist_staged.
#define PLAIT_MPI_PASSED_REQUEST(MAKE, name, comm_of, parameters, arguments, buffers, full)   \
  PLAIT_EXPORT full(PLAIT_MPI_UNPACKED parameters, void* request) {                           \
    if (!may_meet_gpus()) return NATIVE(name, PLAIT_MPI_UNPACKED arguments, request);         \
    return MAKE(                                                                              \
        comm_of, request, [&](Staging& staging) { staging.buffers; },                         \
        [&](auto... given) { return NATIVE(name, given...); }, PLAIT_MPI_UNPACKED arguments); \
  }                                                                                           \
  PLAIT_EXPORT P##full(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_TWIN(full);

namespace small_counts {
using N = Small::N;
#define NATIVE(function, ...) if_there(real().small_passed.function, real().abi.world, __VA_ARGS__)
#define PLAIT_MPI_TRANSFER(name, comm_of, parameters, arguments, buffers) \
  PLAIT_MPI_PASSED(name, comm_of, parameters, arguments, buffers, MPI_##name)
#define PLAIT_MPI_RECEIVED(name, comm_of, parameters, arguments, buffers) \
  PLAIT_MPI_PASSED_RECEIVE(name, comm_of, parameters, arguments, buffers, MPI_##name)
#define PLAIT_MPI_BEGUN_TRANSFER(name, comm_of, parameters, arguments, buffers) \
  PLAIT_MPI_PASSED_REQUEST(begin_staged, name, comm_of, parameters, arguments, buffers, MPI_##name)
#define PLAIT_MPI_PERSISTENT(name, comm_of, parameters, arguments, buffers)               \
  PLAIT_MPI_PASSED_REQUEST(persist_staged, name, comm_of, parameters, arguments, buffers, \
                           MPI_##name)
#include "shims/mpi/passed.def"
#undef PLAIT_MPI_TRANSFER
#undef PLAIT_MPI_RECEIVED
#undef PLAIT_MPI_BEGUN_TRANSFER
#undef PLAIT_MPI_PERSISTENT
#undef NATIVE
}  // namespace small_counts

namespace large_counts {
using N = Large::N;
#define NATIVE(function, ...)                                                                  \
  large_or_small(real().large_passed.function, real().small_passed.function, real().abi.world, \
                 __VA_ARGS__)
#define PLAIT_MPI_TRANSFER(name, comm_of, parameters, arguments, buffers) \
  PLAIT_MPI_PASSED(name, comm_of, parameters, arguments, buffers, MPI_##name##_c)
#define PLAIT_MPI_RECEIVED(name, comm_of, parameters, arguments, buffers) \
  PLAIT_MPI_PASSED_RECEIVE(name, comm_of, parameters, arguments, buffers, MPI_##name##_c)
#define PLAIT_MPI_BEGUN_TRANSFER(name, comm_of, parameters, arguments, buffers)         \
  PLAIT_MPI_PASSED_REQUEST(begin_staged, name, comm_of, parameters, arguments, buffers, \
                           MPI_##name##_c)
#define PLAIT_MPI_PERSISTENT(name, comm_of, parameters, arguments, buffers)               \
  PLAIT_MPI_PASSED_REQUEST(persist_staged, name, comm_of, parameters, arguments, buffers, \
                           MPI_##name##_c)
#include "shims/mpi/passed.def"
#undef PLAIT_MPI_TRANSFER
#undef PLAIT_MPI_RECEIVED
#undef PLAIT_MPI_BEGUN_TRANSFER
#undef PLAIT_MPI_PERSISTENT
#undef NATIVE
}  // namespace large_counts

}  // namespace plait::mpi
