// The book of a process's calls, whatever door they come by: how often each collective was called,
// at which size, over which path, and how long the host and the GPU took: always counted, timed
// only under PLAIT_PROFILE, readable at any moment.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/nvtx.hpp"
#include "plait/plan.hpp"

namespace plait {

/// Who did a call: kByEngine and the engine's place in engines.def, or plait in another way.
inline constexpr int kByNccl = 0, kByPlait = 1, kByEngine = 2;
/// The MPI itself: behind all engines.
inline constexpr int kByMpi = kByEngine
#define PLAIT_ENGINE(name) +1
#include "exec/cuda/engines.def"
#undef PLAIT_ENGINE
    ;

/// GPU time of one call.
class CallTimer {
 public:
  virtual ~CallTimer() = default;
  virtual void stop(void* stream) = 0;
  virtual float elapsed_ms() = 0;  ///< negative where the end has not been reached yet
};
/// Gives a started timer on a stream, or null where there is none (a capture).
using StartTimer = std::unique_ptr<CallTimer> (*)(void* stream);
/// Before the first call: by what the book's calls are timed instead of the driver's events.
void time_calls_by(StartTimer start);

/// Sizes by their power of two: bucket b holds [2^(b-1), 2^b) bytes; 0 holds empty calls.
inline constexpr int kBuckets = 48;

/// Counts a call when it is over, and times it from construction on where profiling is on.
class CountedCall {
 public:
  /// by: kByNccl, or kByPlait until done_by() says more. is_launched: it is on its stream when this
  /// ends, so that there is something to time.
  CountedCall(const Request& request, int by, void* stream, bool is_launched = true);
  /// On host memory.
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

/// What a communicator has sent by path (plait/communicator.hpp), in the profile: asked when the
/// process ends, or this does.
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

/// Send and receive, which have no Request.
void count_message(bool sends, std::uint64_t bytes, bool served);

/// One line of the table, as other languages read it.
struct CounterRow {
  char name[32];        ///< "all_reduce", "send"
  std::int32_t served;  ///< 0 = by NCCL, 1 = by plait, from 2 on by which engine of engines.def,
                        ///< then by MPI
  std::int32_t bucket;  ///< message sizes [2^(bucket-1), 2^bucket)
  std::uint64_t calls, bytes, host_ns;
  std::uint64_t gpu_calls, gpu_ns;  ///< of the calls whose GPU time was taken
};

/// The rows that count something.
std::vector<CounterRow> counter_rows();

}  // namespace plait
