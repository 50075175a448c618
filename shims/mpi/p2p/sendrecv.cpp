// Joins a send and a receive into one pending request, which ends when both have ended.
#include "shims/mpi/p2p/sendrecv.hpp"

#include <climits>
#include <exception>
#include <type_traits>
#include <utility>
#include <vector>

#include "shims/mpi/abi/status.hpp"

namespace plait::mpi {
namespace {

/// A pending sendrecv, with the status of the receive.
struct SendrecvRequest : PendingRequest {
  bool has_ended() override {
    if (cancel_requested.exchange(false)) receive->cancel();
    receive_ended = receive_ended || has_ended(*receive);
    send_ended = send_ended || has_ended(*send);
    if (!receive_ended || !send_ended) return false;
    if (thrown_in_half) std::rethrow_exception(std::exchange(thrown_in_half, nullptr));
    const PendingRequest& first = receive->code != 0 ? *receive : *send;
    code = first.code;
    is_reported = first.is_reported;
    return true;
  }
  void fill(void* status) const override { receive->fill(status); }
  bool must_end() const override { return !receive_ended && receive->must_end(); }
  /// An exception of the program's error handler ends the half alone: the other half's buffers are
  /// in use.
  bool has_ended(PendingRequest& half) {
    try {
      return half.has_ended();
    } catch (...) {
      if (!thrown_in_half) thrown_in_half = std::current_exception();
      half.code = native().abi.err_other;
      half.is_reported = true;
      return true;
    }
  }

