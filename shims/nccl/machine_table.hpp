// What `plait tune` measured on this machine, for the engines of one communicator.
#pragma once
#include "exec/cuda/tuning_table.hpp"
#include "plait/topology.hpp"
#include "shims/nccl/engine.hpp"

namespace plait::nccl {

/// Rank 0's table of this machine on all ranks; an empty one where there is none, or `options` want
/// none (of tables measured without a budget). Throws on rank 0, whose failure all ranks then see,
/// where PLAIT_TUNING names what is no table. topology: rank 0's; without devices = not known.
cuda::TuningTable machine_table(const EngineOptions& options, const Topology& topology,
                                const Exchange& exchange);

/// Throws where nothing tells which calls are faster than NCCL's: no table, and GPUs of a kind that
/// plait was not measured on. Alike on all ranks. gpus: that kind; empty = several.
void require_measured(const cuda::TuningTable& table, const EngineOptions& options,
                      const std::string& gpus);

}  // namespace plait::nccl
