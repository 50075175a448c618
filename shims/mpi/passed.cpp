// Messages between two ranks, and scans: plait moves large messages, the rest is the MPI's, which
// gets host memory for buffers on GPUs.
#include "shims/mpi/exchange.hpp"
#include "shims/mpi/exports.hpp"
#include "shims/mpi/messages.hpp"
#include "shims/mpi/native.hpp"

namespace plait::mpi {
namespace {

/// Nothing but the MPI's own call is wanted for such a buffer.
bool is_plain(const void* buffer, Count count, Handle type) {
  return !(moves_messages() && may_get_header(type, count)) &&
         !(job_uses_gpus() && is_on_gpu(buffer, type, count));
}
bool is_plain(const void* in, Count in_count, Handle in_type, const void* out, Count out_count,
              Handle out_type, const Ends&) {
  return is_plain(in, in_count, in_type) && is_plain(out, out_count, out_type);
}
bool is_plain(const void* buffer, Count count, Handle type, const Ends&) {
  return is_plain(buffer, count, type);
}

/// Where an exchange receives.
Letter received_of(const void*, Count, Handle, const void* out, Count out_count, Handle out_type,
                   const Ends&) {
  return {out, out_count, out_type};
}
Letter received_of(const void* buffer, Count count, Handle type, const Ends&) {
  return {buffer, count, type};
}

/// As received_plainly(), of a non-blocking call, whose end tells.
template <class Call>
int begun_plainly(Handle, const Letter&, void* request, const Call& call) {
  return call(request);
}

/// A blocking call, as what make(code) begins; nothing where that is nothing, and no error.
template <class Make>
std::optional<int> waited(Handle comm, void* status, const Make& make) {
  try {
    int code = 0;
    const std::unique_ptr<Begun> made = make(code);
    if (made == nullptr) return code == 0 ? std::nullopt : std::optional(code);
    code = wait_for(*made);
    if (status != nullptr && status != real().abi.status_ignore) {
      const int error = error_in(status);  // stays as it is
      made->fill(status);
      error_in(status) = error;
    }
    return made->is_heard ? code : told(comm, code);
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}

/// function(posted, status) is the MPI's receive.
template <class Function>
int received(Handle comm, const Letter& to, void* status, const Function& function) {
  try {
    Delivery delivery(to);
    const Statuses filled(status, 1, true);
    const int code = function(delivery.posted(), filled.at(0));
    if (error_class(code) == real().abi.err_truncate) delivery.cut_short(filled.at(0));
    return code != 0 ? code : told(comm, delivery.end(filled.at(0)));
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}

/// function(posted, request) is the MPI's receive; taken(native, delivery) makes what the program
/// gets of it.
template <class Function, class Taken>
int begin_received(Handle comm, const Letter& to, const Function& function, const Taken& taken) {
  try {
    auto delivery = std::make_unique<Delivery>(to);
    Handle native = 0;
    const int code = function(delivery->posted(), static_cast<void*>(&native));
    return code != 0 ? code : taken(real().abi.at(&native, 0), std::move(delivery));
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}

struct AsRequest {
  Handle comm;
  void* request;
  int operator()(Handle native, std::unique_ptr<Delivery> delivery) const {
    return start(arriving(native, std::move(delivery)), KeptComm(comm), request);
  }
};

struct AsPersistent {
  Handle comm;
  void* request;
  int operator()(Handle native, std::unique_ptr<Delivery> delivery) const {
    Repeated* const made = repeatedly_arriving(native, std::move(delivery), comm);
    keep_persistent(*made, request);
    return 0;
  }
};

/// A persistent send that plait may move. init(&request) is the MPI's own, which looks at the
/// arguments; whether a slot is free, each start finds out.
template <class Width, class Init>
std::optional<int> persist_sent(const Letter& letter, int to, int tag, Handle comm, void* request,
                                const Init& init) {
  try {
    if (tag < 0 || !may_be_offered(letter, to, comm)) return std::nullopt;
    Handle native = 0;
    if (const int code = init(static_cast<void*>(&native))) return code;
    real().Request_free(&native);
    using N = typename Width::N;
    Repeated* const made = repeatedly_begun(
        [=](int& code) {
          return begun_send<Width>(letter.buffer, static_cast<N>(letter.count), letter.type, to,
                                   tag, comm, code);
        },
        comm);
    keep_persistent(*made, request);
    return 0;
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}

/// A call with other memory in the place of its first argument.
template <class Function, class First, class... Rest>
int into(void* posted, const Function& function, First, Rest... rest) {
  return function(posted, rest...);
}

/// What a probe found may be a header.
int probed(int code, Handle comm, int found, void* status) {
  const Abi& abi = real().abi;
  if (code != 0 || found == 0 || !moves_messages()) return code;
  if (status == nullptr || status == abi.status_ignore) return code;
  const std::uint64_t bytes = received_bytes(status);
  const auto* const source =
      reinterpret_cast<const int*>(static_cast<std::byte*>(status) + abi.source_at);
  const std::uint64_t whole = real_bytes(comm, source[0], source[1], bytes);
  if (whole != bytes) set_received_bytes(status, whole);
  return code;
}

}  // namespace

/// In each of these NATIVE calls the MPI's own, and comm's handler hears where there is none; full
/// and twin are the program's names for it.
#define PLAIT_MPI_TRANSFER_AS(full, twin, name, comm_of, parameters, arguments, buffers) \
  PLAIT_EXPORT full parameters {                                                         \
    if (moves_messages()) note_sent(PLAIT_MPI_UNPACKED arguments);                       \
    return staged(                                                                       \
        comm_of, [&](Staging& staging) { staging.buffers; },                             \
        [&](auto... given) { return NATIVE(comm_of, name, given...); },                  \
        PLAIT_MPI_UNPACKED arguments);                                                   \
  }                                                                                      \
  PLAIT_EXPORT twin parameters PLAIT_TWIN(full);

/// MAKE: begin_staged or persist_staged.
#define PLAIT_MPI_REQUEST_AS(full, twin, MAKE, name, comm_of, parameters, arguments, buffers) \
  PLAIT_EXPORT full(PLAIT_MPI_UNPACKED parameters, void* request) {                           \
    if (moves_messages()) note_sent(PLAIT_MPI_UNPACKED arguments);                            \
    return MAKE(                                                                              \
        comm_of, request, [&](Staging& staging) { staging.buffers; },                         \
        [&](auto... given) { return NATIVE(comm_of, name, given...); },                       \
        PLAIT_MPI_UNPACKED arguments);                                                        \
  }                                                                                           \
  PLAIT_EXPORT twin(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_TWIN(full);

#define PLAIT_MPI_PERSISTENT_SENT_AS(full, twin, name, comm_of, parameters, arguments, buffers) \
  PLAIT_EXPORT full(PLAIT_MPI_UNPACKED parameters, void* request) {                             \
    const auto init = [&](void* made) {                                                         \
      return NATIVE(comm_of, name, PLAIT_MPI_UNPACKED arguments, made);                         \
    };                                                                                          \
    if (moves_messages()) {                                                                     \
      const Letter letter{buffer, count, type};                                                 \
      if (const std::optional<int> code =                                                       \
              persist_sent<Width>(letter, peer, tag, comm, request, init))                      \
        return *code;                                                                           \
      note_sent(PLAIT_MPI_UNPACKED arguments);                                                  \
    }                                                                                           \
    return persist_staged(                                                                      \
        comm_of, request, [&](Staging& staging) { staging.buffers; },                           \
        [&](auto... given) { return NATIVE(comm_of, name, given...); },                         \
        PLAIT_MPI_UNPACKED arguments);                                                          \
  }                                                                                             \
  PLAIT_EXPORT twin(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_TWIN(full);

#define PLAIT_MPI_SENT_AS(full, twin, name, parameters, arguments)                            \
  PLAIT_APART name##_apart parameters {                                                       \
    const auto offer = [&](int&) { return offered({buffer, count, type}, peer, tag, comm); }; \
    if (moves_messages())                                                                     \
      if (const std::optional<int> code = waited(comm, nullptr, offer)) return *code;         \
    return staged(                                                                            \
        comm, [&](Staging& staging) { staging.add_input(buffer, type, count); },              \
        [&](auto... given) { return NATIVE(comm, name, given...); },                          \
        PLAIT_MPI_UNPACKED arguments);                                                        \
  }                                                                                           \
  PLAIT_EXPORT full parameters {                                                              \
    if (moves_messages() || may_hold_gpu_memory()) return name##_apart arguments;             \
    return NATIVE(comm, name, PLAIT_MPI_UNPACKED arguments);                                  \
  }                                                                                           \
  PLAIT_EXPORT twin parameters PLAIT_TWIN(full);

#define PLAIT_MPI_BEGUN_SENT_AS(full, twin, name, parameters, arguments)                      \
  PLAIT_APART name##_apart(PLAIT_MPI_UNPACKED parameters, void* request) {                    \
    const auto offer = [&](int&) { return offered({buffer, count, type}, peer, tag, comm); }; \
    if (moves_messages())                                                                     \
      if (const std::optional<int> code = begun(comm, request, offer)) return *code;          \
    return begin_staged(                                                                      \
        comm, request, [&](Staging& staging) { staging.add_input(buffer, type, count); },     \
        [&](auto... given) { return NATIVE(comm, name, given...); },                          \
        PLAIT_MPI_UNPACKED arguments);                                                        \
  }                                                                                           \
  PLAIT_EXPORT full(PLAIT_MPI_UNPACKED parameters, void* request) {                           \
    if (moves_messages() || may_hold_gpu_memory())                                            \
      return name##_apart(PLAIT_MPI_UNPACKED arguments, request);                             \
    return NATIVE(comm, name, PLAIT_MPI_UNPACKED arguments, request);                         \
  }                                                                                           \
  PLAIT_EXPORT twin(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_TWIN(full);

#define PLAIT_MPI_INTO(comm_of, name, arguments)                                      \
  [&](void* posted, void* last) {                                                     \
    return into(                                                                      \
        posted, [&](auto... given) { return NATIVE(comm_of, name, given..., last); }, \
        PLAIT_MPI_UNPACKED arguments);                                                \
  }

#define PLAIT_MPI_RECEIVED_AS(full, twin, name, comm_of, parameters, arguments) \
  PLAIT_APART name##_apart(PLAIT_MPI_UNPACKED parameters, void* status) {       \
    if (is_plain(buffer, count, type)) {                                        \
      const auto plainly = [&](void* told) {                                    \
        return NATIVE(comm_of, name, PLAIT_MPI_UNPACKED arguments, told);       \
      };                                                                        \
      return received_plainly(comm_of, {buffer, count, type}, status, plainly); \
    }                                                                           \
    return received(comm_of, {buffer, count, type}, status,                     \
                    PLAIT_MPI_INTO(comm_of, name, arguments));                  \
  }                                                                             \
  PLAIT_EXPORT full(PLAIT_MPI_UNPACKED parameters, void* status) {              \
    if (moves_messages() || may_hold_gpu_memory())                              \
      return name##_apart(PLAIT_MPI_UNPACKED arguments, status);                \
    return NATIVE(comm_of, name, PLAIT_MPI_UNPACKED arguments, status);         \
  }                                                                             \
  PLAIT_EXPORT twin(PLAIT_MPI_UNPACKED parameters, void* status) PLAIT_TWIN(full);

/// TAKEN: AsRequest or AsPersistent.
#define PLAIT_MPI_BEGUN_RECEIVED_AS(full, twin, TAKEN, name, comm_of, parameters, arguments)  \
  PLAIT_APART name##_apart(PLAIT_MPI_UNPACKED parameters, void* request) {                    \
    if (is_plain(buffer, count, type))                                                        \
      return NATIVE(comm_of, name, PLAIT_MPI_UNPACKED arguments, request);                    \
    return begin_received(comm_of, {buffer, count, type},                                     \
                          PLAIT_MPI_INTO(comm_of, name, arguments), TAKEN{comm_of, request}); \
  }                                                                                           \
  PLAIT_EXPORT full(PLAIT_MPI_UNPACKED parameters, void* request) {                           \
    if (moves_messages() || may_hold_gpu_memory())                                            \
      return name##_apart(PLAIT_MPI_UNPACKED arguments, request);                             \
    return NATIVE(comm_of, name, PLAIT_MPI_UNPACKED arguments, request);                      \
  }                                                                                           \
  PLAIT_EXPORT twin(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_TWIN(full);

/// WAITED: waited or begun, with where its result goes; PLAINLY: the same of the MPI's own.
#define PLAIT_MPI_EXCHANGED_AS(full, twin, WAITED, PLAINLY, name, result, parameters, arguments, \
                               make, ends)                                                       \
  PLAIT_APART name##_apart(PLAIT_MPI_UNPACKED parameters, void* result) {                        \
    const auto plainly = [&](void* given) {                                                      \
      return NATIVE(comm, name, PLAIT_MPI_UNPACKED arguments, given);                            \
    };                                                                                           \
    if (is_plain ends) return PLAINLY(comm, received_of ends, result, plainly);                  \
    const auto made = [&](int& code) { return make<Width>(PLAIT_MPI_UNPACKED ends, code); };     \
    return WAITED(comm, result, made).value_or(0);                                               \
  }                                                                                              \
  PLAIT_EXPORT full(PLAIT_MPI_UNPACKED parameters, void* result) {                               \
    if (moves_messages() || may_hold_gpu_memory())                                               \
      return name##_apart(PLAIT_MPI_UNPACKED arguments, result);                                 \
    return NATIVE(comm, name, PLAIT_MPI_UNPACKED arguments, result);                             \
  }                                                                                              \
  PLAIT_EXPORT twin(PLAIT_MPI_UNPACKED parameters, void* result) PLAIT_TWIN(full);

#define PLAIT_MPI_TRANSFER(name, ...) \
  PLAIT_MPI_TRANSFER_AS(MPI_NAME(name), PMPI_NAME(name), name, __VA_ARGS__)
#define PLAIT_MPI_BEGUN_TRANSFER(name, ...) \
  PLAIT_MPI_REQUEST_AS(MPI_NAME(name), PMPI_NAME(name), begin_staged, name, __VA_ARGS__)
#define PLAIT_MPI_PERSISTENT(name, ...) \
  PLAIT_MPI_REQUEST_AS(MPI_NAME(name), PMPI_NAME(name), persist_staged, name, __VA_ARGS__)
#define PLAIT_MPI_PERSISTENT_SENT(name, ...) \
  PLAIT_MPI_PERSISTENT_SENT_AS(MPI_NAME(name), PMPI_NAME(name), name, __VA_ARGS__)
#define PLAIT_MPI_SENT(name, comm, ...) \
  PLAIT_MPI_SENT_AS(MPI_NAME(name), PMPI_NAME(name), name, __VA_ARGS__)
#define PLAIT_MPI_BEGUN_SENT(name, comm, ...) \
  PLAIT_MPI_BEGUN_SENT_AS(MPI_NAME(name), PMPI_NAME(name), name, __VA_ARGS__)
#define PLAIT_MPI_RECEIVED(name, ...) \
  PLAIT_MPI_RECEIVED_AS(MPI_NAME(name), PMPI_NAME(name), name, __VA_ARGS__)
#define PLAIT_MPI_BEGUN_RECEIVED(name, ...) \
  PLAIT_MPI_BEGUN_RECEIVED_AS(MPI_NAME(name), PMPI_NAME(name), AsRequest, name, __VA_ARGS__)
#define PLAIT_MPI_PERSISTENT_RECEIVED(name, ...) \
  PLAIT_MPI_BEGUN_RECEIVED_AS(MPI_NAME(name), PMPI_NAME(name), AsPersistent, name, __VA_ARGS__)
#define PLAIT_MPI_EXCHANGED(name, comm, ...)                                                      \
  PLAIT_MPI_EXCHANGED_AS(MPI_NAME(name), PMPI_NAME(name), waited, received_plainly, name, status, \
                         __VA_ARGS__)
#define PLAIT_MPI_BEGUN_EXCHANGED(name, comm, ...)                                             \
  PLAIT_MPI_EXCHANGED_AS(MPI_NAME(name), PMPI_NAME(name), begun, begun_plainly, name, request, \
                         __VA_ARGS__)

namespace small_counts {
#define PLAIT_MPI_AGAIN  // below, for wide counts
using Width = Small;
using N = Width::N;
#define MPI_NAME(name) MPI_##name
#define PMPI_NAME(name) PMPI_##name
#define NATIVE(comm, function, ...) if_there(real().small_passed.function, comm, __VA_ARGS__)
#include "shims/mpi/passed.def"
#undef NATIVE
#undef MPI_NAME
#undef PMPI_NAME
}  // namespace small_counts

namespace large_counts {
using Width = Large;
using N = Width::N;
#define MPI_NAME(name) MPI_##name##_c
#define PMPI_NAME(name) PMPI_##name##_c
#define NATIVE(comm, function, ...) \
  large_or_small(real().large_passed.function, real().small_passed.function, comm, __VA_ARGS__)
#include "shims/mpi/passed.def"
#undef NATIVE
#undef MPI_NAME
#undef PMPI_NAME
}  // namespace large_counts

PLAIT_EXPORT MPI_Probe(int source, int tag, Handle comm, void* status) {
  return probed(real().Probe(source, tag, comm, status), comm, 1, status);
}
PLAIT_EXPORT MPI_Iprobe(int source, int tag, Handle comm, int* flag, void* status) {
  complete_ended();  // not every MPI calls it by itself
  const int code = real().Iprobe(source, tag, comm, flag, status);
  return probed(code, comm, *flag, status);
}
PLAIT_EXPORT MPI_Mprobe(int source, int tag, Handle comm, void* message, void* status) {
  return probed(real().Mprobe(source, tag, comm, message, status), comm, 1, status);
}
PLAIT_EXPORT MPI_Improbe(int source, int tag, Handle comm, int* flag, void* message, void* status) {
  complete_ended();
  const int code = real().Improbe(source, tag, comm, flag, message, status);
  return probed(code, comm, *flag, status);
}
PLAIT_EXPORT PMPI_Probe(int, int, Handle, void*) PLAIT_TWIN(MPI_Probe);
PLAIT_EXPORT PMPI_Iprobe(int, int, Handle, int*, void*) PLAIT_TWIN(MPI_Iprobe);
PLAIT_EXPORT PMPI_Mprobe(int, int, Handle, void*, void*) PLAIT_TWIN(MPI_Mprobe);
PLAIT_EXPORT PMPI_Improbe(int, int, Handle, int*, void*, void*) PLAIT_TWIN(MPI_Improbe);

}  // namespace plait::mpi
