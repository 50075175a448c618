// Collectives that plait does not take: the MPI's own, which gets host memory for buffers that lie
// on GPUs.
#include "shims/mpi/exports.hpp"
#include "shims/mpi/native.hpp"

namespace plait::mpi {

/// One collective, blocking, not, and persistent. NATIVE calls the MPI's own, whose arrays have
/// these lengths.
#define PLAIT_MPI_OTHER_AS(name, begin, init, parameters, arguments, lengths, buffers, full,       \
                           full_begin, full_init)                                                  \
  PLAIT_EXPORT full parameters {                                                                   \
    const auto native = [&](auto... given) { return NATIVE(name, lengths, given...); };            \
    if (!may_hold_gpu_memory()) return native(PLAIT_MPI_UNPACKED arguments);                       \
    return staged(                                                                                 \
        comm, [&](Staging& staging) { staging.buffers; }, native, PLAIT_MPI_UNPACKED arguments);   \
  }                                                                                                \
  PLAIT_EXPORT full_begin(PLAIT_MPI_UNPACKED parameters, void* request) {                          \
    const auto native = [&](auto... given) { return NATIVE(begin, lengths, given...); };           \
    if (!may_hold_gpu_memory()) return native(PLAIT_MPI_UNPACKED arguments, request);              \
    return begin_staged(                                                                           \
        comm, request, [&](Staging& staging) { staging.buffers; }, native,                         \
        PLAIT_MPI_UNPACKED arguments);                                                             \
  }                                                                                                \
  PLAIT_EXPORT full_init(PLAIT_MPI_UNPACKED parameters, Handle info, void* request) {              \
    const auto native = [&](auto... given) { return NATIVE(init, lengths, given...); };            \
    if (!may_hold_gpu_memory()) return native(PLAIT_MPI_UNPACKED arguments, info, request);        \
    return persist_staged(                                                                         \
        comm, request, [&](Staging& staging) { staging.buffers; }, native,                         \
        PLAIT_MPI_UNPACKED arguments, info);                                                       \
  }                                                                                                \
  PLAIT_EXPORT P##full parameters PLAIT_TWIN(full);                                                \
  PLAIT_EXPORT P##full_begin(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_TWIN(full_begin); \
  PLAIT_EXPORT P##full_init(PLAIT_MPI_UNPACKED parameters, Handle info, void* request)             \
      PLAIT_TWIN(full_init);

namespace small_counts {
using N = Small::N;
using D = Small::D;
#define NATIVE(function, lengths, ...) if_there(real().small.function, comm, __VA_ARGS__)
#define PLAIT_MPI_OTHER(name, begin, ...)                                                \
  PLAIT_MPI_OTHER_AS(name, begin, name##_init, __VA_ARGS__, MPI_##name, MPI_##begin,     \
                     MPI_##name##_init)
#include "shims/mpi/others.def"
#undef PLAIT_MPI_OTHER
#undef NATIVE
}  // namespace small_counts

namespace large_counts {
using N = Large::N;
using D = Large::D;
#define NATIVE(function, lengths, ...)                                                          \
  large_or_narrowed(                                                                            \
      real().large.function, real().small.function, comm, [&] { return lengths; }, __VA_ARGS__)
#define PLAIT_MPI_OTHER(name, begin, ...)                                                    \
  PLAIT_MPI_OTHER_AS(name, begin, name##_init, __VA_ARGS__, MPI_##name##_c, MPI_##begin##_c, \
                     MPI_##name##_init_c)
#include "shims/mpi/others.def"
#undef PLAIT_MPI_OTHER
#undef NATIVE
}  // namespace large_counts

}  // namespace plait::mpi
