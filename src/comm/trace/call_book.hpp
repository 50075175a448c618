// Counts a process's calls at all entry points: number of calls by collective, size and path, and
// host and GPU time. Always counted, timed only under PLAIT_PROFILE, readable at any time.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/trace/nvtx.hpp"
#include "plait/plan.hpp"

namespace plait {

/// Executor of a call: NCCL, plait without an engine, or kByEngine + the engine's index in
/// engines.def.
inline constexpr int kByNccl = 0, kByPlait = 1, kByEngine = 2;
/// The native MPI, numbered after all engines.
inline constexpr int kByMpi = kByEngine
#define PLAIT_ENGINE(name) +1
#include "gpu/select/engines.def"
#undef PLAIT_ENGINE
    ;

/// Measures the GPU time of a call.
class CallTimer {
 public:
  virtual ~CallTimer() = default;
  virtual void stop(void* stream) = 0;
  virtual float elapsed_ms() = 0;  ///< negative until the end event has been reached
};
/// Returns a started timer on a stream, or null if none is possible (a capture).
using StartTimer = std::unique_ptr<CallTimer> (*)(void* stream);
/// Replaces the driver's events as the timer of calls. Before the first call.
void time_calls_by(StartTimer start);

/// Buckets by powers of two: bucket b holds sizes in [2^(b-1), 2^b); bucket 0 holds empty calls.
inline constexpr int kBuckets = 48;

/// Counts a call in the destructor; with profiling on also times the call from construction on.
class CountedCall {
 public:
  /// by: kByNccl, or kByPlait until done_by() refines it. is_launched: the call is on a stream at
  /// destruction, so the GPU time can be measured.
  CountedCall(const Request& request, int by, void* stream, bool is_launched = true);
  /// For calls on host memory.
  CountedCall(Collective collective, std::uint64_t bytes, int by);
  ~CountedCall();
  CountedCall(const CountedCall&) = delete;
  CountedCall& operator=(const CountedCall&) = delete;
  void done_by(int by) { by_ = by; }

 private:
  int row_ = 0;
  int bucket_ = 0;
  std::int64_t start_ns_ = 0;
  std::uint64_t bytes_ = 0;
  int by_ = 0;
  void* stream_ = nullptr;
  std::unique_ptr<CallTimer> timer_;
  std::optional<NvtxRange> range_;
};

/// Adds a communicator's bytes by path (plait/communicator.hpp) to the profile, read at exit or
/// when this object ends.
class CountedPaths {
 public:
  using Look = std::function<std::map<std::string, std::uint64_t>()>;
  explicit CountedPaths(Look look);
  ~CountedPaths();
  CountedPaths(const CountedPaths&) = delete;
  CountedPaths& operator=(const CountedPaths&) = delete;

 private:
  const Look look_;
};

/// Counts a send or receive (without a Request).
void count_message(bool sends, std::uint64_t bytes, bool served);

/// A row of the table, with a fixed layout for the bindings.
struct CounterRow {
  char name[32];        ///< "all_reduce", "send"
  std::int32_t served;  ///< 0 = NCCL, 1 = plait, from 2 on by index in engines.def, then MPI
  std::int32_t bucket;  ///< message sizes [2^(bucket-1), 2^bucket)
  std::uint64_t calls, bytes, host_ns;
  std::uint64_t gpu_calls, gpu_ns;  ///< sums over calls with measured GPU time
};

/// Returns the rows with a nonzero count.
std::vector<CounterRow> counter_rows();

}  // namespace plait
