// A rank over pretended nodes with fake drivers, and runs of all ranks, a process each.
#pragma once
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error_reason.hpp"
#include "base/text.hpp"
#include "comm/multinode/gpu_multinode.hpp"
#include "comm/node/setup.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "plait/error.hpp"
#include "tests/fake_gpu/require.hpp"
#include "tests/gpu/ranks.hpp"

namespace plait_test {

using namespace plait;

inline void* const kMemory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
inline void* const kOther = reinterpret_cast<void*>(std::uintptr_t{1} << 33);

/// A rank with the node's communicator and the communicator over nodes.
struct NodeRank {
  bench::Board* board;
  Nodes nodes;
  std::unique_ptr<GpuCalls> calls;
  std::mutex guard;
  std::optional<Error> failure;
  std::optional<Error> others;    ///< Failure reported by ranks of the other node, once heard.
  std::vector<std::string> told;  ///< Failures that this rank has reported.
  std::function<void()> at_hearing, at_failure;  ///< Hooks that run in the test's threads.
  const std::thread::id test = std::this_thread::get_id();
  std::unique_ptr<GpuMultinode> multinode;

  NodeRank(bench::Board* where, const std::vector<std::string>& hosts, int rank,
           GpuMultinodeOptions how, double init_s = 60, GpuGroup group = {})
      : board(where), nodes(nodes_of(hosts, 0, rank)) {
    const cuda::Exchange all = [this, rank](const std::string& mine) {
      return board->exchange(rank, mine);
    };
    group.rank = nodes.place;
    group.ranks = nodes.size();
    group.ordinals.assign(static_cast<std::size_t>(nodes.size()), 0);
    group.kind = cuda::default_table().gpus().kind();
    group.in_processes = true;
    group.topology = load_topology("hgx-h200");
    GpuCallsOptions options;
    options.rank.proves_paths = false;  // No kernel runs here.
    options.rank.memory.plans = true;
    options.checks = load_topology("hgx-h200");
    calls = std::make_unique<GpuCalls>(group, options, [&](const std::string& mine) {
      const std::vector<std::string> records = all(mine);
      std::vector<std::string> found;
      for (const int peer : nodes.peers()) found.push_back(records[static_cast<std::size_t>(peer)]);
      return found;
    });
    NodeSide side;
    side.calls = calls.get();
    side.failure = [this] {
      if (std::this_thread::get_id() == test && at_failure) std::exchange(at_failure, nullptr)();
      const std::lock_guard lock(guard);
      return failure;
    };
    side.fail = [this](const Error& error) { fail(error); };
    side.poll_failures = [this] {
      if (at_hearing) at_hearing();
      if (others) fail(*others);
    };
    side.publish_failure = [this](const Error& cause) { told.push_back(reason_of(cause)); };
    side.name = [hosts](int peer) {
      return text("rank {} on host {}", peer, hosts[static_cast<std::size_t>(peer)]);
    };
    multinode = std::make_unique<GpuMultinode>(nodes, side, how, all,
                                               Deadline{deadline_in(init_s), nullptr});
  }
  void fail(const Error& error) {
    const std::lock_guard lock(guard);
    if (!failure) failure = error;
  }
  int rank() const { return nodes.peers()[static_cast<std::size_t>(nodes.place)]; }
  /// Repeats the call until it throws; returns the error and the seconds that all calls took.
  std::pair<std::string, double> run_caught(const Request& request) {
    const auto began = std::chrono::steady_clock::now();
    const auto took = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    while (took() < 10) {
      const auto thrown =
          attempt([&] { multinode->enqueue(request, kMemory, kOther, nullptr, {}); });
      if (thrown) return {thrown->what(), took()};
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {"no error", took()};
  }
};

using NodeBody = std::function<void(NodeRank&)>;

inline int run_nodes(const std::vector<std::string>& hosts, const GpuMultinodeOptions& how,
                     const NodeBody& body, const GpuGroup& group = {}) {
  fake_cuda().gpu = {};
  ::setenv("PLAIT_NCCL_LIB", FAKE_NCCL, 1);
  const int ranks = static_cast<int>(hosts.size());
  bench::Board* const board = bench::make_board(ranks);
  return bench::run_ranks(board, true, [&](int rank) {
    {
      NodeRank side(board, hosts, rank, how, 60, group);
      body(side);
      board->barrier();
      side.multinode.reset();
      board->barrier();
    }
    const auto& nccl = fake_cuda().nccl;
    require(nccl.destroyed + nccl.aborted == nccl.made, "communicators of NCCL were kept");
    require(fake_cuda().memory.bytes == 0, "memory of the GPU was kept");
  });
}

inline const std::vector<std::string> kTwoOfTwo{"a", "a", "b", "b"};

inline Request request_of(Collective collective, std::uint64_t count, int ranks = 4) {
  Request request;
  request.collective = collective;
  request.ranks = ranks;
  request.count = count;
  return request;
}

}  // namespace plait_test
