// Interface of an engine, the code that serves requests of some kind on GPUs. An engine accepts or
// refuses a request by values alone and prepares the request once per rank; each call then fills in
// addresses and launches. select.hpp chooses among engines, CudaRank calls engines.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "driver/cuda/api.hpp"
#include "gpu/device/call_buffers.hpp"
#include "gpu/engine/engine_rank.hpp"
#include "gpu/engine/group.hpp"
#include "gpu/engine/resources.hpp"
#include "gpu/engine/tuning.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// A request prepared on a rank: kernels looked up, cut and launch configuration chosen, arguments
/// filled in. Only addresses are missing.
class PreparedCall {
 public:
  PreparedCall() = default;
  virtual ~PreparedCall() = default;
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;
  /// Enqueues the call in stream order in the rank's context. Never blocks; may be captured.
  virtual void enqueue(const CallBuffers& buffers, Stream stream) = 0;
};

class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Name, description, source and collectives of the engine.
  virtual const StrategyInfo& info() const = 0;
  /// Returns "" if the engine serves the request with this tuning. Otherwise returns the reason,
  /// worded to follow the engine's name and a colon. The same on all ranks.
  virtual std::string why_not(const Request& request, const Tuning& tuning,
                              const Group& group) const = 0;
  /// True if the engine serves blocks of different counts.
  virtual bool takes_counts() const { return false; }
  /// True if an owner has the parts of all ranks, and a kernel sums them in CallArgs::order: asked
  /// for requests whose sums are trees of more than two ranks. Otherwise the engine refuses them.
  virtual bool sums_in_trees(const Request&, const Group&) const { return false; }
  /// Plan of the call on all ranks, without parts through host memory; needs an empty why_not().
  /// `params` of the plan hold the kernel's launch configuration. The plan of a tiled call has all
  /// blocks in step (tile_plan.hpp). `request`: checked.
  virtual Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
                    const Group& group) const = 0;
  /// Prepares the request; needs an empty why_not() and count > 0. `rank` outlives the result.
  virtual std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                                EngineRank& rank) const = 0;
  /// Flags, memory and kernels that all engines of the folder need.
  virtual const Resources& resources() const = 0;
};

/// All collectives, for the info of an engine that serves every collective.
std::vector<Collective> all_collectives();

}  // namespace plait::cuda
