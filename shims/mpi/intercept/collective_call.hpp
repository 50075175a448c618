// How an exported collective runs: passed on at once to the native MPI, served by plait, or run by
// the native MPI with staging buffers in the place of GPU memory.
#pragma once
#include "shims/mpi/args/counting.hpp"
#include "shims/mpi/args/in_call.hpp"
#include "shims/mpi/args/native_flight.hpp"
#include "shims/mpi/collective/collective_request.hpp"
#include "shims/mpi/collective/explain.hpp"
#include "shims/mpi/collective/fast_path.hpp"
#include "shims/mpi/collective/persistent_collective.hpp"
#include "shims/mpi/intercept/staged_call.hpp"

namespace plait::mpi {

enum class CallForm : std::uint8_t { blocking, nonblocking };

/// Returns whether a call is native and has no buffer of this rank on a GPU.
[[gnu::always_inline]] inline bool is_passed_on(const CollectiveArgs& args, CallForm form) {
  return !is_intercepting() || is_forwarded(args, form == CallForm::blocking);
}

// The functions below are never inlined, so that a call that is passed on takes a few instructions
// and a jump, with the arguments still in registers. mpi: the native function (Native). args_of:
// the function object of the collective.

/// Runs a blocking collective.
template <class Mpi, class ArgsOf, class... Arguments>
[[gnu::noinline]] int run_collective(Mpi mpi, ArgsOf args_of, Arguments... arguments) {
  const CollectiveArgs args = args_of(arguments...);
  return guarded(args.comm, [&]() -> int {
    Fallback why = is_serving() ? Fallback::bytes : Fallback::job;
    if (is_serving() && may_serve(args)) {
      const ServedCall served = served_call(args, true);
      why = served.why;
      if (served.state != nullptr)
        if (const std::optional<int> code = run_served(served, args, why)) return *code;
    }
    if (is_explaining()) explain_fallback(mpi.name(), args, why);
    const CountedNative counted(args);
    const RecordedNative recorded(args, why);
    const InCall inside(words_of_collective(mpi, args));
    return staged(
        args.comm, [&](CallStaging& staging) { staging.add(args); }, mpi(args.comm), arguments...);
  });
}

/// Starts a non-blocking collective.
template <class Mpi, class ArgsOf, class... Arguments>
[[gnu::noinline]] int start_collective(Mpi mpi, ArgsOf args_of, void* request,
                                       Arguments... arguments) {
  const CollectiveArgs args = args_of(arguments...);
  return guarded(args.comm, [&]() -> int {
    Fallback why = is_serving() ? Fallback::bytes : Fallback::job;
    if (is_serving() && may_serve(args)) {
      const ServedCall served = served_call(args, false);
      if (served.state != nullptr) return start_served(served, args, request);
      why = served.why;
    }
    if (is_explaining()) explain_fallback(mpi.name(), args, why);
    const CountedNative counted(args);
    const RecordedNative recorded(args, why);
    return start_staged(
        args.comm, request, [&](CallStaging& staging) { staging.add(args); }, mpi(args.comm),
        arguments...);
  });
}

/// Makes the request of a persistent collective.
template <class Mpi, class ArgsOf, class... Arguments>
[[gnu::noinline]] int init_collective(Mpi mpi, ArgsOf args_of, Handle info, void* request,
                                      Arguments... arguments) {
  const CollectiveArgs args = args_of(arguments...);
  return guarded(args.comm, [&]() -> int {
    Fallback why = is_serving() ? Fallback::bytes : Fallback::job;
    if (is_serving() && may_serve(args))
      if (const std::optional<int> code = init_served(args, request, why)) return *code;
    if (is_explaining()) explain_fallback(mpi.name(), args, why);
    return init_staged(
        args.comm, request, [&](CallStaging& staging) { staging.add(args); }, mpi(args.comm),
        arguments..., info);
  });
}

}  // namespace plait::mpi
