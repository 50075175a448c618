// Exports the collectives: each is served by plait or forwarded to the native MPI with staging
// buffers in the place of GPU memory.
#include "shims/mpi/intercept/exports.hpp"

#include "shims/mpi/args/counting.hpp"
#include "shims/mpi/collective/fast_path.hpp"
#include "shims/mpi/intercept/forward.hpp"

namespace plait::mpi {

#define PLAIT_MPI_ALIASES(parameters, mpi_name, mpi_begin, mpi_init)                              \
  PLAIT_EXPORT P##mpi_name parameters PLAIT_ALIAS(mpi_name);                                      \
  PLAIT_EXPORT P##mpi_begin(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_ALIAS(mpi_begin); \
  PLAIT_EXPORT P##mpi_init(PLAIT_MPI_UNPACKED parameters, Handle info, void* request)             \
      PLAIT_ALIAS(mpi_init);

/// The native function. NATIVE_OF gets the lengths of the arrays.
#define NATIVE(function, ...) NATIVE_OF(function, ranks_in(comm), __VA_ARGS__)

/// A collective: blocking, non-blocking and persistent.
#define PLAIT_MPI_SERVED(name, begin, init, parameters, arguments, mpi_name, mpi_begin, mpi_init) \
  PLAIT_SLOW_PATH name##_slow parameters {                                                        \
    return guarded(comm, [&]() -> int {                                                           \
      const CollectiveArgs args = args_of::name arguments;                                        \
      if (is_serving() && may_serve(args))                                                        \
        if (const ServedCall call = served_call(args, true); call.state != nullptr)               \
          if (const std::optional<int> code = run_served(call, args)) return *code;               \
      const CountedNative counted(args);                                                          \
      return staged(                                                                              \
          comm, [&](CallStaging& staging) { staging.add(args); },                                 \
          [&](auto... given) { return NATIVE(name, given...); }, PLAIT_MPI_UNPACKED arguments);   \
    });                                                                                           \
  }                                                                                               \
  PLAIT_EXPORT mpi_name parameters {                                                              \
    if (!is_intercepting() || is_forwarded(args_of::name arguments, true))                        \
      return NATIVE(name, PLAIT_MPI_UNPACKED arguments);                                          \
    return name##_slow arguments;                                                                 \
  }                                                                                               \
  PLAIT_SLOW_PATH begin##_slow(PLAIT_MPI_UNPACKED parameters, void* request) {                    \
    return guarded(comm, [&]() -> int {                                                           \
      const CollectiveArgs args = args_of::name arguments;                                        \
      if (is_serving() && may_serve(args))                                                        \
        if (const ServedCall call = served_call(args, false); call.state != nullptr)              \
          return start_served(call, args, request);                                               \
      const CountedNative counted(args);                                                          \
      return start_staged(                                                                        \
          comm, request, [&](CallStaging& staging) { staging.add(args); },                        \
          [&](auto... given) { return NATIVE(begin, given...); }, PLAIT_MPI_UNPACKED arguments);  \
    });                                                                                           \
  }                                                                                               \
  PLAIT_EXPORT mpi_begin(PLAIT_MPI_UNPACKED parameters, void* request) {                          \
    if (!is_intercepting() || is_forwarded(args_of::name arguments, false))                       \
      return NATIVE(begin, PLAIT_MPI_UNPACKED arguments, request);                                \
    return begin##_slow(PLAIT_MPI_UNPACKED arguments, request);                                   \
  }                                                                                               \
  PLAIT_EXPORT mpi_init(PLAIT_MPI_UNPACKED parameters, Handle info, void* request) {              \
    if (!is_serving()) return NATIVE(init, PLAIT_MPI_UNPACKED arguments, info, request);          \
    return guarded(comm, [&]() -> int {                                                           \
      const CollectiveArgs args = args_of::name arguments;                                        \
      if (may_serve(args))                                                                        \
        if (const std::optional<int> code = init_served(args, request)) return *code;             \
      return init_staged(                                                                         \
          comm, request, [&](CallStaging& staging) { staging.add(args); },                        \
          [&](auto... given) { return NATIVE(init, given...); }, PLAIT_MPI_UNPACKED arguments,    \
          info);                                                                                  \
    });                                                                                           \
  }                                                                                               \
  PLAIT_MPI_ALIASES(parameters, mpi_name, mpi_begin, mpi_init)

