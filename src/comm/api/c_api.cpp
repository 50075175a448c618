// Implements plait.h over Communicator: checks enum values, turns exceptions into result codes, and
// keeps the last error text per thread. A rank with arguments that form no valid request reports
// that to the peers, as the Python API does.
#include "comm/api/c_api.hpp"

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "base/env.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/launch_page.hpp"
#include "comm/choose/choose.hpp"
#include "gpu/norm/norm_call.hpp"
#include "gpu/select/engines.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"
#include "plait/plait.h"

namespace plait {
namespace {

static_assert(plait_bf16 == static_cast<int>(DataType::bf16) &&
                  plait_bit_xor == static_cast<int>(ReduceOp::bit_xor),
              "the C enums are made from the same tables");

struct LastError {
  plaitComm_t comm = nullptr;
  std::string sentence;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

}  // namespace

plaitResult_t remember(plaitComm_t comm, ErrorCode code, const char* sentence) noexcept {
  note_lost_peer(code);
  try {
    last_error() = {comm, sentence};
  } catch (const std::bad_alloc&) {  // out of memory: the code alone is returned
  }
  return static_cast<plaitResult_t>(code);
}

/// Makes a request from C values. Bad values are reported to the peers, if the call runs on
/// the host, and then thrown here.
Request request_of(Communicator& communicator, bool device, Collective collective,
                   std::size_t count, int type, int op, int root, int peer) {
  std::optional<Error> bad;
  if (type < 0 || type >= plaitDataType_count)
    bad = Error(ErrorCode::invalid_argument,
                text("type: wanted 0..{}, found {}", plaitDataType_count - 1, type));
  if (op < 0 || op >= plaitRedOp_count)
    bad = Error(ErrorCode::invalid_argument,
                text("op: wanted 0..{}, found {}", plaitRedOp_count - 1, op));
  // A negative number of a signed type arrives as a huge count.
  if (count > (std::size_t{1} << 62))
    bad = Error(ErrorCode::invalid_argument,
                text("count: wanted at most 2^62, found {} (overflowing or negative)",
                     static_cast<std::int64_t>(count)));
  if (bad) {
    if (!device) communicator.refuse(bad->code(), bad->what());
    throw Error(*bad);
  }
  Request request;
  request.collective = collective;
  request.count = count;
  request.type = static_cast<DataType>(type);
  request.op = static_cast<ReduceOp>(op);
  request.ranks = communicator.ranks();
  request.root = root;
  request.peer = peer;
  return request;
}

/// True for a call on device memory. A mixture of device and host buffers is reported to the peers
/// as an error of a host call, since the peers may wait in a host call.
bool on_device(Communicator& communicator, const void* input, const void* output,
               const void* stream) {
  const bool in = communicator.on_device(input), out = communicator.on_device(output);
  const bool host = (input != nullptr && !in) || (output != nullptr && !out);
  std::string found;
  if ((in || out) && host) found = "one buffer on the GPU and one in host memory";
  if (!in && !out && host && stream != nullptr) found = "a stream with host memory";
  if (!found.empty()) {
    const Error bad(
        ErrorCode::invalid_argument,
        text("buffers: wanted both on the GPU, or both in host memory and no stream; found {}",
             found));
    if (!in && !out) communicator.refuse(bad.code(), bad.what());
    throw bad;
  }
  return in || out || (!host && stream != nullptr);
}

namespace {

std::string words(const char* given) {
  return given == nullptr ? std::string() : std::string(given);
}

void call_on(Communicator& communicator, const CallOptions& options, void* stream,
             Collective collective, const void* input, void* output, std::size_t count, int type,
             int op, int root, int peer) {
  const bool device = on_device(communicator, input, output, stream);
  const Request request = request_of(communicator, device, collective, count, type, op, root, peer);
  if (device) return communicator.enqueue(request, input, output, stream, options);
  communicator.run(request, input, output, options);
}

plaitResult_t call(plaitComm_t comm, void* stream, Collective collective, const void* input,
                   void* output, std::size_t count, int type, int op = plait_sum, int root = 0,
                   int peer = 0) noexcept {
  return guarded(comm, [&] {
    call_on(*wanted(comm, "comm")->communicator, comm->options, stream, collective, input, output,
            count, type, op, root, peer);
  });
}

/// Throws Error(invalid_argument) if no engine and no strategy has the name; empty = plait chooses.
void check_known(const std::string& strategy) {
  if (strategy.empty() || strategy == cuda::kUnfused ||
      cuda::engine_named(strategy, Request{}) != nullptr)
    return;
  std::string names = cuda::engine_names();
  for (const StrategyInfo& info : strategies()) {
    if (info.name == strategy) return;
    if (cuda::engine_named(info.name, Request{}) == nullptr) names += text(", {}", info.name);
  }
  throw Error(ErrorCode::invalid_argument,
              text("strategy: wanted an engine or a strategy (one of {}), or NULL, found \"{}\"",
                   names, strategy));
}

enum class PairDirection { send, receive, both };

/// Runs a send, receive or exchange between this rank and `peer`.
plaitResult_t call_pair(plaitComm_t comm, void* stream, PairDirection direction, const void* input,
                        void* output, std::size_t count, int type, int peer) noexcept {
  return guarded(comm, [&] {
    Communicator& all = *wanted(comm, "comm")->communicator;
    Communicator& pair = all.pair(peer);
    CallOptions options = comm->options;
    options.scalars.clear();  // scalars belong to the larger communicator's ranks
    const int sender = direction == PairDirection::send ? pair.rank() : 1 - pair.rank();
    const Collective what =
        direction == PairDirection::both ? Collective::send_recv : Collective::copy;
    // A pair without a GPU would treat device memory as host memory; enqueue() throws why the pair
    // has no GPU.
    if (pair.device() == kNoDevice && (all.on_device(input) || all.on_device(output)))
      return pair.enqueue(Request{}, input, output, stream, options);
    call_on(pair, options, stream, what, input, output, count, type, plait_sum,
            direction == PairDirection::both ? 0 : sender,
            direction == PairDirection::both ? 0 : 1 - sender);
  });
}

constexpr std::size_t kSizeBeforeGpus = offsetof(plaitOptions_t, device);
constexpr std::size_t kSizeBeforeOverlapCompute = offsetof(plaitOptions_t, overlap_compute);
constexpr std::size_t kSizeBeforeSumOrder = offsetof(plaitOptions_t, sum_order);

void check_size(std::size_t size) {
  if (size != sizeof(plaitOptions_t) && size != kSizeBeforeGpus &&
      size != kSizeBeforeOverlapCompute && size != kSizeBeforeSumOrder)
    throw Error(ErrorCode::invalid_argument,
                text("options: wanted size {}, found {}; call plaitOptionsDefault(options, sizeof "
                     "*options) first",
                     sizeof(plaitOptions_t), size));
}

CommunicatorOptions options_of(const plaitOptions_t& given) {
  check_size(given.size);
  CommunicatorOptions options;
  options.rank = given.rank;
  options.ranks = given.ranks;
  options.rendezvous = words(given.rendezvous);
  options.topology = words(given.topology);
  options.masks = split(words(given.masks), ',');
  options.arrive_s = given.arrive_s;
  options.deadline_s = given.deadline_s;
  if (given.size > kSizeBeforeGpus) {
    options.device = given.device;
    options.sm_budget = given.sm_budget;
  }
  if (given.size > kSizeBeforeOverlapCompute) {
    options.overlap_compute = given.overlap_compute != 0;
    options.graph_mixing = given.graph_mixing != 0;
  }
  if (given.size > kSizeBeforeSumOrder) options.sum_order = words(given.sum_order);
  return options;
}

void init(plaitComm_t* comm, const CommunicatorOptions& options) {
  auto made = std::make_unique<plaitComm>();
  made->communicator = Communicator::create(options);
  *comm = made.release();
}

}  // namespace
}  // namespace plait

using namespace plait;

extern "C" {

plaitResult_t plaitGetVersion(int* version) {
  return guarded(nullptr, [&] {
    int major = 0, minor = 0, patch = 0;
    std::sscanf(PLAIT_VERSION, "%d.%d.%d", &major, &minor, &patch);
    *wanted(version, "version") = 10000 * major + 100 * minor + patch;
  });
}

const char* plaitGetErrorString(plaitResult_t result) {
  return error_text(static_cast<ErrorCode>(result));
}

const char* plaitGetLastError(plaitComm_t comm) {
  const LastError& error = last_error();
  return comm == nullptr || comm == error.comm ? error.sentence.c_str() : "";
}

plaitResult_t plaitOptionsDefault(plaitOptions_t* options, size_t size) {
  return guarded(nullptr, [&] {
    check_size(size);
    const CommunicatorOptions usual;
    const Env env = read_env();
    const plaitOptions_t made{.size = size,
                              .rank = usual.rank,
                              .ranks = usual.ranks,
                              .rendezvous = "",
                              .topology = "",
                              .masks = "",
                              .arrive_s = env.arrive_s,
                              .deadline_s = env.deadline_s,
                              .device = usual.device,
                              .sm_budget = usual.sm_budget,
                              .overlap_compute = usual.overlap_compute ? 1 : 0,
                              .graph_mixing = usual.graph_mixing ? 1 : 0,
                              .sum_order = ""};
    std::memcpy(wanted(options, "options"), &made, size);
  });
}

plaitResult_t plaitCommInitRank(plaitComm_t* comm, const plaitOptions_t* options) {
  return guarded(nullptr, [&] {
    *wanted(comm, "comm") = nullptr;
    init(comm, options_of(*wanted(options, "options")));
  });
}

plaitResult_t plaitCommInitFromEnvironment(plaitComm_t* comm) {
  return guarded(nullptr, [&] {
    *wanted(comm, "comm") = nullptr;
    init(comm, options_from_environment());
  });
}

plaitResult_t plaitCommRank(plaitComm_t comm, int* rank) {
  return guarded(comm, [&] { *wanted(rank, "rank") = wanted(comm, "comm")->communicator->rank(); });
}

plaitResult_t plaitCommCount(plaitComm_t comm, int* ranks) {
  return guarded(comm,
                 [&] { *wanted(ranks, "ranks") = wanted(comm, "comm")->communicator->ranks(); });
}

plaitResult_t plaitCommAbort(plaitComm_t comm) {
  return guarded(comm, [&] { wanted(comm, "comm")->communicator->abort(); });
}

plaitResult_t plaitCommDestroy(plaitComm_t comm) {
  return guarded(nullptr, [&] { delete comm; });
}

plaitResult_t plaitCommSetStrategy(plaitComm_t comm, const char* strategy) {
  return guarded(comm, [&] {
    const CallOptions parsed = parse_algo("strategy", words(strategy));
    check_known(parsed.strategy);
    wanted(comm, "comm")->options.strategy = parsed.strategy;
    comm->options.params = parsed.params;
  });
}

plaitResult_t plaitCommSetScalar(plaitComm_t comm, double scalar) {
  return guarded(comm, [&] { wanted(comm, "comm")->options.scalar = scalar; });
}

plaitResult_t plaitCommSetScalars(plaitComm_t comm, const double* scalars, int count) {
  return guarded(comm, [&] {
    const int ranks = wanted(comm, "comm")->communicator->ranks();
    if (count != 0 && count != ranks)
      throw Error(ErrorCode::invalid_argument,
                  text("scalars: wanted {} of them, or 0, found {}", ranks, count));
    if (count != 0) wanted(scalars, "scalars");
    comm->options.scalars.assign(scalars, scalars + count);
  });
}

plaitResult_t plaitCommDevice(plaitComm_t comm, int* device) {
  return guarded(comm,
                 [&] { *wanted(device, "device") = wanted(comm, "comm")->communicator->device(); });
}

plaitResult_t plaitCommAdoptDevice(plaitComm_t comm, int device) {
  return guarded(comm, [&] { wanted(comm, "comm")->communicator->adopt_device(device); });
}

plaitResult_t plaitCommSuspend(plaitComm_t comm) {
  return guarded(comm, [&] { wanted(comm, "comm")->communicator->suspend(); });
}

plaitResult_t plaitCommResume(plaitComm_t comm) {
  return guarded(comm, [&] { wanted(comm, "comm")->communicator->resume(); });
}

plaitResult_t plaitCommGpuMemory(plaitComm_t comm, uint64_t* staying, uint64_t* suspendable) {
  return guarded(comm, [&] {
    const GpuMemory held = wanted(comm, "comm")->communicator->gpu_memory();
    *wanted(staying, "staying") = held.staying;
    *wanted(suspendable, "suspendable") = held.suspendable;
  });
}

plaitResult_t plaitCommGetAsyncError(plaitComm_t comm, plaitResult_t* async) {
  return guarded(comm, [&] {
    *wanted(async, "async") = plait_ok;
    Communicator& communicator = *wanted(comm, "comm")->communicator;
    if (communicator.device() == kNoDevice) return;
    *async = guarded(comm, [&] { communicator.check(); });
  });
}

plaitResult_t plaitAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                             plaitDataType_t type, plaitRedOp_t op, plaitComm_t comm,
                             void* stream) {
  return call(comm, stream, Collective::all_reduce, sendbuff, recvbuff, count, type, op);
}

plaitResult_t plaitReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                 plaitDataType_t type, plaitRedOp_t op, plaitComm_t comm,
                                 void* stream) {
  return call(comm, stream, Collective::reduce_scatter, sendbuff, recvbuff, recvcount, type, op);
}

