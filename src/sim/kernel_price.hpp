// Predicts the time of an engine's call by a single kernel, in a sequence of equal calls: launch,
// latency of the first bytes, bytes over the links, and rounds of the threads. Terms that wait for
// each other are added. Overlapping terms are joined by a p-norm, since none hides the rest
// completely. docs/simulator.md has the terms, docs/topology.md the parameters, docs/evidence.md
// the accuracy.
#pragma once
#include "plait/plan.hpp"
#include "plait/timeline.hpp"

namespace plait::sim {

/// Whether the plan names a kernel that kernel_call_ns() prices, with the launch in `params`:
///   one_shot, two_shot, direct_ll, ll_chain:
///                            blocks, threads, together (units of 16 bytes that a thread moves at
///                            once), line_bytes (bytes of an LL packet: 16, or 32 if half are
///                            flags)
///   tiled:                   blocks, tile_units; host_permille and chunk_bytes of a share through
///                            host memory; schedule: shift (1 = on), in_flight_bytes (most bytes
///                            of parts that a GPU has in flight), send_gb_per_s (most)
///   scatter_ring:            those of tiled; piece_bytes and ring_steps of its ring
///   messages:                blocks, line_bytes (0 = tiles)
bool is_kernel_call(const Plan& plan);
/// Predicts the time of a call of a priced plan from the request and `params`, not from the ops.
double kernel_call_ns(const Plan& plan, const Topology& topology, Launch launch);

}  // namespace plait::sim
