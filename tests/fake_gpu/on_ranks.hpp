// Ranks of tests over the fake driver: a process each, with a GPU of its own.
#pragma once
#include <functional>
#include <string>
#include <utility>

#include "comm/gpu/gpu_calls.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "tests/fake_gpu/require.hpp"
#include "tests/gpu/ranks.hpp"

namespace plait_test {

/// A rank in its process.
struct RankProcess {
  int rank;
  plait::bench::Board& board;
  plait::cuda::Exchange exchange;  ///< with all ranks
};

/// Runs `body` in a process per rank. Returns 0 if no body threw.
inline int run_on_ranks(int ranks, const std::function<void(const RankProcess&)>& body) {
  plait::bench::Board* const board = plait::bench::make_board(ranks);
  return plait::bench::run_ranks(board, true, [&](int rank) {
    body({rank, *board, [=](const std::string& mine) { return board->exchange(rank, mine); }});
  });
}

/// Returns options of calls whose kernels do not run, so that no path can be proved.
inline plait::GpuCallsOptions options_without_kernels(const std::string& topology = "hgx-h200") {
  plait::GpuCallsOptions options;
  options.rank.proves_paths = false;
  options.checks = plait::load_topology(topology);
  return options;
}

/// Runs `body` with the rank's calls. The calls end once all ranks' bodies have ended, and keep no
/// memory. Called by all ranks.
inline void with_calls(const RankProcess& mine, plait::GpuGroup group,
                       const plait::GpuCallsOptions& options,
                       const std::function<void(plait::GpuCalls&)>& body) {
  const auto bytes = fake_cuda().memory.bytes;  // of earlier tests of the program
  {
    plait::GpuCalls calls(std::move(group), options, mine.exchange);
    body(calls);
    mine.board.barrier();
    calls.rank().unmap_peers();
    mine.board.barrier();
  }
  require(fake_cuda().memory.bytes == bytes, "memory of the GPU was kept");
  require(fake_cuda().opened == 0, "a peer's memory stayed open");
}

}  // namespace plait_test
