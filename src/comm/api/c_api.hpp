// Shared by the files of the C API: turns exceptions into result codes and C values into a request.
#pragma once
#include <memory>
#include <new>

#include "base/text.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"
#include "plait/plait.h"

struct plaitComm {
  std::unique_ptr<plait::Communicator> communicator;
  plait::CallOptions options;
};

namespace plait {

/// Stores the text as this thread's last error; returns the code.
plaitResult_t remember(plaitComm_t comm, ErrorCode code, const char* sentence) noexcept;

template <class Body>
plaitResult_t guarded(plaitComm_t comm, Body body) noexcept {
  try {
    body();
    return plait_ok;
  } catch (const Error& error) {
    return remember(comm, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return remember(comm, ErrorCode::out_of_memory, "out of memory");
  } catch (const std::exception& error) {
    return remember(comm, ErrorCode::internal, error.what());
  } catch (...) {
    return remember(comm, ErrorCode::internal, "an exception of unknown kind");
  }
}

template <class Pointer>
Pointer wanted(Pointer pointer, const char* name) {
  if (pointer == nullptr)
    throw Error(ErrorCode::invalid_argument, text("{}: wanted a pointer, found NULL", name));
  return pointer;
}

/// Makes a request from C values. Bad values are reported to the peers, if the call runs on
/// the host, and then thrown here.
Request request_of(Communicator& communicator, bool device, Collective collective,
                   std::size_t count, int type, int op, int root, int peer);

/// True for a call on device memory. A mixture of device and host buffers is reported to the peers
/// as an error of a host call, since the peers may wait in a host call.
bool on_device(Communicator& communicator, const void* input, const void* output,
               const void* stream);

}  // namespace plait
