// Uses NCCL's own call for a collective if available. The remaining collectives are a group of
// sends and receives, available in every NCCL.
#include "comm/transport/nccl/nccl_transport.hpp"

#include <chrono>
#include <thread>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/transport/nccl/native.hpp"
#include "comm/transport/nccl/numbers.hpp"

namespace plait::nccl {
namespace {

void require(Result result, const char* what) {
  if (result != ncclSuccess)
    throw Error(ErrorCode::peer_lost,
                text("{} between nodes returned {}", what, static_cast<int>(result)));
}

/// NCCL's type number, and NCCL elements per element: calls that only move data may move bytes.
struct Elements {
  int type = -1;
  std::uint64_t each = 1;
};

Elements elements_of(const Request& request) {
  const int type = nccl_type(request.type);
  if (type >= 0) return {type, 1};
  return {kUint8, bytes_of(request.type)};
}

/// A reduction of NCCL, or a scaled sum made for a single call.
class ScaledSumOp {
 public:
  ScaledSumOp(const Request& request, double scalar, int type, Comm comm)
      : comm_(comm), number_(nccl_op(request.op)) {
    if (number_ >= 0) return;
    float narrow = static_cast<float>(scalar);
    void* const factor = request.type == DataType::fp32 ? static_cast<void*>(&narrow) : &scalar;
    require(native().make_scaled_sum(&number_, factor, type, kScalarHost, comm),
            "ncclRedOpCreatePreMulSum");
    is_made_ = true;
  }
  ~ScaledSumOp() {
    if (is_made_) native().end_scaled_sum(number_, comm_);  // calls already made keep the sum
  }
  ScaledSumOp(const ScaledSumOp&) = delete;
  ScaledSumOp& operator=(const ScaledSumOp&) = delete;
  int number() const { return number_; }

