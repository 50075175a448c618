// All of an all_reduce or a reduce by CPU cores, for ranks whose GPUs do not address each other.
// Each byte of a rank's input crosses the bus once down, and each byte of the result once up:
// engines whose GPUs reduce carry 2(n-1)/n of an all_reduce each way, and n-1 times a reduce's
// message up to the root. Chunks, flags and cores are those of a part by cores
// (host_reduction.hpp). Source: the collaborative all-reduce.
#include "gpu/copy/copy_plans.hpp"
#include "gpu/copy/copy_tuning.hpp"
#include "gpu/engine/engine.hpp"
#include "gpu/host_path/host_reduction.hpp"

namespace plait::cuda {
namespace {

class CoresReady : public PreparedCall {
 public:
  CoresReady(const Request& request, const Tuning& tuning, EngineRank& rank)
      : rank_(rank),
        type_(request.type),
        takers_(request.collective == Collective::reduce ? 1u << request.root
                                                         : (1u << request.ranks) - 1),
        cut_(host_cores_cut(request.count * bytes_of(request.type), rank.group(), tuning)) {
    rank.fill_call(call_, request);
  }
  void enqueue(const CallBuffers& buffers, Stream stream) override {
    CallArgs call = call_;
    set_buffers(call, buffers);
    HostReductionCall whole(rank_.queue(), rank_.engine_path(), cut_, call, type_, takers_);
    whole.fork(stream);
    whole.enqueue();
    whole.join(stream);
  }

 private:
  EngineRank& rank_;
  const DataType type_;
  const std::uint32_t takers_;  ///< ranks (bits) that get the result
  const HostCut cut_;
  CallArgs call_{};
};

class CoresEngine : public CopyEngine<CoresReady> {
 public:
  const StrategyInfo& info() const override {
    static const StrategyInfo info{"host_cores",
                                   "without a link, CPU cores reduce what copy engines bring down",
                                   "collaborative all-reduce of GPUs and CPUs",
                                   {Collective::all_reduce, Collective::reduce}};
    return info;
  }
  std::string why_not(const Request& request, const Tuning&, const Group& group) const override {
    if (!group.through_host)
      return "these GPUs address each other: CPU cores take a part of a call by host_cpu_permille";
    if (!cores_take_calls(request.ranks))
      return "more than two ranks wanted: two ranks carry as much by copy_exchange, whose GPUs "
             "reduce";
    if (group.host_bytes == 0 || !group.has_host_reducer)
      return "no host memory is shared with CPU cores";
    return why_no_copy_engines(group);
  }
};

}  // namespace

const Engine& host_cores_engine() {
  static const CoresEngine engine;
  return engine;
}

}  // namespace plait::cuda
