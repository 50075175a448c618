// Splits a call between an engine and host memory: results brought by copy engines (HostGather), a
// part that two ranks exchange (exchanged_part.hpp), or a part that CPU cores reduce
// (HostReductionCall).
#include "gpu/host_path/with_host_part.hpp"

#include <algorithm>
#include <optional>

#include "base/text.hpp"
#include "gpu/copy/copy_tuning.hpp"
#include "gpu/copy/planned_engine.hpp"
#include "gpu/host_path/exchanged_part.hpp"
#include "gpu/host_path/host_gather.hpp"
#include "gpu/host_path/host_reduction.hpp"
#include "gpu/tile/tile_plan.hpp"
#include "plait/error.hpp"
#include "plan/direct_shape.hpp"
#include "plan/sum_order.hpp"

namespace plait::cuda {
namespace {

/// If only the results of a part go through host memory, the links carry half of the part's traffic
/// less.
constexpr std::uint32_t kOfResults = 2;

/// Two ranks' copy engines exchange the host's share themselves.
bool exchanges_it(const Engine& engine) { return &engine == &copy_exchange_engine(); }

bool can_gather(const Engine& engine, const Request& request, const Group& group) {
  return request.collective == Collective::all_reduce && request.ranks > 2 && !group.through_host &&
         group.host_bytes != 0 && has_copy_engines(group) && !exchanges_it(engine) &&
         tiled_engine().why_not(request, {}, group).empty();
}

/// copy_rotation loses more beside a host part than host memory carries (E-0126).
bool may_correct(const Engine& engine, const Request& request, const Tuning& tuning,
                 const Group& group) {
  return tuning.host_permille < 0 && &engine == &tiled_engine() && group.in_processes &&
         can_gather(engine, request, group);
}

/// LL kernels have no reduce-scatter of any size.
const Engine& scatters_for(const Engine& engine) {
  return &engine == &copy_rotation_engine() ? engine : tiled_engine();
}

class WithHostPart : public PreparedCall {
 public:
  /// scatters: the engine that reduces the data that host memory then brings.
  WithHostPart(const Engine& engine, const Engine& scatters, const Request& request,
               const Tuning& tuning, EngineRank& rank)
      : engine_(engine),
        scatters_(scatters),
        request_(request),
        rank_(rank),
        bytes_(request.count * bytes_of(request.type)),
        cores_(cores_cut(bytes_, rank.group(), tuning)),
        may_correct_(may_correct(engine, request, tuning, rank.group())),
        permille_(can_gather(engine, request, rank.group()) ? std::max(0, tuning.host_permille)
                                                            : 0),
        alone_(beside_part(tuning, rank.group())) {
    rank.fill_call(call_, request);
    whole_ = engine.prepare(request, tuning, rank);
  }

  void enqueue(const CallBuffers& buffers, Stream stream) override {
    CallArgs call = call_;
    set_buffers(call, buffers);
    const bool corrected = cores_.chunks == 0 && may_correct_ && !rank_.is_capturing(stream);
    AgreedShare& share = rank_.agreed_share();
    const std::uint32_t permille = cores_.chunks != 0 ? 0
                                   : corrected
                                       ? kOfResults * share.next(LinkCarrier::kernel, bytes_, 0)
                                       : static_cast<std::uint32_t>(permille_);
    const GatherCut gather =
        cut_gather(bytes_, rank_.engine_path().ring_bytes, permille, request_.ranks);
    if (cores_.chunks == 0 && gather.chunks == 0) return whole_->enqueue(buffers, stream);
    if (cores_.chunks != 0) {
      HostReductionCall part(rank_.queue(), rank_.engine_path(), cores_, call, request_.type,
                             (1u << request_.ranks) - 1);
      part.fork(stream);
      return run(part, 0, bytes_ - cores_.host_from, buffers, stream);
    }
    HostGather part(rank_.queue(), rank_.engine_path(), gather, call,
                    corrected ? share.timed(kOfResults * bytes_, gather.bytes) : nullptr);
    for (std::size_t i = 0; i < gather.segments.size(); ++i) {
      scatter(gather.segments[i], buffers, stream);
      part.fork(stream, i);
    }
    run(part, gather.bytes, gather.bytes, buffers, stream);
  }

 private:
  /// Runs the engine's part, which is never empty: no cut takes the whole message.
  template <class Part>
  void run(Part& part, std::uint64_t from, std::uint64_t part_bytes, const CallBuffers& buffers,
           Stream stream) {
    Request rest = request_;
    rest.count = (bytes_ - part_bytes) / bytes_of(request_.type);
    engine_.prepare(rest, alone_, rank_)->enqueue(behind(buffers, from, from), stream);
    part.enqueue();
    part.join(stream);
  }

