// The one decision which engine does a request, for every door: as the caller says, else as the
// table says that was measured here, else as choices.def says of such GPUs, else as simulated. The
// same on all ranks, since the request, the group, rank 0's table and its topology are, and all
// ranks capture a call or none.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "exec/cuda/choices.hpp"
#include "exec/cuda/engine.hpp"
#include "exec/cuda/tuning_table.hpp"

namespace plait::cuda {

struct EngineChoice {
  enum class By { caller, table, built_in, simulated };
  const Engine* engine = nullptr;
  Tuning tuning;
  By by = By::built_in;
  /// Whether NCCL was measured here, or on such GPUs, to be slower or as fast; none = not known.
  std::optional<bool> beats_nccl;

  /// Whether a call is done alike by both.
  bool runs_as(const EngineChoice& other) const {
    return engine == other.engine && tuning == other.tuning;
  }
};

/// "tiled", or where a row says how the engine does it "tiled(fold=1,shift=1)"; but for its blocks,
/// and for what a caller asks for.
std::string label(const EngineChoice& choice);
/// "caller", "table", "built in", "simulated".
const char* name_of(EngineChoice::By by);

/// What a caller asks for. engine: a name, or empty; params: of params.def.
struct EngineRequest {
  std::string engine;
  std::map<std::string, std::int64_t> params;
  bool captured = false;  ///< into a graph
};

/// What a call by the engine takes, in us; infinite where that cannot be said.
using Predict = std::function<double(const Engine&, const Request&)>;
/// What a call takes that goes by a plan instead, in us; infinite where no plan serves it.
using PredictPlan = std::function<double(const Request&)>;

class Selector {
 public:
  /// table: empty = nothing was measured here. as_measured: all ranks' GPUs and links are of a kind
  /// that choices.def was measured on; predict is asked where they are not. Null = choices.def is
  /// taken for other GPUs too. rows: those of choices.def, or a test's. predict_plan: null = plans
  /// are for requests that no engine takes.
  Selector(const Group& group, TuningTable table, bool as_measured, Predict predict = nullptr,
           std::span<const BuiltInChoice> rows = choices(), PredictPlan predict_plan = nullptr);

  /// The fastest as far as is known; none = no engine takes the request, or a plan is faster by
  /// prediction. Error(unsupported) where an engine that the caller names refuses, invalid_argument
  /// where the params are not its own.
  std::optional<EngineChoice> best(const Request& request, const EngineRequest& wanted = {}) const;
  /// The same, captured or not, where it is known to be no slower than NCCL; none = NCCL's.
  std::optional<EngineChoice> no_slower_than_nccl(const Request& request) const;
  /// Whether best() is another where the call is captured.
  bool differs_in_graphs(const Request& request, const EngineRequest& wanted = {}) const;
  /// Whether a plan serves the request though an engine takes it.
  bool prefers_plan(const Request& request) const;
  /// For people: the choice and by whose word, another one for graphs, then who refuses, and why.
  std::string explain(const Request& request, const EngineRequest& wanted = {}) const;

 private:
  const BuiltInChoice* built_in(const Request& request, bool captured) const;
  bool has_row_for_graphs(const Request& request) const;
  const TunedRow* measured(const Request& request) const;
  EngineChoice by_caller(const Request& request, const EngineRequest& wanted) const;
  std::optional<EngineChoice> by_itself(const Request& request, bool captured) const;
  struct Simulated {
    const Engine* engine = nullptr;  ///< the fastest; null where nothing can be said of any
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
  const std::span<const BuiltInChoice> rows_;
  const PredictPlan predict_plan_;
};

/// True of a request that wants more than the first room: it is large, or another engine serves it
/// there than where there is all room. Of the request and the group alone.
bool wants_large_arena(const Selector& first, const Selector& whole, const Request& request);

}  // namespace plait::cuda