/// The same for a collective that plait does not serve; buffers: the member of CallStaging that
/// names the buffers.
#define PLAIT_MPI_STAGED(name, begin, init, parameters, arguments, lengths, buffers, mpi_name, \
                         mpi_begin, mpi_init)                                                  \
  PLAIT_EXPORT mpi_name parameters {                                                           \
    return staged(                                                                             \
        comm, [&](CallStaging& staging) { staging.buffers; },                                  \
        [&](auto... given) { return NATIVE_OF(name, lengths, given...); },                     \
        PLAIT_MPI_UNPACKED arguments);                                                         \
  }                                                                                            \
  PLAIT_EXPORT mpi_begin(PLAIT_MPI_UNPACKED parameters, void* request) {                       \
    return start_staged(                                                                       \
        comm, request, [&](CallStaging& staging) { staging.buffers; },                         \
        [&](auto... given) { return NATIVE_OF(begin, lengths, given...); },                    \
        PLAIT_MPI_UNPACKED arguments);                                                         \
  }                                                                                            \
  PLAIT_EXPORT mpi_init(PLAIT_MPI_UNPACKED parameters, Handle info, void* request) {           \
    return init_staged(                                                                        \
        comm, request, [&](CallStaging& staging) { staging.buffers; },                         \
        [&](auto... given) { return NATIVE_OF(init, lengths, given...); },                     \
        PLAIT_MPI_UNPACKED arguments, info);                                                   \
  }                                                                                            \
  PLAIT_MPI_ALIASES(parameters, mpi_name, mpi_begin, mpi_init)

namespace small_counts {
using N = IntCounts::N;
using D = IntCounts::D;
const N* at_root(const N* numbers, int, Handle) { return numbers; }
#define NATIVE_OF(function, lengths, ...) call_or_report(native().small.function, comm, __VA_ARGS__)
#define PLAIT_MPI_COLLECTIVE(name, begin, parameters, arguments)                             \
  PLAIT_MPI_SERVED(name, begin, name##_init, parameters, arguments, MPI_##name, MPI_##begin, \
                   MPI_##name##_init)
#define PLAIT_MPI_OTHER(name, begin, ...)                                          \
  PLAIT_MPI_STAGED(name, begin, name##_init, __VA_ARGS__, MPI_##name, MPI_##begin, \
                   MPI_##name##_init)
#include "shims/mpi/abi/collectives.def"
#include "shims/mpi/abi/others.def"
#undef PLAIT_MPI_OTHER
#undef PLAIT_MPI_COLLECTIVE
#undef NATIVE_OF
}  // namespace small_counts

namespace large_counts {
using N = LargeCounts::N;
using D = LargeCounts::D;
/// Returns null on ranks other than the root if the counts must be narrowed: narrowing reads them.
const N* at_root(const N* numbers, int root, Handle comm) {
  return native().large.Gatherv != nullptr ? numbers : only_at_root(numbers, root, comm);
}
#define NATIVE_OF(function, lengths, ...)                                              \
  large_or_narrowed(                                                                   \
      native().large.function, native().small.function, comm, [&] { return lengths; }, \
      __VA_ARGS__)
#define PLAIT_MPI_COLLECTIVE(name, begin, parameters, arguments)                    \
  PLAIT_MPI_SERVED(name, begin, name##_init, parameters, arguments, MPI_##name##_c, \
                   MPI_##begin##_c, MPI_##name##_init_c)
#define PLAIT_MPI_OTHER(name, begin, ...)                                                  \
  PLAIT_MPI_STAGED(name, begin, name##_init, __VA_ARGS__, MPI_##name##_c, MPI_##begin##_c, \
                   MPI_##name##_init_c)
#include "shims/mpi/abi/collectives.def"
#include "shims/mpi/abi/others.def"
#undef PLAIT_MPI_OTHER
#undef PLAIT_MPI_COLLECTIVE
#undef NATIVE_OF
}  // namespace large_counts

}  // namespace plait::mpi
