// Puts copies, kernels and host functions on the driver's streams.
#include "gpu/copy/engine_queue.hpp"

#include "gpu/copy/copy_memory.hpp"

namespace plait::cuda {

DriverQueue::DriverQueue(Kernels& kernels, HostJobs* cores)
    : kernels_(kernels),
      cores_(cores),
      step_(kernels.find("plait_engine_step")),
      end_(kernels.find("plait_engine_end")) {}

void DriverQueue::copy(Stream stream, char* dst, const char* src, std::uint64_t bytes) {
  PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<DevicePointer>(dst),
                  reinterpret_cast<DevicePointer>(src), bytes, stream);
}

void DriverQueue::copy_all(Stream stream, const std::vector<OneCopy>& copies) {
  copy_to_others(api(), stream, copies);
}

void DriverQueue::step(Stream stream, const EngineStep& step) {
  EngineStep argument = step;
  kernels_.launch(step_, {1, 32, false}, stream, {&argument});
}

void DriverQueue::end(Stream stream, const EngineEnd& end) {
  EngineEnd argument = end;
  kernels_.launch(end_, {1, 32, false}, stream, {&argument});
}

void DriverQueue::reduce(Stream stream, const PieceArgs& args, DataType type, unsigned blocks) {
  PieceArgs argument = args;
  const Function kernel = kernels_.find(piece_kernel(
      type, static_cast<ReduceOp>(args.op), args.sources, static_cast<SumOrder>(args.order)));
  kernels_.launch(kernel, {blocks, 512, false}, stream, {&argument});
}

void DriverQueue::begin_job(void* given) {
  auto* const beginning = static_cast<Beginning*>(given);
  beginning->cores->begin(beginning->job);
  if (!beginning->is_kept) delete beginning;
}

void DriverQueue::begin_on_host(Stream stream, const HostJob& job) {
  cores_->start();
  int status = kCaptureNone;
  PLAIT_CUDA_CALL(stream_is_capturing, stream, &status);
  auto made = std::make_unique<Beginning>(Beginning{cores_, job, status != kCaptureNone});
  PLAIT_CUDA_CALL(launch_host, stream, &begin_job, made.get());
  if (made->is_kept)
    captured_.push_back(std::move(made));
  else
    (void)made.release();  // begin_job deletes it
}

void DriverQueue::record(Event event, Stream stream) {
  PLAIT_CUDA_CALL(event_record, event, stream);
}

void DriverQueue::follow(Stream stream, Event event) {
  PLAIT_CUDA_CALL(stream_wait_event, stream, event, 0);
}

}  // namespace plait::cuda