 private:
  Comm comm_;
  int number_;
  bool is_made_ = false;
};

bool is_called(Collective collective) {
  return reduces(collective) || collective == Collective::all_gather ||
         collective == Collective::broadcast;
}

}  // namespace

std::string why_no_call(const Request& request) {
  constexpr const char* kBetween = "NCCL, which is what lies between nodes, ";
  const bool is_scaled = request.op == ReduceOp::premul_sum;
  if (!is_called(request.collective))
    return native().send != nullptr && native().receive != nullptr
               ? ""
               : text("ncclSend: {} has none", native().path);
  if (!reduces(request.collective)) return "";
  if (nccl_type(request.type) < 0) return text("{}reduces no {}", kBetween, name_of(request.type));
  if (nccl_op(request.op) >= 0) return "";
  if (!is_scaled || native().make_scaled_sum == nullptr)
    return text("{}has no reduction {}", kBetween, name_of(request.op));
  if (request.type == DataType::fp32 || request.type == DataType::fp64) return "";
  return text("factors of {} between nodes: wanted fp32 or fp64", name_of(request.type));
}

class NcclTransport::Caller {
 public:
  /// since: start time of the call that may be inside NCCL.
  explicit Caller(std::atomic<int>& all, std::atomic<std::int64_t>* since = nullptr)
      : all_(all), since_(since) {
    all_.fetch_add(1);
    if (since_ != nullptr) since_->store(now_ns());
  }
  ~Caller() {
    if (since_ != nullptr) since_->store(0);
    all_.fetch_sub(1);
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

 private:
  std::atomic<int>& all_;
  std::atomic<std::int64_t>* const since_;
};

void NcclTransport::call(const Request& request, bool whole, int member, const void* src, void* dst,
                         Stream stream, double scalar) {
  const Caller caller(*callers_, &inside_since_ns_);  // registered before aborted_ is read
  const std::lock_guard<std::mutex> alone(asking_);
  require_usable(request);
  const Comm comm = whole || rail_ == nullptr ? whole_ : rail_;
  if (comm == nullptr)
    throw Error(ErrorCode::unsupported, "no communicator between nodes among all ranks");
  if (is_called(request.collective))
    pass(request, comm, src, dst, stream, scalar);
  else
    messages(request, comm, member, src, dst, stream);
}

void NcclTransport::require_usable(const Request& request) const {
  if (aborted_.load())
    throw Error(ErrorCode::aborted, "the communicators between nodes were aborted");
  if (const std::string why = why_no_call(request); !why.empty())
    throw Error(ErrorCode::unsupported, why);
}

void NcclTransport::message(int peer, const void* sent, void* received, std::uint64_t bytes,
                            Stream stream) {
  const Caller caller(*callers_, &inside_since_ns_);
  const std::lock_guard<std::mutex> alone(asking_);
  Request request;
  request.collective = Collective::copy;
  require_usable(request);
  require(native().group_start(), "ncclGroupStart");
  Result worst = ncclSuccess;
  const auto keep = [&](Result result) {
    if (result != ncclSuccess && (worst == ncclSuccess || worst == ncclInProgress)) worst = result;
  };
  if (sent != nullptr) keep(native().send(sent, bytes, kUint8, peer, whole_, stream));
  if (received != nullptr) keep(native().receive(received, bytes, kUint8, peer, whole_, stream));
  keep(native().group_end());
  require_launched(worst, whole_, "a send or a receive");
}

void NcclTransport::require_launched(Result result, Comm comm, const char* what) const {
  if (result == ncclInProgress) is_late_.store(true);
  while (result == ncclInProgress) {
    if (aborted_.load())
      throw Error(ErrorCode::aborted, "the communicators between nodes were aborted");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    Result comm_error = ncclSuccess;
    const Result status = native().async_error(comm, &comm_error);
    result = status == ncclSuccess ? comm_error : status;
  }
  require(result, what);
}

void NcclTransport::pass(const Request& r, Comm comm, const void* src, void* dst, Stream stream,
                         double scalar) const {
  const Elements elements = elements_of(r);
  const std::size_t count = r.count * elements.each;
  const int type = elements.type;
  if (r.collective == Collective::all_gather)
    return require_launched(native().all_gather(src, dst, count, type, comm, stream), comm,
                            "ncclAllGather");
  if (r.collective == Collective::broadcast)
    return require_launched(native().broadcast(src, dst, count, type, r.root, comm, stream), comm,
                            "ncclBroadcast");
  const ScaledSumOp op(r, scalar, type, comm);
  if (r.collective == Collective::all_reduce)
    require_launched(native().all_reduce(src, dst, count, type, op.number(), comm, stream), comm,
                     "ncclAllReduce");
  else if (r.collective == Collective::reduce_scatter)
    require_launched(native().reduce_scatter(src, dst, count, type, op.number(), comm, stream),
                     comm, "ncclReduceScatter");
  else
    require_launched(native().reduce(src, dst, count, type, op.number(), r.root, comm, stream),
                     comm, "ncclReduce");
}

void NcclTransport::messages(const Request& r, Comm comm, int member, const void* src, void* dst,
                             Stream stream) const {
  const std::uint64_t block = r.count * bytes_of(r.type);
  Result worst = ncclSuccess;
  const auto keep = [&](Result result) {
    if (result != ncclSuccess && (worst == ncclSuccess || worst == ncclInProgress)) worst = result;
  };
  const auto send = [&](int peer, int index) {
    keep(native().send(static_cast<const char*>(src) + static_cast<std::uint64_t>(index) * block,
                       block, kUint8, peer, comm, stream));
  };
  const auto receive = [&](int peer, int index) {
    keep(native().receive(static_cast<char*>(dst) + static_cast<std::uint64_t>(index) * block,
                          block, kUint8, peer, comm, stream));
  };
  require(native().group_start(), "ncclGroupStart");
  switch (r.collective) {
    case Collective::all_to_all:
      for (int peer = 0; peer < r.ranks; ++peer) send(peer, peer), receive(peer, peer);
      break;
    case Collective::gather:
      send(r.root, 0);
      for (int peer = 0; member == r.root && peer < r.ranks; ++peer) receive(peer, peer);
      break;
    case Collective::scatter:
      for (int peer = 0; member == r.root && peer < r.ranks; ++peer) send(peer, peer);
      receive(r.root, 0);
      break;
    case Collective::copy:
      if (member == r.root) send(r.peer, 0);
      if (member == r.peer) receive(r.root, 0);
      break;
    default:  // send_recv
      send((member + 1) % r.ranks, 0);
      receive((member + r.ranks - 1) % r.ranks, 0);
  }
  keep(native().group_end());
  require_launched(worst, comm, "a group of sends and receives");
}

std::optional<Error> NcclTransport::failure() {
  const Caller caller(*callers_);
  if (aborted_.load()) return std::nullopt;
  // A non-blocking communicator allows a single thread at a time. A thread inside a call sees the
  // error itself.
  const std::unique_lock<std::mutex> alone(asking_, std::try_to_lock);
  if (!alone && is_late_.load()) return std::nullopt;
  for (const Comm comm : {owns_whole_ ? whole_ : nullptr, rail_}) {
    Result comm_error = ncclSuccess;
    if (comm == nullptr) continue;
    const Result status = native().async_error(comm, &comm_error);
    if (status == ncclSuccess && (comm_error == ncclSuccess || comm_error == ncclInProgress))
      continue;
    return Error(ErrorCode::peer_lost,
                 text("NCCL between nodes: error {}",
                      static_cast<int>(status == ncclSuccess ? comm_error : status)));
  }
  return std::nullopt;
}

void NcclTransport::abort() noexcept {
  if (aborted_.exchange(true)) return;
  try {
    quiet_thread([whole = owns_whole_ ? whole_ : nullptr, rail = rail_, guard = guard_,
                  ended = ended_, callers = callers_] {
      // A thread that registered sees the abort in a moment, unless waiting inside NCCL.
      for (int looks = 0; callers->load() != 0 && looks < 1000; ++looks)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::shared_ptr<void> held = guard ? guard() : nullptr;
      for (const Comm comm : {rail, whole})
        if (comm != nullptr) native().abort(comm);
      ended->store(true);
    }).detach();
  } catch (const std::exception& error) {
    log(LogLevel::warn, -1, text("NCCL's communicators between nodes stay: {}", error.what()));
    ended_->store(true);
  }
}

void NcclTransport::await_abort(double wait_s) const noexcept {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
  while (aborted_.load() && !ended_->load() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::microseconds(200));
}

void NcclTransport::end() noexcept {
  if (aborted_.exchange(true)) return;
  const std::shared_ptr<void> held = guard_ ? guard_() : nullptr;
  for (const Comm comm : {rail_, owns_whole_ ? whole_ : nullptr})
    if (comm != nullptr) native().destroy(comm);
  ended_->store(true);
}

}  // namespace plait::nccl
