// What goes beside an engine's call: results brought by copy engines, or a part that CPU cores
// reduce.
#include "exec/cuda/host/beside.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "exec/cuda/copies/copy_plans.hpp"
#include "exec/cuda/copies/copy_tuning.hpp"
#include "exec/cuda/host/host_gather.hpp"
#include "exec/cuda/host/host_reduction.hpp"

namespace plait::cuda {
namespace {

/// A part whose results alone go through host memory spares the links half of its way.
constexpr std::uint32_t kOfResults = 2;

/// Two ranks' copy engines exchange what goes through host memory themselves.
bool exchanges_it(const Engine& engine) { return &engine == &copy_exchange_engine(); }

bool can_gather(const Engine& engine, const Request& request, const Group& group) {
  return request.collective == Collective::all_reduce && request.ranks > 1 &&
         group.host_bytes != 0 && group.has_copy_engines() && !exchanges_it(engine) &&
         tiled_engine().why_not(request, {}, group).empty();
}

/// copy_rotation loses more beside it than host memory carries (bench/NOTES.md).
bool may_correct(const Engine& engine, const Request& request, const Tuning& tuning,
                 const Group& group) {
  return tuning.host_permille < 0 && &engine == &tiled_engine() && request.ranks > 2 &&
         group.in_processes && can_gather(engine, request, group);
}

class Beside : public Ready {
 public:
  Beside(const Engine& engine, const Request& request, const Tuning& tuning, EngineRank& rank)
      : engine_(engine),
        request_(request),
        rank_(rank),
        bytes_(request.count * bytes_of(request.type)),
        cores_(cores_cut(bytes_, copy_room(rank.group()), copy_tuning(tuning, false))),
        may_correct_(may_correct(engine, request, tuning, rank.group())),
        permille_(can_gather(engine, request, rank.group()) ? std::max(0, tuning.host_permille)
                                                            : 0),
        alone_(tuning) {
    rank.fill_call(call_, request);
    whole_ = engine.prepare(request, tuning, rank);
    alone_.host_permille = 0;
    // What goes beside it waits for other ranks too, in small kernels that must find an SM.
    if (alone_.blocks != 0)
      alone_.blocks = std::min(alone_.blocks, static_cast<int>(rank.group().blocks_with_room()));
  }

  void enqueue(const Buffers& buffers, Stream stream) override {
    CallArgs call = call_;
    set_buffers(call, buffers);
    const bool corrected = cores_.chunks == 0 && may_correct_ && !rank_.is_capturing(stream);
    AgreedShare& share = rank_.agreed_share();
    const std::uint32_t permille = cores_.chunks != 0 ? 0
                                   : corrected        ? kOfResults * share.next(bytes_, 0)
                                                      : static_cast<std::uint32_t>(permille_);
    const GatherCut gather =
        cut_gather(bytes_, rank_.engine_path().ring_bytes, permille, request_.ranks);
    if (cores_.chunks == 0 && gather.chunks == 0) return whole_->enqueue(buffers, stream);
    try {  // half of it on streams: what the GPU and the others count would differ
      if (cores_.chunks != 0) {
        HostReduction part(rank_.queue(), rank_.engine_path(), cores_, call, request_.type);
        part.fork(stream);
        run(part, 0, bytes_ - cores_.host_from, buffers, stream);
      } else {
        HostGather part(rank_.queue(), rank_.engine_path(), gather, call,
                        corrected ? share.timed(kOfResults * bytes_, gather.bytes) : nullptr);
        for (std::size_t i = 0; i < gather.stretches.size(); ++i) {
          scatter(gather.stretches[i], buffers, stream);
          part.fork(stream, i);
        }
        run(part, gather.bytes, gather.bytes, buffers, stream);
      }
    } catch (...) {
      rank_.abort();
      throw;
    }
  }

 private:
  /// The engine's part is never empty: no cut takes the whole message.
  template <class Part>
  void run(Part& part, std::uint64_t from, std::uint64_t part_bytes, const Buffers& buffers,
           Stream stream) {
    Request rest = request_;
    rest.count = (bytes_ - part_bytes) / bytes_of(request_.type);
    engine_.prepare(rest, alone_, rank_)->enqueue(behind(buffers, from, from), stream);
    part.enqueue();
    part.join(stream);
  }

