// Where calls by copy engines put their work: the driver's streams, or those of a test without a
// GPU. Whatever is put on one stream is done in this order; an event joins streams.
#pragma once
#include <memory>
#include <vector>

#include "exec/cuda/copies/copy_args.hpp"
#include "exec/cuda/device/copy_batch.hpp"
#include "exec/cuda/device/kernels.hpp"
#include "exec/cuda/host/host_reducer.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

class EngineQueue {
 public:
  EngineQueue() = default;
  virtual ~EngineQueue() = default;
  EngineQueue(const EngineQueue&) = delete;
  EngineQueue& operator=(const EngineQueue&) = delete;

  /// bytes: not 0.
  virtual void copy(Stream stream, char* dst, const char* src, std::uint64_t bytes) = 0;
  /// To other GPUs, in any order and at once; none of them touches what another one does.
  virtual void copy_all(Stream stream, const std::vector<OneCopy>& copies) {
    for (const OneCopy& one : copies) copy(stream, one.dst, one.src, one.bytes);
  }
  /// Waits for words of peers, raises theirs.
  virtual void step(Stream stream, const EngineStep& step) = 0;
  virtual void end(Stream stream, const EngineEnd& end) = 0;
  /// By a kernel of so many blocks.
  virtual void reduce(Stream stream, const PieceArgs& args, DataType type, unsigned blocks) = 0;
  /// CPU cores begin with a job, which meets the GPU's steps in words of host memory.
  virtual void begin_on_host(Stream stream, const HostJob& job) = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void follow(Stream stream, Event event) = 0;
};

/// The driver's, in the current context.
class DriverQueue : public EngineQueue {
 public:
  /// reducer: null = no jobs for CPU cores.
  DriverQueue(Kernels& kernels, HostReducer* reducer);

  void copy(Stream stream, char* dst, const char* src, std::uint64_t bytes) override;
  /// By one call of the driver where it has such a one, but for captures.
  void copy_all(Stream stream, const std::vector<OneCopy>& copies) override;
  void step(Stream stream, const EngineStep& step) override;
  void end(Stream stream, const EngineEnd& end) override;
  void reduce(Stream stream, const PieceArgs& args, DataType type, unsigned blocks) override;
  void begin_on_host(Stream stream, const HostJob& job) override;
  void record(Event event, Stream stream) override;
  void follow(Stream stream, Event event) override;

 private:
  struct Beginning {
    HostReducer* reducer;
    HostJob job;
    bool is_kept;  // by what captured it; else it is done once
  };
  static void begin_job(void* beginning);

  Kernels& kernels_;
  HostReducer* const reducer_;
  const Function step_, end_;  // looked up once: a call launches them dozens of times
  // Graphs point at them: 400 bytes a captured call.
  std::vector<std::unique_ptr<Beginning>> captured_;
};

}  // namespace plait::cuda
