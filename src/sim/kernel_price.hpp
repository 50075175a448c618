// A call by one kernel of an engine -> what it takes among others like it, back to back: its
// launch, what its first bytes wait for, its bytes over the links, and the turns of its threads. A
// sum where one waits for the other, else a norm of both, since neither hides the other wholly.
// docs/simulator.md has the terms, docs/topology.md the parameters, docs/evidence.md what it gives.
#pragma once
#include "plait/plan.hpp"
#include "plait/timeline.hpp"

namespace plait::sim {

/// A plan whose kernel is priced. It says which one, and in `params` how that is launched:
///   one_shot, two_shot, hop, line_chain:
///                            blocks, threads, together (units that a thread moves at once),
///                            line_bytes (16; 32 where half of them are flags)
///   tiled:                   blocks, tile_units; for a share through host memory host_permille and
///                            chunk_bytes; of its schedule fold, ring, pull, shift, by_xor
///                            (1 = so), phases (of pairs), and what a GPU has under way to others
///                            at most, of parts in_flight_bytes, of results
///                            results_in_flight_bytes; send_gb_per_s at most
///   scatter_ring:            those of tiled; piece_bytes and ring_steps of its ring
///   messages:                blocks, line_bytes (0 = tiles)
bool is_kernel_call(const Plan& plan);
/// Of such a plan; its ops are not looked at.
double kernel_call_ns(const Plan& plan, const Topology& topology, Launch launch);

}  // namespace plait::sim
