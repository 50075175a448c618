// What serves a request on GPUs. An engine decides by values alone whether it takes a request,
// makes it ready once on a rank, and a call then fills in addresses and launches.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "driver/cuda/api.hpp"
#include "exec/cuda/device/call_buffers.hpp"
#include "exec/cuda/engine_rank.hpp"
#include "exec/cuda/group.hpp"
#include "exec/cuda/tuning.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// One request on one rank, ready to be launched: kernels found, cut and spread chosen, arguments
/// filled in. Only addresses are missing.
class PreparedCall {
 public:
  PreparedCall() = default;
  virtual ~PreparedCall() = default;
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;
  /// In the rank's context, in stream order; never waits on the host, and may be captured.
  virtual void enqueue(const CallBuffers& buffers, Stream stream) = 0;
};

class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Its name, what it does, where that comes from, and which collectives it serves.
  virtual const StrategyInfo& info() const = 0;
  /// Empty where it serves the request so tuned; else why not, in words that follow its name and a
  /// colon. The same on all ranks.
  virtual std::string why_not(const Request& request, const Tuning& tuning,
                              const Group& group) const = 0;
  /// Whether it serves blocks that have a count each.
  virtual bool takes_counts() const { return false; }
  /// What all ranks do where why_not() is empty, but for parts through host memory; `params` say
  /// how a kernel is launched. A tiled call is planned with all its blocks in step (tile_plan.hpp).
  /// `request`: checked.
  virtual Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
                    const Group& group) const = 0;
  /// Where why_not() is empty; count is not 0. `rank` outlives what is returned.
  virtual std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                                EngineRank& rank) const = 0;
};

#define PLAIT_ENGINE(name) const Engine& name##_engine();
#include "exec/cuda/engines.def"
#undef PLAIT_ENGINE
const std::vector<const Engine*>& engines();
/// By its name, or by "rotation" for that of the copy engines which such a request goes by. Null
/// where no engine has this name.
const Engine* engine_named(const std::string& name, const Request& request);
/// "one_shot, two_shot, ...".
std::string engine_names();
/// For the info of an engine that serves them all.
std::vector<Collective> all_collectives();

/// What holds for every engine: ranks, and parts through host memory. Then what the engine says.
std::string why_not(const Engine& engine, const Request& request, const Tuning& tuning,
                    const Group& group);

/// The engine's plan, with the parts through host memory that `tuning` asks for.
Plan plan_of(const Engine& engine, const Topology& topology, const Request& request,
             const Tuning& tuning, const Group& group);

}  // namespace plait::cuda
