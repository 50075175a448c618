// Calls a native function with staging buffers in the place of GPU memory.
#pragma once
#include <utility>

#include "shims/mpi/args/in_call.hpp"
#include "shims/mpi/requests/native_call.hpp"
#include "shims/mpi/requests/persistent.hpp"
#include "shims/mpi/requests/requests.hpp"

namespace plait::mpi {

/// Displacements that are MPI_Aint in both variants of a function.
inline CountArray addresses(const void* displs) {
  return CountArray(static_cast<const std::intptr_t*>(displs));
}

/// Calls a blocking native function with staging buffers for GPU memory; add(staging) names the
/// buffers. If staging fails, the communicator's error handler is called.
template <class Add, class Function, class... Arguments>
int staged(Handle comm, const Add& add, const Function& function, Arguments... arguments) {
  if (!may_hold_gpu_memory()) return function(arguments...);
  return guarded(comm, [&] {
    CallStaging staging(comm);
    add(staging);
    const int code = function(staging.substitute(arguments)...);
    if (code == 0) staging.put_back();
    return code;
  });
}

/// The same for a function whose last argument receives a request. With staging buffers,
/// taken(native_request, staging) stores the program's request.
template <class Taken, class Add, class Function, class... Arguments>
int request_staged(Handle comm, void* request, const Taken& taken, const Add& add,
                   const Function& function, Arguments... arguments) {
  if (!may_hold_gpu_memory()) return function(arguments..., request);
  return guarded(comm, [&] {
    CallStaging staging(comm);
    add(staging);
    if (staging.is_empty()) return function(arguments..., request);
    NativeHandle made;
    const int code = function(staging.substitute(arguments)..., made.stored());
    if (made.is_refused(code)) return refuse_request(code, request);
    return taken(made.handle(), std::move(staging));
  });
}

/// A non-blocking function.
template <class... Rest>
int start_staged(Handle comm, void* request, const Rest&... rest) {
  const auto taken = [&](Handle native_request, CallStaging staging) {
    return start_native(comm, native_request, std::move(staging), request);
  };
  return request_staged(comm, request, taken, rest...);
}

/// A function that makes a persistent request.
template <class... Rest>
int init_staged(Handle comm, void* request, const Rest&... rest) {
  const auto taken = [&](Handle native_request, CallStaging staging) {
    add_persistent(comm, native_request, std::move(staging));
    store_request(native_request, request);
    return 0;
  };
  return request_staged(comm, request, taken, rest...);
}

}  // namespace plait::mpi
