// The plans of calls by copy engines, without a GPU: each engine's own code, played for all ranks
// on queues that write down (plan_queue.hpp).
#pragma once
#include <functional>

#include "exec/cuda/copies/plan_queue.hpp"

namespace plait::cuda {

/// This rank's part of a call by copy engines: two ranks exchange, an all_gather of more goes round
/// a ring, what else there is rotates.
void enqueue_copies(EngineQueue& queue, const EnginePath& path, const Request& request,
                    const CallArgs& call, const CopyTuning& tuning, Event fork, Stream stream);

/// Where a rank enqueues; a test may put a queue of its own between, to damage a call on its way.
using QueueOf = std::function<EngineQueue&(PlanBook& book, int rank)>;

/// copy_exchange of two ranks, copy_ring or copy_rotation of more. `request`: checked.
/// Error(unsupported) where the room has no slots for it.
Plan plan_of_copies(const Topology& topology, const Request& request, const CopyRoom& room,
                    const CopyTuning& tuning = {}, const QueueOf& through = nullptr);

/// The plan of the rest of a call, as the engine beside the host's part does it.
using PlanOfRest = std::function<Plan(const Request&)>;

/// An all_reduce of which a part goes through host memory (gather_permille) or by CPU cores
/// (host_cpu_permille), and the rest by copy engines, or as `rest` says. Without such a part, as
/// small messages have none: the plan of the rest alone.
Plan plan_beside_host(const Topology& topology, const Request& request, const CopyRoom& room,
                      const CopyTuning& tuning, const PlanOfRest& rest = nullptr,
                      const QueueOf& through = nullptr);

}  // namespace plait::cuda