plaitResult_t plaitAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                             plaitDataType_t type, plaitComm_t comm, void* stream) {
  return call(comm, stream, Collective::all_gather, sendbuff, recvbuff, sendcount, type);
}

plaitResult_t plaitBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                             plaitDataType_t type, int root, plaitComm_t comm, void* stream) {
  return call(comm, stream, Collective::broadcast, sendbuff, recvbuff, count, type, plait_sum,
              root);
}

plaitResult_t plaitReduce(const void* sendbuff, void* recvbuff, size_t count, plaitDataType_t type,
                          plaitRedOp_t op, int root, plaitComm_t comm, void* stream) {
  return call(comm, stream, Collective::reduce, sendbuff, recvbuff, count, type, op, root);
}

plaitResult_t plaitAllToAll(const void* sendbuff, void* recvbuff, size_t count,
                            plaitDataType_t type, plaitComm_t comm, void* stream) {
  return call(comm, stream, Collective::all_to_all, sendbuff, recvbuff, count, type);
}

plaitResult_t plaitGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                          plaitDataType_t type, int root, plaitComm_t comm, void* stream) {
  return call(comm, stream, Collective::gather, sendbuff, recvbuff, sendcount, type, plait_sum,
              root);
}

plaitResult_t plaitScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                           plaitDataType_t type, int root, plaitComm_t comm, void* stream) {
  return call(comm, stream, Collective::scatter, sendbuff, recvbuff, recvcount, type, plait_sum,
              root);
}

