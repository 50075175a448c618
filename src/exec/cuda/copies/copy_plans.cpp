// One call of all ranks, played: as CudaRank enqueues it.
#include "exec/cuda/copies/copy_plans.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "exec/cuda/copies/engine_ring.hpp"
#include "exec/cuda/copies/pair_exchange.hpp"
#include "exec/cuda/copies/rotation.hpp"
#include "exec/cuda/host/host_gather.hpp"
#include "exec/cuda/host/host_reduction.hpp"
#include "exec/cuda/traffic/tiled_shape.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

std::uint64_t bytes_of_call(const Request& request) {
  return request.count * bytes_of(request.type);
}

const char* engine_of(const Request& request) {
  return request.ranks == 2        ? "copy_exchange"
         : is_engine_ring(request) ? "copy_ring"
                                   : "copy_rotation";
}

CopyRoom room_of(const EnginePath& path) {
  return {0, path.inbox_bytes, path.slot_bytes, path.lent_bytes, path.ring_bytes};
}

void check_room(const Request& request, const CopyRoom& room) {
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::unsupported, text("wanted ", what, " for ", engine_of(request), " of ",
                                             request.ranks, " ranks, found none in the arena"));
  };
  if (request.ranks < 2 || request.ranks > kMaxCudaRanks)
    throw Error(ErrorCode::unsupported,
                text("wanted 2..", kMaxCudaRanks, " ranks, found ", request.ranks));
  if (room.inbox_bytes == 0) refuse("slots of copy engines");
  if (request.ranks > 2 && !is_engine_ring(request) && room.slot_bytes == 0)
    refuse("slots of a rotation");
}

std::map<std::string, std::int64_t> params_of(const CopyTuning& tuning) {
  std::map<std::string, std::int64_t> params;
  const auto add = [&](const char* name, std::int64_t value, std::int64_t usual) {
    if (value != usual) params[name] = value;
  };
  add("piece_bytes", static_cast<std::int64_t>(tuning.piece_bytes), 0);
  add("cuts", tuning.cuts, -1);
  add("host_permille", tuning.host_permille + tuning.gather_permille, 0);
  add("host_cpu_permille", tuning.host_cpu_permille, 0);
  return params;
}

EngineQueue& queue_of(PlanBook& book, int rank, const QueueOf& through) {
  return through ? through(book, rank) : book.queue(rank);
}

CallArgs moved(CallArgs args, std::uint64_t input, std::uint64_t output) {
  args.input = static_cast<const char*>(args.input) + input;
  args.output = static_cast<char*>(args.output) + output;
  return args;
}

/// A rank's call whose message goes through host memory in part.
class BesideHost {
 public:
  BesideHost(PlanBook& book, const CopyTuning& tuning, const PlanOfRest& rest,
             const QueueOf& through)
      : book_(book), tuning_(tuning), rest_(rest), through_(through) {
    alone_.piece_bytes = tuning.piece_bytes;
    alone_.cuts = tuning.cuts;
  }

  void reduce_by_cores(const HostCut& cut, int rank) {
    const CallArgs call = book_.call(rank);
    EngineQueue& queue = queue_of(book_, rank, through_);
    HostReduction part(queue, book_.path(), cut, call, book_.request().type);
    part.fork(PlanBook::home());
    run(part, queue, call, 0, cut.bytes - cut.host_from);
  }

  void gather(const GatherCut& cut, int rank) {
    const CallArgs call = book_.call(rank);
    EngineQueue& queue = queue_of(book_, rank, through_);
    HostGather part(queue, book_.path(), cut, call, nullptr);
    for (std::size_t i = 0; i < cut.stretches.size(); ++i) {
      const GatherStretch& stretch = cut.stretches[i];
      Request scatter = book_.request();
      scatter.collective = Collective::reduce_scatter;
      scatter.count = stretch.part_bytes / bytes_of(scatter.type);
      const std::uint64_t mine = static_cast<unsigned>(rank) * stretch.part_bytes;
      run_rest(queue, scatter, call, stretch.from, stretch.from + mine);
      part.fork(PlanBook::home(), i);
    }
    run(part, queue, call, cut.bytes, cut.bytes);
  }

  std::string strategy() const {
    return rest_ ? plans_.front().strategy : engine_of(book_.request());
  }

