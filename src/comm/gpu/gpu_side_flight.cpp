// Records the calls on GPU memory, and explains them when they hang.
#include "base/log.hpp"
#include "comm/gpu/gpu_side.hpp"

namespace plait {

void GpuSide::watch_peers() {
  const Controls& controls = host_.joined().controls;
  FlightInfo info = host_.flight_info();
  info.memory = "GPU";
  info.mine = &controls.mine().gpu_flight;
  for (int place = 0; place < controls.ranks(); ++place)
    info.here[static_cast<std::size_t>(place)].ring = &controls.of(place).gpu_flight;
  info.held = [this] { return calls_->held(); };
  flight_ = std::make_unique<Flight>(std::move(info));
  hang_ = std::make_unique<HangWatch>(flight_->info());
  watch(peers_, *this, ObserverCalls::look);
}

template <class Body>
void GpuSide::record(const Request& request, const Body& body) {
  check_running();
  calls_->rank().require_resumed();  // before a call that needs the large arena counts
  FlightRing* const ring = flight_ == nullptr ? nullptr : flight_->info().mine;
  const RecordedCall recorded(ring, flight_call(request));
  try {
    body();
    recorded.enqueued();
  } catch (const Error& error) {  // other errors end the communicator, with the call as its last
    if (error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported)
      recorded.refused();
    throw;
  }
}

void GpuSide::enqueue(const Request& request, const void* input, void* output, void* stream,
                      const CallOptions& options) {
  record(request, [&] {
    calls_->enqueue(request, input, output, static_cast<cuda::Stream>(stream), options);
  });
}

void GpuSide::enqueue(const RmsNorm& norm, const RmsNormBuffers& buffers, void* stream,
                      const CallOptions& options) {
  record(all_reduce_of(norm, options_.ranks),
         [&] { calls_->enqueue(norm, buffers, static_cast<cuda::Stream>(stream), options); });
}

/// `plait status` reads the memory of calls_, which leaves next.
void GpuSide::end_flight() {
  hang_.reset();
  flight_.reset();
}

/// Asks the driver, since look() must not.
void GpuSide::query() {
  cuda::CudaRank& rank = calls_->rank();
  if (rank.wants_trim()) rank.trim([&] { return !rank.has_pending_calls(); });
  const std::string line = hang_->look(
      [&] { return calls_->rank().has_pending_calls() ? CallsEnded::no : CallsEnded::yes; });
  if (!line.empty()) warn_unasked(options_.rank, line);
}

}  // namespace plait
