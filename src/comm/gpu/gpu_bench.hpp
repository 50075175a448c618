// Times calls on the ranks' GPUs for a measurement: calls of a communicator that exists for the
// measurement alone, and NCCL's beside them, on a stream and buffers of the bench. Everything is
// freed with the bench.
#pragma once
#include <functional>
#include <memory>

#include "comm/gpu/call_bench.hpp"
#include "comm/gpu/first_start.hpp"
#include "comm/gpu/gpu_calls.hpp"

namespace plait {

/// The library that programs would call instead of plait.
class BesideLibrary {
 public:
  BesideLibrary() = default;
  virtual ~BesideLibrary() = default;
  BesideLibrary(const BesideLibrary&) = delete;
  BesideLibrary& operator=(const BesideLibrary&) = delete;
  virtual bool takes(const Request& request) const = 0;
  /// Enqueues the call. May wait for peers when the call is first made. Throws Error.
  virtual void enqueue(const Request& request, const void* input, void* output,
                       cuda::Stream stream) = 0;
  /// Ends its kernels, since calls do not end.
  virtual void abort() noexcept = 0;
};

/// What a bench needs of its entry point.
struct BenchSource {
  /// Makes the library's communicator; null = calls of plait alone.
  std::function<std::unique_ptr<BesideLibrary>()> beside;
  /// Called while the bench waits for the GPU; throws if waiting is pointless.
  std::function<void()> give_up = [] {};
};

/// Makes a bench of the ranks' GPUs. group: outlives the result; its table is not used.
std::unique_ptr<CallBench> gpu_bench(const GpuGroup& group, const GpuCallsOptions& options,
                                     const BenchSource& source);
/// The first start of plait's own communicators, which measures calls of plait alone. group:
/// outlives the result.
FirstStart own_first_start(const GpuGroup& group, const GpuCallsOptions& options, bool is_pair,
                           const std::function<void()>& give_up);

}  // namespace plait