  /// Puts this rank's part of a segment's results into place.
  void scatter(const GatherSegment& segment, const CallBuffers& buffers, Stream stream) {
    Request request = request_;
    request.collective = Collective::reduce_scatter;
    request.count = segment.part_bytes / bytes_of(request.type);
    const std::uint64_t mine = static_cast<unsigned>(rank_.rank()) * segment.part_bytes;
    scatters_.prepare(request, alone_, rank_)
        ->enqueue(behind(buffers, segment.from, segment.from + mine), stream);
  }

  const Engine& engine_;
  const Engine& scatters_;
  const Request request_;
  EngineRank& rank_;
  const std::uint64_t bytes_;
  const HostCut cores_;
  const bool may_correct_;
  const int permille_;
  Tuning alone_;
  CallArgs call_{};
  std::unique_ptr<PreparedCall> whole_;
};

bool gathers(const Engine& engine, const Tuning& tuning) {
  return tuning.host_permille > 0 && !exchanges_it(engine);
}

/// True if the call has a part of a given size that two ranks exchange.
bool exchanges_part(const Engine& engine, const Request& request, const Tuning& tuning,
                    const Group& group) {
  return tuning.host_cpu_permille <= 0 && gathers(engine, tuning) &&
         can_exchange_part(engine, request, group);
}

/// The parts of a call that do not go over links; at most one of them is not empty.
struct HostParts {
  HostCut cores;       ///< reduced by CPU cores
  HostCut exchanged;   ///< exchanged by two ranks
  GatherCut gathered;  ///< results of more ranks
  bool none() const { return cores.chunks == 0 && exchanged.chunks == 0 && gathered.chunks == 0; }
};

HostParts parts_of(const Engine& engine, const Request& request, const Tuning& tuning,
                   const Group& group) {
  HostParts parts;
  const std::uint64_t bytes = request.count * bytes_of(request.type);
  if (bytes == 0) return parts;
  const auto permille = static_cast<std::uint32_t>(std::max(0, tuning.host_permille));
  const bool sums = request.collective == Collective::all_reduce;
  if (sums) parts.cores = cores_cut(bytes, group, tuning);
  if (parts.cores.chunks != 0) return parts;
  if (exchanges_part(engine, request, tuning, group))
    parts.exchanged = exchanged_part(request, group, permille);
  else if (sums && gathers(engine, tuning))
    parts.gathered = cut_gather(bytes, group.host_bytes, permille, request.ranks);
  return parts;
}

/// Adds the stripes of the plan: the part over links and the part through host memory.
void add_stripes(PlanBook& book, const HostParts& parts) {
  const std::uint64_t bytes = book.request().count * bytes_of(book.request().type);
  if (parts.gathered.chunks != 0) {
    book.stripe("nvlink", parts.gathered.bytes, bytes - parts.gathered.bytes);
    return book.stripe("host", 0, parts.gathered.bytes);
  }
  const bool by_cores = parts.cores.chunks != 0;
  const std::uint64_t from = by_cores ? parts.cores.host_from : parts.exchanged.host_from;
  book.stripe("nvlink", 0, from);
  book.stripe(by_cores ? "host+cpu" : "host", from, bytes - from);
}

}  // namespace

bool may_have_host_part(const Engine& engine, const Request& request, const Tuning& tuning,
                        const Group& group) {
  return exchanges_part(engine, request, tuning, group) ||
         may_choose_exchanged_part(engine, request, tuning, group) ||
         tuning.host_cpu_permille > 0 || gathers(engine, tuning) ||
         may_correct(engine, request, tuning, group);
}

std::string why_no_host_part(const Engine& engine, const Request& request, const Tuning& tuning,
                             const Group& group) {
  if (tuning.host_cpu_permille > 0) {
    if (group.has_small_arena_alone)  // the rest of the call is cut anew, for the whole arena
      return "CPU cores take a part of a call only once the large arena is there";
    if (request.collective != Collective::all_reduce || request.ranks < 2)
      return "CPU cores take a part only of an all_reduce over several ranks";
    if (group.through_host)
      return "CPU cores take a part beside links alone; without a link they take whole calls, by "
             "host_cores";
    if (!group.has_host_reducer || !group.runs(kCopyKernels))
      return "CPU cores can take no part: no host memory is shared with them";
  }
  if (tuning.host_permille > 0 && !exchanges_it(engine) && !can_gather(engine, request, group) &&
      !can_exchange_part(engine, request, group))
    return "host_permille is not supported: a part through host memory needs host memory that all "
           "ranks map, copy engines, and of two ranks an all_reduce, broadcast, reduce, send_recv "
           "or copy, of more an all_reduce and slots of tiled";
  return "";
}

namespace {

bool chooses_share(const Engine& engine, const Request& request, const Tuning& tuning,
                   const Group& group) {
  const std::uint64_t bytes = request.count * bytes_of(request.type);
  return tuning.host_permille < 0 && exchanges_it(engine) && request.counts.empty() &&
         bytes >= kLeastSharedBytes &&
         may_share(group, long_inbox_bytes(group, direct_shape(request, 0).part_bytes) != 0);
}

}  // namespace

Tuning eager_tuning(const Engine& engine, const Request& request, const Tuning& tuning,
                    const Group& group) {
  Tuning eager = tuning;
  if (chooses_share(engine, request, tuning, group))
    eager.host_permille = kBestHostPermille;
  else if (may_choose_exchanged_part(engine, request, tuning, group) &&
           request.count * bytes_of(request.type) >= kLeastExchangedBytes)
    eager.host_permille = kBestExchangedPermille;
  return eager;
}

Plan plan_of(const Engine& engine, const Topology& topology, const Request& request,
             const Tuning& tuning, const Group& group) {
  // More steps than a 32-bit count holds; the verifier takes no larger space either.
  constexpr std::uint64_t kMostBytes = 1ULL << 46;
  if (message_bytes(request) > kMostBytes)
    throw Error(ErrorCode::unsupported,
                text("plan of an engine: wanted a message of at most 2^46 bytes, found {}",
                     message_bytes(request)));
  return plan_through(engine, topology, request, tuning, group, nullptr);
}

namespace {

Plan plan_in_rank_order(const Engine& engine, const Topology& topology, const Request& request,
                        const Tuning& tuning, const Group& group, const QueueOf& through) {
  const HostParts parts = parts_of(engine, request, tuning, group);
  if (parts.none())
    return through ? plan_of_copies(engine, topology, request, tuning, group, through)
                   : engine.plan(topology, request, tuning, group);
  Tuning alone = tuning;
  alone.host_permille = 0;
  const Plan whole = engine.plan(topology, request, alone, group);
  const bool is_kernel = !whole.kernel.empty();
  PlanBook book(topology, request, group);
  const PlannedEngine planned(book, topology, engine), tiles(book, topology, tiled_engine());
  const Engine& rest = is_kernel ? planned : engine;
  const Engine& scatters = &scatters_for(engine) == &engine ? rest : tiles;
  const auto prepare = [&](EngineRank& rank) -> std::unique_ptr<PreparedCall> {
    if (parts.exchanged.chunks != 0)
      return prepare_with_exchanged_part(rest, request, tuning, rank);
    return std::make_unique<WithHostPart>(rest, scatters, request, tuning, rank);
  };
  write_down(book, group, prepare, through);
  add_stripes(book, parts);
  Plan made = book.plan(engine.info().name, cut_params(tuning));
  if (parts.cores.chunks == 0 && is_kernel) {  // the price is that of the kernel with such a share
                                               // beside it
    made.kernel = whole.kernel;
    made.params.insert(whole.params.begin(), whole.params.end());
    made.params["chunk_bytes"] = static_cast<std::int64_t>(
        std::max(parts.gathered.chunk_bytes, parts.exchanged.chunk_bytes));
  }
  return made;
}

}  // namespace

Plan plan_through(const Engine& engine, const Topology& topology, const Request& request,
                  const Tuning& tuning, const Group& group, const QueueOf& through) {
  Plan made = plan_in_rank_order(engine, topology, request, tuning, group, through);
  if (!is_tree(group.sum_order) || !why_not_order(request, group.sum_order).empty()) return made;
  std::optional<Plan> tree = in_order(std::move(made), group.sum_order);
  if (!tree)
    throw Error(ErrorCode::unsupported, text("{} does not sum in the order {}", engine.info().name,
                                             name_of(group.sum_order)));
  return std::move(*tree);
}

std::unique_ptr<PreparedCall> prepare_with_host_part(const Engine& engine, const Request& request,
                                                     const Tuning& tuning, EngineRank& rank) {
  if (exchanges_part(engine, request, tuning, rank.group()) ||
      may_choose_exchanged_part(engine, request, tuning, rank.group()))
    return prepare_with_exchanged_part(engine, request, tuning, rank);
  if (tuning.host_cpu_permille > 0 || gathers(engine, tuning) ||
      may_correct(engine, request, tuning, rank.group()))
    return std::make_unique<WithHostPart>(engine, scatters_for(engine), request, tuning, rank);
  return engine.prepare(request, tuning, rank);
}

}  // namespace plait::cuda
