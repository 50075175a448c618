// Exports point-to-point functions, scans and probes. Large messages go by rendezvous, all others
// to the native MPI with staging buffers in the place of GPU memory.
#include "shims/mpi/intercept/exports.hpp"
#include "shims/mpi/intercept/forward.hpp"
#include "shims/mpi/p2p/rendezvous.hpp"
#include "shims/mpi/p2p/sendrecv.hpp"

namespace plait::mpi {
namespace {

/// Returns whether the native call suffices: no RTS header may arrive, no GPU memory is involved.
bool is_native_only(const void* buffer, Count count, Handle type) {
  return !(uses_rendezvous() && may_match_header(type, count)) &&
         !(job_uses_gpus() && is_on_gpu(buffer, type, count));
}
bool is_native_only(const void* in, Count in_count, Handle in_type, const void* out,
                    Count out_count, Handle out_type, const SendrecvPeers&) {
  return is_native_only(in, in_count, in_type) && is_native_only(out, out_count, out_type);
}
bool is_native_only(const void* buffer, Count count, Handle type, const SendrecvPeers&) {
  return is_native_only(buffer, count, type);
}

/// The receive side of a sendrecv.
P2PArgs recv_args(const void*, Count, Handle, const void* out, Count out_count, Handle out_type,
                  const SendrecvPeers&) {
  return {out, out_count, out_type};
}
P2PArgs recv_args(const void* buffer, Count count, Handle type, const SendrecvPeers&) {
  return {buffer, count, type};
}

/// Like recv_natively(), for a non-blocking call: the completion checks for truncation.
template <class Call>
int irecv_natively(Handle, const P2PArgs&, void* request, const Call& call) {
  return call(request);
}

/// Runs the request that make(code) returns to completion. Returns nothing if make() returned null
/// without an error.
template <class Make>
std::optional<int> run_blocking(Handle comm, void* status, const Make& make) {
  try {
    int code = 0;
    const std::unique_ptr<PendingRequest> made = make(code);
    if (made == nullptr) return code == 0 ? std::nullopt : std::optional(code);
    code = wait_for(*made);
    if (status != nullptr && status != native().abi.status_ignore) {
      const int error = error_in(status);  // unchanged by MPI here
      made->fill(status);
      error_in(status) = error;
    }
    return made->is_reported ? code : call_errhandler(comm, code);
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}

/// function(posted, status) is the native receive.
template <class Function>
int blocking_recv(Handle comm, const P2PArgs& to, void* status, const Function& function) {
  try {
    RendezvousRecv recv(to);
    const Statuses filled(status, 1, true);
    const int code = function(recv.posted(), filled.at(0));
    if (error_class(code) == native().abi.err_truncate) recv.on_truncated(filled.at(0));
    return code != 0 ? code : call_errhandler(comm, recv.end(filled.at(0)));
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}

/// function(posted, request) is the native receive; make_result(native_request, recv) stores the
/// program's request.
template <class Function, class Taken>
int start_recv_as(Handle comm, const P2PArgs& to, const Function& function,
                  const Taken& make_result) {
  try {
    auto recv = std::make_unique<RendezvousRecv>(to);
    Handle native_request = 0;
    const int code = function(recv->posted(), static_cast<void*>(&native_request));
    return code != 0 ? code : make_result(native().abi.at(&native_request, 0), std::move(recv));
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}

struct MakeRequest {
  Handle comm;
  void* request;
  int operator()(Handle native_request, std::unique_ptr<RendezvousRecv> recv) const {
    return start_grequest(make_recv_request(native_request, std::move(recv)), RetainedComm(comm),
                          request);
  }
};

struct MakePersistent {
  Handle comm;
  void* request;
  int operator()(Handle native_request, std::unique_ptr<RendezvousRecv> recv) const {
    PersistentOp* const made = make_persistent_recv(native_request, std::move(recv), comm);
    add_persistent(*made, request);
    return 0;
  }
};

/// Makes a persistent send that may use rendezvous. init(&request) is the native function and
/// checks the arguments; each start tries to claim a slot.
template <class Width, class Init>
std::optional<int> init_send(const P2PArgs& args, int to, int tag, Handle comm, void* request,
                             const Init& init) {
  try {
    if (tag < 0 || !may_use_rendezvous(args, to, comm)) return std::nullopt;
    Handle native_request = 0;
    if (const int code = init(static_cast<void*>(&native_request))) return code;
    native().Request_free(&native_request);
    using N = typename Width::N;
    PersistentOp* const made = make_persistent_call(
        [=](int& code) {
          return start_send<Width>(args.buffer, static_cast<N>(args.count), args.type, to, tag,
                                   comm, code);
        },
        comm);
    add_persistent(*made, request);
    return 0;
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}

/// Calls a function with `posted` in the place of the first argument.
template <class Function, class First, class... Rest>
int with_buffer(void* posted, const Function& function, First, Rest... rest) {
  return function(posted, rest...);
}

/// Corrects the status of a probe that found an RTS header.
int fix_probe(int code, Handle comm, int found, void* status) {
  const Abi& abi = native().abi;
  if (code != 0 || found == 0 || !uses_rendezvous()) return code;
  if (status == nullptr || status == abi.status_ignore) return code;
  const std::uint64_t bytes = received_bytes(status);
  const auto* const source =
      reinterpret_cast<const int*>(static_cast<std::byte*>(status) + abi.source_at);
  const std::uint64_t whole = probed_bytes(comm, source[0], source[1], bytes);
  if (whole != bytes) set_received_bytes(status, whole);
  return code;
}

}  // namespace

/// In the macros below, NATIVE calls the native function and reports a missing function to comm's
/// handler; mpi_name and pmpi_name are the exported names.
#define PLAIT_MPI_TRANSFER_AS(mpi_name, pmpi_name, name, comm_of, parameters, arguments, buffers) \
  PLAIT_EXPORT mpi_name parameters {                                                              \
    if (uses_rendezvous()) note_native_send(PLAIT_MPI_UNPACKED arguments);                        \
    return staged(                                                                                \
        comm_of, [&](CallStaging& staging) { staging.buffers; },                                  \
        [&](auto... given) { return NATIVE(comm_of, name, given...); },                           \
        PLAIT_MPI_UNPACKED arguments);                                                            \
  }                                                                                               \
  PLAIT_EXPORT pmpi_name parameters PLAIT_ALIAS(mpi_name);

/// MAKE: start_staged or init_staged.
#define PLAIT_MPI_REQUEST_AS(mpi_name, pmpi_name, MAKE, name, comm_of, parameters, arguments, \
                             buffers)                                                         \
  PLAIT_EXPORT mpi_name(PLAIT_MPI_UNPACKED parameters, void* request) {                       \
    if (uses_rendezvous()) note_native_send(PLAIT_MPI_UNPACKED arguments);                    \
    return MAKE(                                                                              \
        comm_of, request, [&](CallStaging& staging) { staging.buffers; },                     \
        [&](auto... given) { return NATIVE(comm_of, name, given...); },                       \
        PLAIT_MPI_UNPACKED arguments);                                                        \
  }                                                                                           \
  PLAIT_EXPORT pmpi_name(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_ALIAS(mpi_name);

#define PLAIT_MPI_SEND_INIT_AS(mpi_name, pmpi_name, name, comm_of, parameters, arguments, buffers) \
  PLAIT_EXPORT mpi_name(PLAIT_MPI_UNPACKED parameters, void* request) {                            \
    const auto init = [&](void* made) {                                                            \
      return NATIVE(comm_of, name, PLAIT_MPI_UNPACKED arguments, made);                            \
    };                                                                                             \
    if (uses_rendezvous()) {                                                                       \
      const P2PArgs args{buffer, count, type};                                                     \
      if (const std::optional<int> code = init_send<Width>(args, peer, tag, comm, request, init))  \
        return *code;                                                                              \
      note_native_send(PLAIT_MPI_UNPACKED arguments);                                              \
    }                                                                                              \
    return init_staged(                                                                            \
        comm_of, request, [&](CallStaging& staging) { staging.buffers; },                          \
        [&](auto... given) { return NATIVE(comm_of, name, given...); },                            \
        PLAIT_MPI_UNPACKED arguments);                                                             \
  }                                                                                                \
  PLAIT_EXPORT pmpi_name(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_ALIAS(mpi_name);

#define PLAIT_MPI_SEND_AS(mpi_name, pmpi_name, name, parameters, arguments)                 \
  PLAIT_SLOW_PATH name##_slow parameters {                                                  \
    const auto offer = [&](int&) {                                                          \
      return start_rendezvous_send({buffer, count, type}, peer, tag, comm);                 \
    };                                                                                      \
    if (uses_rendezvous())                                                                  \
      if (const std::optional<int> code = run_blocking(comm, nullptr, offer)) return *code; \
    return staged(                                                                          \
        comm, [&](CallStaging& staging) { staging.add_input(buffer, type, count); },        \
        [&](auto... given) { return NATIVE(comm, name, given...); },                        \
        PLAIT_MPI_UNPACKED arguments);                                                      \
  }                                                                                         \
  PLAIT_EXPORT mpi_name parameters {                                                        \
    if (uses_rendezvous() || may_hold_gpu_memory()) return name##_slow arguments;           \
    return NATIVE(comm, name, PLAIT_MPI_UNPACKED arguments);                                \
  }                                                                                         \
  PLAIT_EXPORT pmpi_name parameters PLAIT_ALIAS(mpi_name);

#define PLAIT_MPI_ISEND_AS(mpi_name, pmpi_name, name, parameters, arguments)                  \
  PLAIT_SLOW_PATH name##_slow(PLAIT_MPI_UNPACKED parameters, void* request) {                 \
    const auto offer = [&](int&) {                                                            \
      return start_rendezvous_send({buffer, count, type}, peer, tag, comm);                   \
    };                                                                                        \
    if (uses_rendezvous())                                                                    \
      if (const std::optional<int> code = start_request(comm, request, offer)) return *code;  \
    return start_staged(                                                                      \
        comm, request, [&](CallStaging& staging) { staging.add_input(buffer, type, count); }, \
        [&](auto... given) { return NATIVE(comm, name, given...); },                          \
        PLAIT_MPI_UNPACKED arguments);                                                        \
  }                                                                                           \
  PLAIT_EXPORT mpi_name(PLAIT_MPI_UNPACKED parameters, void* request) {                       \
    if (uses_rendezvous() || may_hold_gpu_memory())                                           \
      return name##_slow(PLAIT_MPI_UNPACKED arguments, request);                              \
    return NATIVE(comm, name, PLAIT_MPI_UNPACKED arguments, request);                         \
  }                                                                                           \
  PLAIT_EXPORT pmpi_name(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_ALIAS(mpi_name);

#define PLAIT_MPI_WITH_BUFFER(comm_of, name, arguments)                               \
  [&](void* posted, void* last) {                                                     \
    return with_buffer(                                                               \
        posted, [&](auto... given) { return NATIVE(comm_of, name, given..., last); }, \
        PLAIT_MPI_UNPACKED arguments);                                                \
  }

#define PLAIT_MPI_RECV_AS(mpi_name, pmpi_name, name, comm_of, parameters, arguments) \
  PLAIT_SLOW_PATH name##_slow(PLAIT_MPI_UNPACKED parameters, void* status) {         \
    if (is_native_only(buffer, count, type)) {                                       \
      const auto natively = [&](void* filled) {                                      \
        return NATIVE(comm_of, name, PLAIT_MPI_UNPACKED arguments, filled);          \
      };                                                                             \
      return recv_natively(comm_of, {buffer, count, type}, status, natively);        \
    }                                                                                \
    return blocking_recv(comm_of, {buffer, count, type}, status,                     \
                         PLAIT_MPI_WITH_BUFFER(comm_of, name, arguments));           \
  }                                                                                  \
  PLAIT_EXPORT mpi_name(PLAIT_MPI_UNPACKED parameters, void* status) {               \
    if (uses_rendezvous() || may_hold_gpu_memory())                                  \
      return name##_slow(PLAIT_MPI_UNPACKED arguments, status);                      \
    return NATIVE(comm_of, name, PLAIT_MPI_UNPACKED arguments, status);              \
  }                                                                                  \
  PLAIT_EXPORT pmpi_name(PLAIT_MPI_UNPACKED parameters, void* status) PLAIT_ALIAS(mpi_name);

/// MAKE_RESULT: MakeRequest or MakePersistent.
#define PLAIT_MPI_IRECV_AS(mpi_name, pmpi_name, MAKE_RESULT, name, comm_of, parameters, arguments) \
  PLAIT_SLOW_PATH name##_slow(PLAIT_MPI_UNPACKED parameters, void* request) {                      \
    if (is_native_only(buffer, count, type))                                                       \
      return NATIVE(comm_of, name, PLAIT_MPI_UNPACKED arguments, request);                         \
    return start_recv_as(comm_of, {buffer, count, type},                                           \
                         PLAIT_MPI_WITH_BUFFER(comm_of, name, arguments),                          \
                         MAKE_RESULT{comm_of, request});                                           \
  }                                                                                                \
  PLAIT_EXPORT mpi_name(PLAIT_MPI_UNPACKED parameters, void* request) {                            \
    if (uses_rendezvous() || may_hold_gpu_memory())                                                \
      return name##_slow(PLAIT_MPI_UNPACKED arguments, request);                                   \
    return NATIVE(comm_of, name, PLAIT_MPI_UNPACKED arguments, request);                           \
  }                                                                                                \
  PLAIT_EXPORT pmpi_name(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_ALIAS(mpi_name);

/// RUN: run_blocking, or start_request with `result` as output; NATIVELY: the native variant.
#define PLAIT_MPI_SENDRECV_AS(mpi_name, pmpi_name, RUN, NATIVELY, name, result, parameters,  \
                              arguments, make, ends)                                         \
  PLAIT_SLOW_PATH name##_slow(PLAIT_MPI_UNPACKED parameters, void* result) {                 \
    const auto natively = [&](void* given) {                                                 \
      return NATIVE(comm, name, PLAIT_MPI_UNPACKED arguments, given);                        \
    };                                                                                       \
    if (is_native_only ends) return NATIVELY(comm, recv_args ends, result, natively);        \
    const auto made = [&](int& code) { return make<Width>(PLAIT_MPI_UNPACKED ends, code); }; \
    return RUN(comm, result, made).value_or(0);                                              \
  }                                                                                          \
  PLAIT_EXPORT mpi_name(PLAIT_MPI_UNPACKED parameters, void* result) {                       \
    if (uses_rendezvous() || may_hold_gpu_memory())                                          \
      return name##_slow(PLAIT_MPI_UNPACKED arguments, result);                              \
    return NATIVE(comm, name, PLAIT_MPI_UNPACKED arguments, result);                         \
  }                                                                                          \
  PLAIT_EXPORT pmpi_name(PLAIT_MPI_UNPACKED parameters, void* result) PLAIT_ALIAS(mpi_name);

#define PLAIT_MPI_TRANSFER(name, ...) \
  PLAIT_MPI_TRANSFER_AS(MPI_NAME(name), PMPI_NAME(name), name, __VA_ARGS__)
#define PLAIT_MPI_ITRANSFER(name, ...) \
  PLAIT_MPI_REQUEST_AS(MPI_NAME(name), PMPI_NAME(name), start_staged, name, __VA_ARGS__)
#define PLAIT_MPI_TRANSFER_INIT(name, ...) \
  PLAIT_MPI_REQUEST_AS(MPI_NAME(name), PMPI_NAME(name), init_staged, name, __VA_ARGS__)
#define PLAIT_MPI_SEND_INIT(name, ...) \
  PLAIT_MPI_SEND_INIT_AS(MPI_NAME(name), PMPI_NAME(name), name, __VA_ARGS__)
#define PLAIT_MPI_SEND(name, comm, ...) \
  PLAIT_MPI_SEND_AS(MPI_NAME(name), PMPI_NAME(name), name, __VA_ARGS__)
#define PLAIT_MPI_ISEND(name, comm, ...) \
  PLAIT_MPI_ISEND_AS(MPI_NAME(name), PMPI_NAME(name), name, __VA_ARGS__)
#define PLAIT_MPI_RECV(name, ...) \
  PLAIT_MPI_RECV_AS(MPI_NAME(name), PMPI_NAME(name), name, __VA_ARGS__)
#define PLAIT_MPI_IRECV(name, ...) \
  PLAIT_MPI_IRECV_AS(MPI_NAME(name), PMPI_NAME(name), MakeRequest, name, __VA_ARGS__)
#define PLAIT_MPI_RECV_INIT(name, ...) \
  PLAIT_MPI_IRECV_AS(MPI_NAME(name), PMPI_NAME(name), MakePersistent, name, __VA_ARGS__)
#define PLAIT_MPI_SENDRECV(name, comm, ...)                                                 \
  PLAIT_MPI_SENDRECV_AS(MPI_NAME(name), PMPI_NAME(name), run_blocking, recv_natively, name, \
                        status, __VA_ARGS__)
#define PLAIT_MPI_ISENDRECV(name, comm, ...)                                                  \
  PLAIT_MPI_SENDRECV_AS(MPI_NAME(name), PMPI_NAME(name), start_request, irecv_natively, name, \
                        request, __VA_ARGS__)

namespace small_counts {
#define PLAIT_MPI_KEEP_MACROS  // for the second inclusion, with large counts
using Width = IntCounts;
using N = Width::N;
#define MPI_NAME(name) MPI_##name
#define PMPI_NAME(name) PMPI_##name
#define NATIVE(comm, function, ...) call_or_report(native().small_p2p.function, comm, __VA_ARGS__)
#include "shims/mpi/abi/p2p.def"
#undef NATIVE
#undef MPI_NAME
#undef PMPI_NAME
}  // namespace small_counts

namespace large_counts {
using Width = LargeCounts;
using N = Width::N;
#define MPI_NAME(name) MPI_##name##_c
#define PMPI_NAME(name) PMPI_##name##_c
#define NATIVE(comm, function, ...) \
  large_or_small(native().large_p2p.function, native().small_p2p.function, comm, __VA_ARGS__)
#include "shims/mpi/abi/p2p.def"
#undef NATIVE
#undef MPI_NAME
#undef PMPI_NAME
}  // namespace large_counts

PLAIT_EXPORT MPI_Probe(int source, int tag, Handle comm, void* status) {
  return fix_probe(native().Probe(source, tag, comm, status), comm, 1, status);
}
PLAIT_EXPORT MPI_Iprobe(int source, int tag, Handle comm, int* flag, void* status) {
  complete_ended();  // not every MPI has a progress hook
  const int code = native().Iprobe(source, tag, comm, flag, status);
  return fix_probe(code, comm, *flag, status);
}
PLAIT_EXPORT MPI_Mprobe(int source, int tag, Handle comm, void* message, void* status) {
  return fix_probe(native().Mprobe(source, tag, comm, message, status), comm, 1, status);
}
PLAIT_EXPORT MPI_Improbe(int source, int tag, Handle comm, int* flag, void* message, void* status) {
  complete_ended();
  const int code = native().Improbe(source, tag, comm, flag, message, status);
  return fix_probe(code, comm, *flag, status);
}
PLAIT_EXPORT PMPI_Probe(int, int, Handle, void*) PLAIT_ALIAS(MPI_Probe);
PLAIT_EXPORT PMPI_Iprobe(int, int, Handle, int*, void*) PLAIT_ALIAS(MPI_Iprobe);
PLAIT_EXPORT PMPI_Mprobe(int, int, Handle, void*, void*) PLAIT_ALIAS(MPI_Mprobe);
PLAIT_EXPORT PMPI_Improbe(int, int, Handle, int*, void*, void*) PLAIT_ALIAS(MPI_Improbe);

}  // namespace plait::mpi
