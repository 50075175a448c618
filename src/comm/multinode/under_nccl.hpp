// Tells what serves a call of a program under NCCL (`plait run`) on a machine that need not be
// present. The answer comes from the functions by which the drop-in decides.
#pragma once
#include <optional>
#include <string>

#include "base/env.hpp"
#include "comm/choose/what_runs.hpp"

namespace plait {

struct UnderNccl {
  std::optional<WhatRuns> engine;  ///< plait's engine that serves the call
  /// What serves the call in place of one engine: messages, a plan by lanes, or engines in the
  /// nodes with NCCL between; empty = none of these.
  std::string other;
  std::string why;        ///< why NCCL serves the call; empty = plait serves the call
  bool is_error = false;  ///< with `why`: PLAIT_BITWISE_STRICT=1 refuses the call
};

/// env: of the program. table: the machine's tuning table beside NCCL; empty = none. Ranks are a
/// process each.
UnderNccl under_nccl(const Topology& topology, const Request& request, const Env& env,
                     const cuda::TuningTable& table);
/// Returns the path of the machine's tuning table beside an NCCL of this version, for a call's GPUs
/// as `env` lets them reach each other; empty = none is read.
std::string tuning_file_beside_nccl(const Topology& topology, const Request& request,
                                    const Env& env, const std::string& nccl);

}  // namespace plait
