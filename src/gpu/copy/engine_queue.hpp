// Queue that calls by copy engines put work on: the driver's streams, or the queue of a plan or a
// test without a GPU. Work on one stream runs in order; events join streams.
#pragma once
#include <memory>
#include <vector>

#include "gpu/abi/copy_args.hpp"
#include "gpu/copy/host_job.hpp"
#include "gpu/device/copy_batch.hpp"
#include "gpu/device/kernels.hpp"
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
  /// Copies to other GPUs, in any order and at once. No copy touches bytes of another.
  virtual void copy_all(Stream stream, const std::vector<OneCopy>& copies) {
    for (const OneCopy& one : copies) copy(stream, one.dst, one.src, one.bytes);
  }
  /// Waits for flags of peers, and raises flags at peers.
  virtual void step(Stream stream, const EngineStep& step) = 0;
  virtual void end(Stream stream, const EngineEnd& end) = 0;
  /// Reduces a piece by a kernel of `blocks` blocks.
  virtual void reduce(Stream stream, const PieceArgs& args, DataType type, unsigned blocks) = 0;
  /// Starts a job of CPU cores that synchronises with the GPU's steps by flags in host memory.
  virtual void begin_on_host(Stream stream, const HostJob& job) = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void follow(Stream stream, Event event) = 0;
};

/// The driver's streams, in the current context.
class DriverQueue : public EngineQueue {
 public:
  /// cores: null = no jobs for CPU cores.
  DriverQueue(Kernels& kernels, HostJobs* cores);

  void copy(Stream stream, char* dst, const char* src, std::uint64_t bytes) override;
  /// Uses a batched copy of the driver if the driver has that call and the stream is not captured.
  void copy_all(Stream stream, const std::vector<OneCopy>& copies) override;
  void step(Stream stream, const EngineStep& step) override;
  void end(Stream stream, const EngineEnd& end) override;
  void reduce(Stream stream, const PieceArgs& args, DataType type, unsigned blocks) override;
  void begin_on_host(Stream stream, const HostJob& job) override;
  void record(Event event, Stream stream) override;
  void follow(Stream stream, Event event) override;

 private:
  struct Beginning {
    HostJobs* cores;
    HostJob job;
    bool is_kept;  // owned by the captured calls; otherwise run once and deleted
  };
  static void begin_job(void* beginning);

  Kernels& kernels_;
  HostJobs* const cores_;
  const Function step_, end_;  // looked up once: a call launches them dozens of times
  // Jobs of captured calls, to which graphs point: 400 bytes per call.
  std::vector<std::unique_ptr<Beginning>> captured_;
};

}  // namespace plait::cuda