  std::vector<std::byte> packed;  ///< copy of the data to send, if the receive overwrites the data
  std::unique_ptr<PendingRequest> receive, send;
  bool receive_ended = false, send_ended = false;
  std::exception_ptr thrown_in_half;
};

/// MPI_Isend and MPI_Irecv, by the type of the count.
template <class N>
auto native_isend(Handle comm) {
  if constexpr (std::is_same_v<N, int>)
    return Native<&NativeFunctions::Isend>()(comm);
  else
    return Native<&NativeFunctions::Isend_c, &NativeFunctions::Isend>()(comm);
}
template <class N>
auto native_irecv(Handle comm) {
  if constexpr (std::is_same_v<N, int>)
    return Native<&NativeFunctions::Irecv>()(comm);
  else
    return Native<&NativeFunctions::Irecv_c, &NativeFunctions::Irecv>()(comm);
}

/// Sends rows of `row` bytes each. If the total exceeds an int, the datatype is a row.
std::unique_ptr<PendingRequest> start_packed_send(const void* buffer, Count rows, std::uint64_t row,
                                                  const SendrecvPeers& ends, Refusal& refusal) {
  const Handle byte = native().abi.byte;
  const Count bytes = rows * static_cast<Count>(row);
  if (bytes <= INT_MAX || native().Isend_c != nullptr || row > INT_MAX)
    return start_send<Count>(buffer, bytes, byte, ends.to, ends.out_tag, ends.comm, refusal);
  if (auto one =
          start_rendezvous_send({buffer, bytes, byte}, ends.to, ends.out_tag, ends.comm, refusal);
      one != nullptr || refusal)
    return one;
  Handle type = 0;
  NativeHandle made;
  int code = native().Type_contiguous(static_cast<int>(row), byte, &type);
  if (code == 0) code = native().Type_commit(&type);
  if (code == 0) {
    code = native().Isend(buffer, static_cast<int>(rows), native().abi.at(&type, 0), ends.to,
                          ends.out_tag, ends.comm, made.stored());
    native().Type_free(&type);
  }
  if (!made.is_refused(code)) return make_native_request(made.handle(), CallStaging());
  refusal = code;
  return nullptr;
}

template <class N>
std::unique_ptr<PendingRequest> start_recv(void* buffer, N count, Handle type, int from, int tag,
                                           Handle comm, Refusal& refusal) {
  auto recv = std::make_unique<RendezvousRecv>(P2PArgs{buffer, count, type});
  NativeHandle made;
  const int code =
      native_irecv<N>(comm)(recv->posted(), count, type, from, tag, comm, made.stored());
  if (!made.is_refused(code)) return make_recv_request(made.handle(), std::move(recv));
  refusal = code;
  return nullptr;
}

void cancel_and_wait(PendingRequest& receive) {
  receive.cancel();
  wait_for(receive);
}

}  // namespace

template <class N>
std::unique_ptr<PendingRequest> start_send(const void* buffer, N count, Handle type, int to,
                                           int tag, Handle comm, Refusal& refusal) {
  if (auto one = start_rendezvous_send({buffer, count, type}, to, tag, comm, refusal);
      one != nullptr || refusal)
    return one;
  CallStaging staging;
  if (job_uses_gpus()) staging.add_input(buffer, type, count);
  NativeHandle made;
  const int code =
      native_isend<N>(comm)(staging.substitute(buffer), count, type, to, tag, comm, made.stored());
  if (!made.is_refused(code)) return make_native_request(made.handle(), std::move(staging));
  refusal = code;
  return nullptr;
}

/// Starts the receive first, so that a message to this rank itself finds it.
template <class N>
std::unique_ptr<PendingRequest> start_sendrecv(const void* in, N in_count, Handle in_type,
                                               void* out, N out_count, Handle out_type,
                                               const SendrecvPeers& ends, Refusal& refusal) {
  auto made = std::make_unique<SendrecvRequest>();
  made->receive =
      start_recv<N>(out, out_count, out_type, ends.from, ends.in_tag, ends.comm, refusal);
  if (made->receive == nullptr) return nullptr;
  made->send = start_send<N>(in, in_count, in_type, ends.to, ends.out_tag, ends.comm, refusal);
  if (made->send != nullptr) return made;
  cancel_and_wait(*made->receive);
  return nullptr;
}

template <class N>
std::unique_ptr<PendingRequest> start_sendrecv_replace(void* buffer, N count, Handle type,
                                                       const SendrecvPeers& ends,
                                                       Refusal& refusal) {
  auto made = std::make_unique<SendrecvRequest>();
  const Layout layout = layout_of(type);
  const std::uint64_t bytes = layout.bytes * static_cast<std::uint64_t>(count < 0 ? 0 : count);
  CallStaging staging;
  if (job_uses_gpus()) staging.add_input(buffer, type, count);
  made->packed.resize(bytes);
  pack(staging.substitute(static_cast<const void*>(buffer)), bytes > 0 ? count : 0, layout,
       made->packed.data());
  made->receive = start_recv<N>(buffer, count, type, ends.from, ends.in_tag, ends.comm, refusal);
  if (made->receive == nullptr) return nullptr;
  made->send = start_packed_send(made->packed.data(), count, layout.bytes, ends, refusal);
  if (made->send != nullptr) return made;
  cancel_and_wait(*made->receive);
  return nullptr;
}

template std::unique_ptr<PendingRequest> start_send<int>(const void*, int, Handle, int, int, Handle,
                                                         Refusal&);
template std::unique_ptr<PendingRequest> start_sendrecv<int>(const void*, int, Handle, void*, int,
                                                             Handle, const SendrecvPeers&,
                                                             Refusal&);
template std::unique_ptr<PendingRequest> start_sendrecv_replace<int>(void*, int, Handle,
                                                                     const SendrecvPeers&,
                                                                     Refusal&);
template std::unique_ptr<PendingRequest> start_send<Count>(const void*, Count, Handle, int, int,
                                                           Handle, Refusal&);
template std::unique_ptr<PendingRequest> start_sendrecv<Count>(const void*, Count, Handle, void*,
                                                               Count, Handle, const SendrecvPeers&,
                                                               Refusal&);
template std::unique_ptr<PendingRequest> start_sendrecv_replace<Count>(void*, Count, Handle,
                                                                       const SendrecvPeers&,
                                                                       Refusal&);

namespace {

/// The same with the signatures of MPI_Isendrecv and MPI_Isendrecv_replace.
template <class N>
struct IsendrecvFunctions {
  static int both(const void* in, N in_count, Handle in_type, int to, int out_tag, void* out,
                  N out_count, Handle out_type, int from, int in_tag, Handle comm, void* request) {
    return *start_request(comm, request, [&](Refusal& refusal) {
      return start_sendrecv<N>(in, in_count, in_type, out, out_count, out_type,
                               {to, out_tag, from, in_tag, comm}, refusal);
    });
  }
  static int in_place(void* buffer, N count, Handle type, int to, int out_tag, int from, int in_tag,
                      Handle comm, void* request) {
    return *start_request(comm, request, [&](Refusal& refusal) {
      return start_sendrecv_replace<N>(buffer, count, type, {to, out_tag, from, in_tag, comm},
                                       refusal);
    });
  }
};

}  // namespace

void add_isendrecv(NativeMpi& table) {
  const bool has_counts = table.abi.family == MpiFamily::open_mpi;
  if (has_counts && table.Isendrecv != nullptr) return;
  table.Isendrecv = IsendrecvFunctions<int>::both;
  table.Isendrecv_replace = IsendrecvFunctions<int>::in_place;
  if (table.Isendrecv_c == nullptr) return;  // large counts are narrowed
  table.Isendrecv_c = IsendrecvFunctions<Count>::both;
  table.Isendrecv_replace_c = IsendrecvFunctions<Count>::in_place;
}

}  // namespace plait::mpi