  /// This rank's part of the results of a stretch into its place. The kernels by lines have no
  /// reduce-scatter of any size.
  void scatter(const GatherStretch& stretch, const Buffers& buffers, Stream stream) {
    Request request = request_;
    request.collective = Collective::reduce_scatter;
    request.count = stretch.part_bytes / bytes_of(request.type);
    const std::uint64_t mine = static_cast<unsigned>(rank_.rank()) * stretch.part_bytes;
    const Engine& engine = &engine_ == &copy_rotation_engine() ? engine_ : tiled_engine();
    engine.prepare(request, alone_, rank_)
        ->enqueue(behind(buffers, stretch.from, stretch.from + mine), stream);
  }

  static Buffers behind(const Buffers& buffers, std::uint64_t input, std::uint64_t output) {
    return {static_cast<const char*>(buffers.input) + input,
            static_cast<char*>(buffers.output) + output, buffers.scalars};
  }

  const Engine& engine_;
  const Request request_;
  EngineRank& rank_;
  const std::uint64_t bytes_;
  const HostCut cores_;
  const bool may_correct_;
  const int permille_;
  Tuning alone_;
  CallArgs call_{};
  std::unique_ptr<Ready> whole_;
};

}  // namespace

std::string why_no_host_part(const Engine& engine, const Request& request, const Tuning& tuning,
                             const Group& group) {
  if (tuning.host_cpu_permille > 0) {
    if (request.collective != Collective::all_reduce || request.ranks < 2)
      return "CPU cores take a part of all_reduces of several ranks";
    if (!group.has_host_reducer || !group.runs(Family::engines))
      return "there is no host memory in which CPU cores could take a part";
  }
  if (tuning.host_permille > 0 && !exchanges_it(engine) && !can_gather(engine, request, group))
    return "no part of it can go through host memory: that wants an all_reduce, host memory that "
           "all ranks map, copy engines and slots of tiled";
  return "";
}

Plan plan_of(const Engine& engine, const Topology& topology, const Request& request,
             const Tuning& tuning, const Group& group) {
  const bool may_gather = tuning.host_permille > 0 && !exchanges_it(engine);
  Tuning alone = tuning;
  alone.host_permille = 0;
  const PlanOfRest rest = [&](const Request& part) {
    const bool scatters = part.collective != request.collective;  // as Beside::scatter
    const bool rotates = &engine == &copy_rotation_engine();
    return (scatters && !rotates ? tiled_engine() : engine).plan(topology, part, alone, group);
  };
  if (tuning.host_cpu_permille <= 0 && !may_gather)
    return engine.plan(topology, request, tuning, group);
  CopyTuning beside = copy_tuning(alone, false);
  beside.gather_permille = may_gather ? static_cast<std::uint32_t>(tuning.host_permille) : 0;
  beside.host_cpu_permille = static_cast<std::uint32_t>(tuning.host_cpu_permille);
  const bool by_copies = engine.info().name.starts_with("copy_");
  Plan made = plan_beside_host(topology, request, copy_room(group), beside,
                               by_copies ? PlanOfRest() : rest);
  if (may_gather && !by_copies) {  // its price is that of the kernel, with such a share beside it
    const std::uint64_t bytes = request.count * bytes_of(request.type);
    const Plan whole = engine.plan(topology, request, alone, group);
    made.kernel = whole.kernel;
    made.params.insert(whole.params.begin(), whole.params.end());
    made.params["chunk_bytes"] = static_cast<std::int64_t>(
        cut_gather(bytes, group.host_bytes, beside.gather_permille, request.ranks).chunk_bytes);
  }
  return made;
}

std::unique_ptr<Ready> prepare_beside_host(const Engine& engine, const Request& request,
                                           const Tuning& tuning, EngineRank& rank) {
  const bool may_gather = tuning.host_permille > 0 && !exchanges_it(engine);
  if (tuning.host_cpu_permille > 0 || may_gather ||
      may_correct(engine, request, tuning, rank.group()))
    return std::make_unique<Beside>(engine, request, tuning, rank);
  return engine.prepare(request, tuning, rank);
}

}  // namespace plait::cuda
