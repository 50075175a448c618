// Where calls by copy engines put their work: the driver's streams, or those of a test without a
// GPU. Whatever is put on one stream is done in this order; an event joins streams.
#pragma once
#include <memory>
#include <vector>

#include "exec/cpu/reduce_team.hpp"
#include "exec/cuda/kernel_args.hpp"
#include "exec/cuda/kernels.hpp"
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
  /// Waits for words of peers, raises theirs.
  virtual void step(Stream stream, const RotationStep& step) = 0;
  virtual void end(Stream stream, const RotationEnd& end) = 0;
  /// By a kernel of so many blocks.
  virtual void reduce(Stream stream, const PieceArgs& args, DataType type, unsigned blocks) = 0;
  /// By CPU cores, in host memory.
  virtual void reduce_on_host(Stream stream, const ReduceJob& job) = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void follow(Stream stream, Event event) = 0;
};

/// The driver's, in the current context.
class DriverQueue : public EngineQueue {
 public:
  /// helpers: CPU threads beside the driver's own that reduce; they start when first needed.
  DriverQueue(Kernels& kernels, int helpers);

  void copy(Stream stream, char* dst, const char* src, std::uint64_t bytes) override;
  void step(Stream stream, const RotationStep& step) override;
  void end(Stream stream, const RotationEnd& end) override;
  void reduce(Stream stream, const PieceArgs& args, DataType type, unsigned blocks) override;
  void reduce_on_host(Stream stream, const ReduceJob& job) override;
  void record(Event event, Stream stream) override;
  void follow(Stream stream, Event event) override;

 private:
  struct HostWork {
    ReduceTeam* team;
    ReduceJob job;
    bool is_kept;  // by what captured it; else it is done once
  };
  static void do_on_host(void* work);

  Kernels& kernels_;
  const Function step_, end_;  // looked up once: a call launches them dozens of times
  ReduceTeam team_;
  std::vector<std::unique_ptr<HostWork>> captured_;  // graphs point at them
};

}  // namespace plait::cuda
