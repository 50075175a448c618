// A bench with times that the test chooses, for the drop-in over host memory. NCCL's communicator
// beside it is split off the stand-in's, and carries a call.
#pragma once
#include <functional>
#include <memory>

#include "comm/gpu/gpu_bench.hpp"

namespace plait::nccl {

/// STANDIN_BENCH: behind = plait is slower everywhere, ahead = nowhere, else slower from 1 MiB on.
/// STANDIN_BENCH_S: seconds that a request takes. STANDIN_BENCH_FAILS, STANDIN_BENCH_DIES: the rank
/// whose third request fails, or whose process is killed in it. STANDIN_BENCH_NO_MEMORY,
/// STANDIN_BENCH_LATE_NO_MEMORY: the rank that has no memory for the bench, before or behind the
/// check of paths.
std::unique_ptr<CallBench> host_bench(int rank, const BenchSource& source,
                                      std::function<void(const cuda::Exchange&)> prove_paths);

/// STANDIN_BUDGET_S: longest measurement; 60 if it is not set, since machines of tests are busy.
double host_bench_seconds();

}  // namespace plait::nccl
