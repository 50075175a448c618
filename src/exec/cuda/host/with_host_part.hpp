// A call of which a part goes through host memory, beside the engine that does the rest.
#pragma once
#include <memory>
#include <string>

#include "exec/cuda/copies/copy_plans.hpp"
#include "exec/cuda/engine.hpp"

namespace plait::cuda {

/// Empty where the engine's call can have the part through host memory that `tuning` asks for, or
/// none is asked for.
std::string why_no_host_part(const Engine& engine, const Request& request, const Tuning& tuning,
                             const Group& group);
/// The call as the engine makes it ready, with its part through host memory where one is asked for
/// or may be best.
std::unique_ptr<PreparedCall> prepare_with_host_part(const Engine& engine, const Request& request,
                                                     const Tuning& tuning, EngineRank& rank);

/// plan_of() of an engine, whose queues a test may have damage what goes through them. Null = none
/// does.
Plan plan_through(const Engine& engine, const Topology& topology, const Request& request,
                  const Tuning& tuning, const Group& group, const QueueOf& through);

}  // namespace plait::cuda