 private:
  template <class Part>
  void run(Part& part, EngineQueue& queue, const CallArgs& call, std::uint64_t from,
           std::uint64_t part_bytes) {
    Request rest = book_.request();
    rest.count -= part_bytes / bytes_of(rest.type);
    run_rest(queue, rest, call, from, from);
    part.enqueue();
    part.join(PlanBook::home());
  }

  void run_rest(EngineQueue& queue, const Request& request, const CallArgs& call,
                std::uint64_t input_from, std::uint64_t output_from) {
    if (rest_) return book_.add(call.rank, plan_of_rest(request), input_from, output_from);
    enqueue_copies(queue, book_.path(), request, moved(call, input_from, output_from), alone_,
                   PlanBook::fork(), PlanBook::home());
  }

  const Plan& plan_of_rest(const Request& request) {
    const auto known = std::find_if(plans_.begin(), plans_.end(),
                                    [&](const Plan& one) { return one.request == request; });
    return known != plans_.end() ? *known : plans_.emplace_back(rest_(request));
  }

  PlanBook& book_;
  const CopyTuning& tuning_;
  const PlanOfRest& rest_;
  const QueueOf& through_;
  CopyTuning alone_;
  std::vector<Plan> plans_;  // of the rest: the same for all ranks
};

}  // namespace

void enqueue_copies(EngineQueue& queue, const EnginePath& path, const Request& request,
                    const CallArgs& call, const CopyTuning& tuning, Event fork, Stream stream) {
  const CopyRoom room = room_of(path);
  if (request.ranks == 2) {
    const HopShape shape = hop_shape(request, call.rank);
    const ExchangeCut cut = exchange_cut(shape.part_bytes, room, tuning);
    PairExchange(queue, path, cut, shape, call, moved_type(request), path.blocks, nullptr)
        .enqueue(fork, stream);
    return;
  }
  if (is_engine_ring(request)) {
    const RingCut cut = ring_cut(request, room, tuning);
    EngineRing(queue, path, cut, call).enqueue(fork, stream);
    return;
  }
  TiledArgs shape = tiled_shape(request, call.rank);
  static_cast<CallArgs&>(shape) = call;
  const RotationCut cut = rotation_cut(shape.part_bytes, room, tuning);
  Rotation(queue, path, cut, shape, moved_type(request), path.blocks).enqueue(fork, stream);
}

Plan plan_of_copies(const Topology& topology, const Request& request, const CopyRoom& room,
                    const CopyTuning& tuning, const QueueOf& through) {
  check_room(request, room);
  PlanBook book(topology, request, room);
  for (int rank = 0; rank < request.ranks && request.count != 0; ++rank)
    enqueue_copies(queue_of(book, rank, through), book.path(), request, book.call(rank), tuning,
                   PlanBook::fork(), PlanBook::home());
  return book.plan(engine_of(request), params_of(tuning));
}

Plan plan_beside_host(const Topology& topology, const Request& request, const CopyRoom& room,
                      const CopyTuning& tuning, const PlanOfRest& rest, const QueueOf& through) {
  const std::uint64_t bytes = bytes_of_call(request);
  const bool is_split = request.collective == Collective::all_reduce && bytes != 0;
  CopyTuning wish = tuning;
  if (!is_split) wish.host_cpu_permille = 0;
  const HostCut cores = cores_cut(bytes, room, wish);
  GatherCut gather;
  if (is_split && cores.chunks == 0)
    gather = cut_gather(bytes, room.ring_bytes, tuning.gather_permille, request.ranks);
  if (!rest) check_room(request, room);
  if (cores.chunks == 0 && gather.chunks == 0)
    return rest ? rest(request) : plan_of_copies(topology, request, room, tuning, through);
  PlanBook book(topology, request, room);
  BesideHost call(book, tuning, rest, through);
  for (int rank = 0; rank < request.ranks; ++rank)
    cores.chunks != 0 ? call.reduce_by_cores(cores, rank) : call.gather(gather, rank);
  const std::uint64_t host = cores.chunks != 0 ? bytes - cores.host_from : gather.bytes;
  book.stripe("nvlink", cores.chunks != 0 ? 0 : host, bytes - host);
  book.stripe(cores.chunks != 0 ? "host+cpu" : "host", cores.chunks != 0 ? bytes - host : 0, host);
  return book.plan(call.strategy(), params_of(tuning));
}

}  // namespace plait::cuda
