// Tuning tables of communicators. Rank 0 reads the machine's table. On GPUs without a table, the
// first start measures: calls of plait and (under NCCL) of NCCL, for at most 3 s, once for a
// machine, driver, NCCL version and number of ranks.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "comm/gpu/call_bench.hpp"
#include "comm/gpu/gpu_group.hpp"
#include "gpu/select/tuning_table.hpp"

namespace plait {

inline constexpr double kFirstStartS = 3.0;  ///< Longest measurement.

/// Terms of an entry point, the same on all ranks except `bench`.
struct FirstStart {
  std::string nccl;                                   ///< NCCL's version; empty = not under NCCL
  cuda::RowUse when = cuda::RowUse::overlap_compute;  ///< calls that are measured
  std::string why_not;  ///< why nothing is measured; empty = on GPUs without a table
  double budget_s = kFirstStartS;
  double arrive_s = 600.0;  ///< longest wait of the other ranks for rank 0
  /// Makes a bench that is not open yet.
  std::function<std::unique_ptr<CallBench>()> bench;
};

/// Sets group.tuning to rank 0's table on all ranks, and measures a table if there is none. Called
/// by all ranks together. A failed measurement leaves no table on all ranks: rank 0 warns once, and
/// a mark beside the table keeps later starts from measuring. A bench that cannot be made leaves no
/// mark. Throws what the exchange throws.
void learn_tuning(GpuGroup& group, const cuda::Exchange& exchange, const Env& env,
                  const FirstStart& first);

/// Path of the group's tuning table beside that NCCL; empty = calls of plait alone.
std::string tuning_file(const Env& env, const GpuGroup& group, const std::string& nccl);

}  // namespace plait
