// Chooses the engine of a request for every entry point. Order: 1. caller, 2. this machine's tuning
// table, 3. the table of the GPU kind (tuning/*.json), 4. simulator. The choice is the same on
// all ranks: request, group, rank 0's table and topology are the same, and all ranks capture a call
// or none does.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "gpu/select/engines.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "gpu/select/tuning_table.hpp"
#include "gpu/select/usual_group.hpp"

namespace plait::cuda {

struct EngineChoice {
  enum class By { caller, table, built_in, simulated };
  const Engine* engine = nullptr;
  Tuning tuning;
  By by = By::built_in;
  /// True if NCCL was measured as slower or equal, here or on this GPU kind; none = unknown.
  std::optional<bool> beats_nccl;

  /// True if both choices run a call the same way.
  bool runs_as(const EngineChoice& other) const {
    return engine == other.engine && tuning == other.tuning;
  }
};

/// "tiled", or "tiled(order=2,shift=1)" if a table row sets parameters. Leaves out the block count
/// and a caller's parameters.
std::string label(const EngineChoice& choice);
/// "caller", "table", "built in", "simulated".
const char* name_of(EngineChoice::By by);

/// A caller's wishes. engine: a name, or empty. params: names of params.def.
struct EngineRequest {
  std::string engine;
  std::map<std::string, std::int64_t> params;
  bool captured = false;  ///< The call is captured into a graph.
};

/// Predicted time of a call by the engine, in us; infinite if unknown.
using Predict = std::function<double(const Engine&, const Request&)>;
/// Predicted time of a call by a plan, in us; infinite if no plan serves the request.
using PredictPlan = std::function<double(const Request&)>;

class Selector {
 public:
  /// table: empty = no measurements on this machine. as_measured: GPUs and links of all ranks are
  /// of the kind that `built_in` was measured on; if not, `predict` decides, and a null `predict`
  /// falls back to `built_in`. built_in: the table of the GPU kind, which outlives the selector.
  /// predict_plan: null = plans serve only requests that no engine takes.
  Selector(const Group& group, TuningTable table, bool as_measured, Predict predict = nullptr,
           const TuningTable& built_in = default_table(), PredictPlan predict_plan = nullptr);

  /// Returns the fastest known choice; none = no engine takes the request, or a plan is predicted
  /// to be faster. Error(unsupported) if the engine named by the caller refuses, invalid_argument
  /// if the params are not the engine's.
  std::optional<EngineChoice> best(const Request& request, const EngineRequest& wanted = {}) const;
  /// Returns best() if known to be no slower than NCCL, eager or captured; none = use NCCL.
  std::optional<EngineChoice> no_slower_than_nccl(const Request& request) const;
  /// True if best() differs between eager and captured calls.
  bool differs_in_graphs(const Request& request, const EngineRequest& wanted = {}) const;
  /// True if a plan is predicted to beat the engines that take the request.
  bool prefers_plan(const Request& request) const;
  /// Text for people: the choice and the source of the choice, the choice inside graphs if
  /// different, then each engine that refuses, with the reason.
  std::string explain(const Request& request, const EngineRequest& wanted = {}) const;

 private:
  const TuningRow* built_in(const Request& request, bool captured) const;
  bool is_for_calls(const TuningRow& row, bool captured) const;
  bool has_row_for_graphs(const Request& request) const;
  const TuningRow* measured(const Request& request) const;
  EngineChoice by_caller(const Request& request, const EngineRequest& wanted) const;
  std::optional<EngineChoice> by_itself(const Request& request, bool captured) const;
  struct Simulated {
    const Engine* engine = nullptr;  ///< Fastest engine; null if none has a prediction.
    bool plan_is_faster = false;
  };
  Simulated simulated(const Request& request) const;
  bool goes_by_simulation(const Request& request) const;
  bool is_within_budget(const Request& request) const;
  bool has_ring_as_measured(const Engine& engine) const;

  const Group group_;
  const TuningTable table_;
  const bool as_measured_;
  const Predict predict_;
  const TuningTable& built_in_;
  const PredictPlan predict_plan_;
};

/// True if a request needs the large arena: the request is large, or is served by another engine
/// with both tiers than with the small arena alone. Depends on the request and the groups only.
bool wants_large_arena(const Selector& first, const Selector& whole, const Request& request);

}  // namespace plait::cuda
