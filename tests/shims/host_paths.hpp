// Paths between the host platform's ranks, proved as those between GPUs are.
#pragma once
#include "shims/nccl/engine.hpp"
#include "tests/shims/standin/segment.hpp"

namespace plait::nccl {

/// STANDIN_PATH=TROUBLE:WRITER:OWNER: the paths are proved, and that one is broken (mirror, stale,
/// flip) or none (whole). Not set: nothing is proved.
void prove_host_paths(standin::Segment& segment, const GpuCallsOptions& options,
                      const Exchange& exchange);

}  // namespace plait::nccl
