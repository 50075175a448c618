// How often each collective was called, at which size, over which path, and how long the host and
// the GPU took: always counted, timed only under PLAIT_PROFILE, readable at any moment.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "shims/nccl/engine.hpp"
#include "shims/nccl/nvtx.hpp"

namespace plait::nccl {

/// Sizes by their power of two: bucket b holds [2^(b-1), 2^b) bytes; 0 holds empty calls.
inline constexpr int kBuckets = 48;

/// Counts a call when it is over, and times it from construction on where profiling is on.
class CountedCall {
 public:
  /// by: kByNccl, or kByPlait until done_by() says more.
  CountedCall(const Request& request, int by, Stream stream);
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
  Stream stream_ = nullptr;
  std::unique_ptr<Timer> timer_;
  std::optional<NvtxRange> range_;
};

/// Where a profile is wanted: what the engine of a communicator that ends has sent, by path.
void count_paths(const Engine& engine);

/// Send and receive, which have no Request.
void count_message(bool sends, std::uint64_t bytes, bool served);

/// One line of the table, as other languages read it.
struct CounterRow {
  char name[32];        ///< "all_reduce", "send"
  std::int32_t served;  ///< 0 = by NCCL, 1 = by plait, from 2 on by which engine of engines.def
  std::int32_t bucket;  ///< message sizes [2^(bucket-1), 2^bucket)
  std::uint64_t calls, bytes, host_ns;
  std::uint64_t gpu_calls, gpu_ns;  ///< of the calls whose GPU time was taken
};

}  // namespace plait::nccl

/// Copies the rows that count something, at most `capacity`; returns how many there are.
extern "C" [[gnu::visibility("default")]] int plait_nccl_counters(plait::nccl::CounterRow* rows,
                                                                  int capacity);
