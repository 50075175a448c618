// Ranks with arenas at fixed addresses over the fake driver, a process each.
#pragma once
#include <doctest/doctest.h>

#include <chrono>
#include <functional>

#include "base/text.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "tests/fake_gpu/h200_group.hpp"
#include "tests/fake_gpu/on_ranks.hpp"

namespace plait_test {

using namespace plait;

inline constexpr auto kLook = std::chrono::microseconds(100);  // leaves the core to awaited ranks

/// A rank of the test.
struct FixedRank {
  bench::Board* board;
  GpuCalls& calls;
  cuda::CudaRank& cuda() const { return calls.rank(); }
  int rank() const { return cuda().rank(); }
  int ranks() const { return cuda().ranks(); }
  char* at(const cuda::ArenaPart& part, int owner) const {
    return static_cast<const cuda::EngineRank&>(cuda()).at(part, owner);
  }
  std::uint64_t taken() const { return fake_cuda().memory.bytes; }
  /// Each rank writes a value into each rank's memory, then reads the values of all ranks.
  void exchange_values(const cuda::ArenaPart& part, int turn) const {
    for (int owner = 0; owner < ranks(); ++owner) at(part, owner)[rank()] = value(rank(), turn);
    board->barrier();
    check_values(part, turn);
  }
  void check_values(const cuda::ArenaPart& part, int turn) const {
    for (int owner = 0; owner < ranks(); ++owner)
      for (int writer = 0; writer < ranks(); ++writer)
        require(at(part, owner)[writer] == value(writer, turn),
                text("rank {}'s memory lacks what rank {} wrote in turn {}", owner, writer, turn));
    board->barrier();
  }
  void suspend() const {
    agree_on_suspend();
    calls.suspend();
  }
  void agree_on_suspend() const {
    board->barrier();  // as NCCL's own
    require(calls.agree_on_suspend(true, [] {}), "a rank cannot suspend");
  }
  void resume() const {
    calls.resume([] {});
  }

 private:
  static char value(int writer, int turn) {
    return static_cast<char>(16 * (turn % 6) + writer + 1);
  }
};

/// Runs `body` on each rank, a process each. has: whether a rank's GPU maps memory.
inline void on_fixed_ranks(
    int ranks, const std::function<void(const FixedRank&)>& body,
    const std::function<bool(int rank)>& has = [](int) { return true; },
    const std::function<void(int rank)>& before = [](int) {}, double trim_s = 0,
    bool opens_at_first_call = false, double first_wait_s = 60) {
  CHECK(run_on_ranks(ranks, [&](const RankProcess& mine) {
          fake_cuda().gpu.maps_memory = has(mine.rank);
          GpuCallsOptions options = options_without_kernels();
          options.rank.large_arena_wait_s = 60;
          options.rank.trim_s = trim_s;
          options.rank.first_arena_wait_s = first_wait_s;
          options.opens_at_first_call = opens_at_first_call;
          before(mine.rank);
          GpuGroup group = h200_group(mine.rank, ranks, mine.exchange, "");
          group.kind = cuda::default_table().gpus().kind();  // a measured kind of GPUs
          with_calls(mine, std::move(group), options,
                     [&](GpuCalls& calls) { body({&mine.board, calls}); });
        }) == 0);
}

}  // namespace plait_test