plaitResult_t plaitSendRecv(const void* sendbuff, void* recvbuff, size_t count,
                            plaitDataType_t type, plaitComm_t comm, void* stream) {
  return call(comm, stream, Collective::send_recv, sendbuff, recvbuff, count, type);
}

plaitResult_t plaitCopy(const void* sendbuff, void* recvbuff, size_t count, plaitDataType_t type,
                        int src, int dst, plaitComm_t comm, void* stream) {
  return call(comm, stream, Collective::copy, sendbuff, recvbuff, count, type, plait_sum, src, dst);
}

plaitResult_t plaitSend(const void* sendbuff, size_t count, plaitDataType_t type, int peer,
                        plaitComm_t comm, void* stream) {
  return call_pair(comm, stream, PairDirection::send, sendbuff, nullptr, count, type, peer);
}

plaitResult_t plaitRecv(void* recvbuff, size_t count, plaitDataType_t type, int peer,
                        plaitComm_t comm, void* stream) {
  return call_pair(comm, stream, PairDirection::receive, nullptr, recvbuff, count, type, peer);
}

plaitResult_t plaitExchangeWith(const void* sendbuff, void* recvbuff, size_t count,
                                plaitDataType_t type, int peer, plaitComm_t comm, void* stream) {
  return call_pair(comm, stream, PairDirection::both, sendbuff, recvbuff, count, type, peer);
}

plaitResult_t plaitBarrier(plaitComm_t comm) {
  return guarded(comm, [&] { wanted(comm, "comm")->communicator->barrier(); });
}

}  // extern "C"
