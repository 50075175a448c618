// Check of paths between ranks of the host platform, like the check between GPUs.
#pragma once
#include "shims/nccl/engine.hpp"
#include "tests/shims/standin/segment.hpp"

namespace plait::nccl {

/// STANDIN_PATH=TROUBLE:WRITER:OWNER: checks the paths with that fault (mirror, stale, flip), with
/// a host that stalls once (stall), or with none (whole). Unset: no check.
void prove_host_paths(standin::Segment& segment, const GpuCallsOptions& options,
                      const Exchange& exchange);

}  // namespace plait::nccl
