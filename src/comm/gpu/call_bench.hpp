// What a measurement times (measurement.hpp): ways to make calls on all ranks' GPUs, and NCCL's
// calls beside them. gpu_bench.hpp times GPUs; tests have benches with times of their own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/engine/engine.hpp"
#include "plait/plan.hpp"

namespace plait {

/// An engine with parameters; null = a plan that the communicator chooses.
struct CallWay {
  const cuda::Engine* engine = nullptr;
  cuda::Tuning tuning;
  bool by_messages = false;  ///< sends and receives under NCCL; these compete with NCCL's alone
  bool operator==(const CallWay&) const = default;
};
/// "tiled:shift=1"; "messages"; "" for a plan.
std::string label(const CallWay& way);

/// us a call: in a CUDA graph, and enqueued one by one. 0 = not timed.
struct CallTimes {
  double captured_us = 0, eager_us = 0;
};

class CallBench {
 public:
  CallBench() = default;
  virtual ~CallBench() = default;
  CallBench(const CallBench&) = delete;
  CallBench& operator=(const CallBench&) = delete;
  /// Makes calls, streams and buffers of the measurement. Called by all ranks together, before all
  /// others.
  virtual void open(const cuda::Exchange&) {}
  /// Most bytes of a message that the buffers have room for; the same on all ranks.
  virtual std::uint64_t most_bytes() const = 0;
  /// Ways that may be the fastest, first the one that runs without a measurement. The same on all
  /// ranks.
  virtual std::vector<CallWay> ways(const Request& request) = 0;
  /// Makes the request ready in each way, and by NCCL if `beside_nccl`. call_us: expected time
  /// of a call, the same on all ranks; 0 = unknown. Returns which ways this rank can go. Waits for
  /// no call of a peer, except inside NCCL.
  virtual std::vector<bool> prepare(const Request& request, const std::vector<CallWay>& ways,
                                    bool beside_nccl, double call_us) = 0;
  /// Runs the prepared ways that are `ready` on all ranks. Returns this rank's times by way, and
  /// NCCL's behind them (zeros = NCCL was not timed). Throws Error(timeout) if calls do not end.
  virtual std::vector<CallTimes> run(const std::vector<bool>& ready) = 0;
  /// Ends the use of peers' memory. Called by all ranks together, behind the last run() or after an
  /// error that all ranks know of, also one of open().
  virtual void close() {}
};

}  // namespace plait
