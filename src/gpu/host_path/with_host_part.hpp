// Calls with a part through host memory, beside the engine that does the rest.
#pragma once
#include <memory>
#include <string>

#include "gpu/copy/copy_plans.hpp"
#include "gpu/engine/engine.hpp"

namespace plait::cuda {

/// Returns "" if the engine's call can have the part through host memory that `tuning` asks for, or
/// if `tuning` asks for none.
std::string why_no_host_part(const Engine& engine, const Request& request, const Tuning& tuning,
                             const Group& group);
/// Returns whether the engine's call may have a part through host memory, asked for or not.
bool may_have_host_part(const Engine& engine, const Request& request, const Tuning& tuning,
                        const Group& group);
/// Returns the tuning of an eager call of two ranks while PCIe is idle: with the share of large
/// calls if `tuning` leaves the share to be chosen.
Tuning eager_tuning(const Engine& engine, const Request& request, const Tuning& tuning,
                    const Group& group);
/// Prepares the engine's call, with a part through host memory if `tuning` asks for a part or if a
/// part may be fastest.
std::unique_ptr<PreparedCall> prepare_with_host_part(const Engine& engine, const Request& request,
                                                     const Tuning& tuning, EngineRank& rank);

/// Plan of the engine, including the host-memory parts that `tuning` asks for.
Plan plan_of(const Engine& engine, const Topology& topology, const Request& request,
             const Tuning& tuning, const Group& group);
/// plan_of() of an engine; a test may pass queues that damage the call. Null = none.
Plan plan_through(const Engine& engine, const Topology& topology, const Request& request,
                  const Tuning& tuning, const Group& group, const QueueOf& through);

}  // namespace plait::cuda
