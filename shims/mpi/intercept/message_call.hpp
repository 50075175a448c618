// How an exported function for messages runs: passed on at once to the native MPI, by rendezvous,
// or by the native MPI with staging buffers in the place of GPU memory.
#pragma once
#include "shims/mpi/args/counting.hpp"
#include "shims/mpi/args/in_call.hpp"
#include "shims/mpi/collective/explain.hpp"
#include "shims/mpi/intercept/staged_call.hpp"
#include "shims/mpi/p2p/matched_messages.hpp"
#include "shims/mpi/p2p/persistent_send.hpp"
#include "shims/mpi/p2p/rendezvous.hpp"
#include "shims/mpi/p2p/sendrecv.hpp"

namespace plait::mpi {

/// Returns whether messages are passed on at once: none goes by rendezvous, and no buffer is on a
/// GPU. begin_rendezvous() has then logged why.
[[gnu::always_inline]] inline bool are_messages_native() {
  return __builtin_expect(!uses_rendezvous() && !may_hold_gpu_memory(), 1) != 0;
}

/// Returns whether a blocking message is passed on at once: pass_send() ... may be called.
template <class Mpi>
[[gnu::always_inline]] inline bool may_pass(Mpi mpi) {
  return are_messages_native() && mpi.is_ready() && has_call_slot();
}

/// Returns whether the native call suffices: no RTS header may arrive, no GPU memory is involved.
inline bool is_native_only(const void* buffer, Count count, Handle type) {
  return !(uses_rendezvous() && may_match_header(type, count)) &&
         !(job_uses_gpus() && is_on_gpu(buffer, type, count));
}
/// Logs why a send is native (PLAIT_DEBUG=EXPLAIN).
[[gnu::cold]] inline void explain_send(const char* function, const P2PArgs& args, int dest,
                                       Handle comm) {
  const char* const why = why_not_rendezvous(args, dest, comm);
  explain_message(function, args.count, args.type, comm,
                  why != nullptr ? why
                                 : "all slots to the peer are in use, or retired by small "
                                   "messages as long as RTS headers");
}

/// Runs the request that make(refusal) returns to completion. Returns nothing if make() returned
/// null without a refusal.
template <class Make>
std::optional<int> run_blocking(Handle comm, void* status, const Make& make) {
  try {
    Refusal refusal;
    const std::unique_ptr<PendingRequest> made = make(refusal);
    if (made == nullptr) return refusal;
    const int code = wait_for(*made);
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
    recv.clear_status(filled.at(0));
    const int code = function(recv.posted(), filled.at(0));
    if (error_class(code) == native().abi.err_truncate) recv.on_truncated(filled.at(0));
    return code != 0 ? code : call_errhandler(comm, recv.end(filled.at(0)));
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}

/// function(posted, made) is the native receive; make_result(native_request, recv) stores the
/// program's request.
template <class Function, class Taken>
int start_recv_as(Handle comm, const P2PArgs& to, void* request, const Function& function,
                  const Taken& make_result) {
  try {
    auto recv = std::make_unique<RendezvousRecv>(to);
    NativeHandle made;
    const int code = function(recv->posted(), made.stored());
    if (made.is_refused(code)) return refuse_request(code, request);
    return make_result(made.handle(), std::move(recv));
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

// The functions below are never inlined, so that a message that is passed on takes a few
// instructions and a jump. mpi: the native function (Native).

// Passed on, in the thread's slot. The exported function jumps, with the arguments in registers.

template <class Mpi, class N>
[[gnu::noinline]] int pass_send(Mpi mpi, const void* buf, N count, Handle datatype, int dest,
                                int tag, Handle comm) {
  const InCall inside(*call_slot,
                      words_of_message(mpi, CallFields::send, count, datatype, {dest, tag}, comm));
  return mpi.ready()(buf, count, datatype, dest, tag, comm);
}

template <class Mpi, class N>
[[gnu::noinline]] int pass_recv(Mpi mpi, void* buf, N count, Handle datatype, int source, int tag,
                                Handle comm, void* status) {
  const InCall inside(
      *call_slot, words_of_message(mpi, CallFields::receive, count, datatype, {source, tag}, comm));
  return mpi.ready()(buf, count, datatype, source, tag, comm, status);
}

/// MPI_Mrecv.
template <class Mpi, class N>
[[gnu::noinline]] int pass_recv(Mpi mpi, void* buf, N count, Handle datatype, void* message,
                                void* status) {
  const InCall inside(*call_slot,
                      words_of_message(mpi, CallFields::matched, count, datatype, {}, 0));
  return mpi.ready()(buf, count, datatype, message, status);
}

template <class Mpi, class N>
[[gnu::noinline]] int pass_sendrecv(Mpi mpi, const void* sendbuf, N sendcount, Handle sendtype,
                                    int dest, int sendtag, void* recvbuf, N recvcount,
                                    Handle recvtype, int source, int recvtag, Handle comm,
                                    void* status) {
  const InCall inside(*call_slot, words_of_exchange(mpi, sendcount, sendtype, {dest, sendtag},
                                                    {source, recvtag}, comm));
  return mpi.ready()(sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype,
                     source, recvtag, comm, status);
}

/// MPI_Sendrecv_replace.
template <class Mpi, class N>
[[gnu::noinline]] int pass_sendrecv(Mpi mpi, void* buf, N count, Handle datatype, int dest,
                                    int sendtag, int source, int recvtag, Handle comm,
                                    void* status) {
  const InCall inside(*call_slot, words_of_exchange(mpi, count, datatype, {dest, sendtag},
                                                    {source, recvtag}, comm));
  return mpi.ready()(buf, count, datatype, dest, sendtag, source, recvtag, comm, status);
}

template <class Mpi, class N>
[[gnu::noinline]] int run_send(Mpi mpi, const void* buf, N count, Handle datatype, int dest,
                               int tag, Handle comm) {
  const InCall inside(words_of_message(mpi, CallFields::send, count, datatype, {dest, tag}, comm));
  const auto offer = [&](Refusal& refusal) {
    return start_rendezvous_send({buf, count, datatype}, dest, tag, comm, refusal);
  };
  if (uses_rendezvous())
    if (const std::optional<int> code = run_blocking(comm, nullptr, offer)) return *code;
  if (is_explaining()) explain_send(mpi.name(), {buf, count, datatype}, dest, comm);
  return staged(
      comm, [&](CallStaging& staging) { staging.add_input(buf, datatype, count); }, mpi(comm), buf,
      count, datatype, dest, tag, comm);
}

template <class Mpi, class N>
[[gnu::noinline]] int run_isend(Mpi mpi, const void* buf, N count, Handle datatype, int dest,
                                int tag, Handle comm, void* request) {
  const auto offer = [&](Refusal& refusal) {
    return start_rendezvous_send({buf, count, datatype}, dest, tag, comm, refusal);
  };
  if (uses_rendezvous())
    if (const std::optional<int> code = start_request(comm, request, offer)) return *code;
  if (is_explaining()) explain_send(mpi.name(), {buf, count, datatype}, dest, comm);
  return start_staged(
      comm, request, [&](CallStaging& staging) { staging.add_input(buf, datatype, count); },
      mpi(comm), buf, count, datatype, dest, tag, comm);
}

/// Makes a persistent send that may go by rendezvous. The native function checks the arguments, and
/// its request retains them. Returns nothing if all starts are native.
template <class Mpi, class N>
std::optional<int> init_rendezvous_send(Mpi mpi, const void* buf, N count, Handle datatype,
                                        int dest, int tag, Handle comm, void* request) {
  try {
    if (tag < 0 || !may_use_rendezvous({buf, count, datatype}, dest, comm)) return std::nullopt;
    const auto send =
        std::make_shared<PersistentSend>(P2PArgs{buf, count, datatype}, dest, tag, comm);
    NativeHandle made;
    const int code = mpi(comm)(send->posted(), count, datatype, dest, tag, comm, made.stored());
    if (made.is_refused(code)) return refuse_request(code, request);
    send->own(made.handle());
    PersistentOp* const op =
        make_persistent_call([send](Refusal& refusal) { return send->start(refusal); }, comm);
    add_persistent(*op, request);
    return 0;
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}

template <class Mpi, class N>
[[gnu::noinline]] int run_send_init(Mpi mpi, const void* buf, N count, Handle datatype, int dest,
                                    int tag, Handle comm, void* request) {
  if (uses_rendezvous()) {
    if (const std::optional<int> code =
            init_rendezvous_send(mpi, buf, count, datatype, dest, tag, comm, request))
      return *code;
    if (is_explaining()) explain_send(mpi.name(), {buf, count, datatype}, dest, comm);
    note_native_send(buf, count, datatype, dest, tag, comm);
  }
  return init_staged(
      comm, request, [&](CallStaging& staging) { staging.add_input(buf, datatype, count); },
      mpi(comm), buf, count, datatype, dest, tag, comm);
}

/// from: the arguments after the type, as the native function takes them.
template <class Call, class N, class... From>
int recv_message(const Call& call, void* buf, N count, Handle datatype, void* status,
                 From... from) {
  const auto into = [&](void* posted, void* filled) {
    return call(posted, count, datatype, from..., filled);
  };
  const P2PArgs args{buf, count, datatype};
  if (!is_native_only(buf, count, datatype)) return blocking_recv(call.comm, args, status, into);
  return recv_natively(call.comm, args, status, [&](void* filled) { return into(buf, filled); });
}

/// make_result(native_request, recv) stores the program's request.
template <class Call, class N, class MakeResult, class... From>
int start_recv_message(const Call& call, void* buf, N count, Handle datatype, void* request,
                       const MakeResult& make_result, From... from) {
  if (is_native_only(buf, count, datatype)) return call(buf, count, datatype, from..., request);
  const auto into = [&](void* posted, void* made) {
    return call(posted, count, datatype, from..., made);
  };
  return start_recv_as(call.comm, {buf, count, datatype}, request, into, make_result);
}

template <class Mpi, class N>
[[gnu::noinline]] int run_recv(Mpi mpi, void* buf, N count, Handle datatype, int source, int tag,
                               Handle comm, void* status) {
  const InCall inside(
      words_of_message(mpi, CallFields::receive, count, datatype, {source, tag}, comm));
  return recv_message(mpi(comm), buf, count, datatype, status, source, tag, comm);
}

/// MPI_Mrecv.
template <class Mpi, class N>
[[gnu::noinline]] int run_recv(Mpi mpi, void* buf, N count, Handle datatype, void* message,
                               void* status) {
  const InCall inside(words_of_message(mpi, CallFields::matched, count, datatype, {}, 0));
  // Without a message the MPI has an error.
  const Handle comm =
      message == nullptr ? native().abi.world : take_matched(native().abi.at(message, 0));
  return recv_message(mpi(comm), buf, count, datatype, status, message);
}

template <class Mpi, class N>
[[gnu::noinline]] int run_irecv(Mpi mpi, void* buf, N count, Handle datatype, int source, int tag,
                                Handle comm, void* request) {
  return start_recv_message(mpi(comm), buf, count, datatype, request, MakeRequest{comm, request},
                            source, tag, comm);
}

/// MPI_Imrecv.
template <class Mpi, class N>
[[gnu::noinline]] int run_irecv(Mpi mpi, void* buf, N count, Handle datatype, void* message,
                                void* request) {
  const Handle comm = take_matched(native().abi.at(message, 0));
  return start_recv_message(mpi(comm), buf, count, datatype, request, MakeRequest{comm, request},
                            message);
}

template <class Mpi, class N>
[[gnu::noinline]] int run_recv_init(Mpi mpi, void* buf, N count, Handle datatype, int source,
                                    int tag, Handle comm, void* request) {
  return start_recv_message(mpi(comm), buf, count, datatype, request, MakePersistent{comm, request},
                            source, tag, comm);
}

template <class Mpi, class N>
[[gnu::noinline]] int run_sendrecv(Mpi mpi, const void* sendbuf, N sendcount, Handle sendtype,
                                   int dest, int sendtag, void* recvbuf, N recvcount,
                                   Handle recvtype, int source, int recvtag, Handle comm,
                                   void* status) {
  const InCall inside(
      words_of_exchange(mpi, sendcount, sendtype, {dest, sendtag}, {source, recvtag}, comm));
  if (is_native_only(sendbuf, sendcount, sendtype) && is_native_only(recvbuf, recvcount, recvtype))
    return recv_natively(comm, {recvbuf, recvcount, recvtype}, status, [&](void* filled) {
      return mpi(comm)(sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype,
                       source, recvtag, comm, filled);
    });
  const auto made = [&](Refusal& refusal) {
    return start_sendrecv<N>(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype,
                             {dest, sendtag, source, recvtag, comm}, refusal);
  };
  return run_blocking(comm, status, made).value_or(0);
}

/// MPI_Sendrecv_replace.
template <class Mpi, class N>
[[gnu::noinline]] int run_sendrecv(Mpi mpi, void* buf, N count, Handle datatype, int dest,
                                   int sendtag, int source, int recvtag, Handle comm,
                                   void* status) {
  const InCall inside(
      words_of_exchange(mpi, count, datatype, {dest, sendtag}, {source, recvtag}, comm));
  if (is_native_only(buf, count, datatype))
    return recv_natively(comm, {buf, count, datatype}, status, [&](void* filled) {
      return mpi(comm)(buf, count, datatype, dest, sendtag, source, recvtag, comm, filled);
    });
  const auto made = [&](Refusal& refusal) {
    return start_sendrecv_replace<N>(buf, count, datatype, {dest, sendtag, source, recvtag, comm},
                                     refusal);
  };
  return run_blocking(comm, status, made).value_or(0);
}

template <class Mpi, class N>
[[gnu::noinline]] int run_isendrecv(Mpi mpi, const void* sendbuf, N sendcount, Handle sendtype,
                                    int dest, int sendtag, void* recvbuf, N recvcount,
                                    Handle recvtype, int source, int recvtag, Handle comm,
                                    void* request) {
  if (is_native_only(sendbuf, sendcount, sendtype) && is_native_only(recvbuf, recvcount, recvtype))
    return mpi(comm)(sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype,
                     source, recvtag, comm, request);  // the completion checks for truncation
  const auto made = [&](Refusal& refusal) {
    return start_sendrecv<N>(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype,
                             {dest, sendtag, source, recvtag, comm}, refusal);
  };
  return start_request(comm, request, made).value_or(0);
}

/// MPI_Isendrecv_replace.
template <class Mpi, class N>
[[gnu::noinline]] int run_isendrecv(Mpi mpi, void* buf, N count, Handle datatype, int dest,
                                    int sendtag, int source, int recvtag, Handle comm,
                                    void* request) {
  if (is_native_only(buf, count, datatype))
    return mpi(comm)(buf, count, datatype, dest, sendtag, source, recvtag, comm, request);
  const auto made = [&](Refusal& refusal) {
    return start_sendrecv_replace<N>(buf, count, datatype, {dest, sendtag, source, recvtag, comm},
                                     refusal);
  };
  return start_request(comm, request, made).value_or(0);
}

}  // namespace plait::mpi
