// Production platform: GpuCalls as engine, device buffers for the set-up exchange, UUIDs of GPUs as
// locations. Uses the CUDA driver that the program has loaded.
#include <chrono>
#include <mutex>
#include <thread>

#include "comm/bootstrap/host_name.hpp"
#include "comm/gpu/drop_in.hpp"
#include "comm/node/setup.hpp"
#include "driver/cuda/primary.hpp"
#include "gpu/device/device_code.hpp"
#include "gpu/device/event_marker.hpp"
#include "gpu/device/gpu_kind.hpp"
#include "plait/error.hpp"
#include "shims/nccl/engine.hpp"
#include "shims/nccl/settings.hpp"

namespace plait::nccl {
namespace {

bool capturing(Stream stream) {
  int status = cuda::kCaptureNone;
  return cuda::api().stream_is_capturing(stream, &status) != cuda::kSuccess ||
         status != cuda::kCaptureNone;
}

/// Returns the group of GPUs, agreed by all ranks. Several nodes skip the topology: each may see
/// different links, and all ranks must make the same exchanges.
GpuGroup agreed_group(const GpuCallsOptions& options, const Exchange& exchange) {
  const Env& env = settings().env;
  GpuGroup group =
      bootstrap_gpus(exchange, options.rank.rank, options.rank.ranks, options.rank.device);
  const std::vector<std::string> masks = masks_of(requested_masks({}, env), false);
  if (options.knows_links)
    learn_topology(
        group, exchange,
        [&] { return env.topology.empty() ? discovered() : load_topology(env.topology); }, masks);
  else if (masks.empty())
    group.why_no_topology = "ranks are on several nodes";
  else
    throw AgreedError(ErrorCode::unsupported,
                      "PLAIT_WITHOUT masks links of one node, not of several");
  return group;
}

/// Makes an engine with the small arena, whose set-up checks the paths, and frees it. Memory that a
/// driver does not map breaks no path of NCCL.
void prove_paths(const GpuGroup& group, GpuCallsOptions options, const Exchange& exchange) {
  options.has_lazy_arena = true;
  options.opens_at_first_call = false;
  try {
    GpuCalls calls(group, std::move(options), exchange);
    exchange("paths are proved");
    calls.rank().unmap_peers();
    exchange("memory is unmapped");
  } catch (const cuda::NoDirectAccess& found) {
    if (found.is_broken()) throw;
  }
}

class CudaEngine : public CommEngine {
 public:
  CudaEngine(const GpuCallsOptions& wanted, const Exchange& exchange, const BenchSource& source)
      : primary_(wanted.rank.device) {
    make_with_arenas(agreed_group(wanted, exchange), wanted, exchange, [&](GpuGroup group) {
      learn_what_beats_nccl(group, wanted, exchange,
                            {.bench = [&] { return gpu_bench(group, wanted, source); },
                             .prove_paths = [&] { prove_paths(group, wanted, exchange); }});
      GpuCallsOptions options = drop_in_options_on(group, wanted);
      calls_ = std::make_unique<GpuCalls>(std::move(group), std::move(options), exchange);
    });
  }
  bool takes(const LimitedRequest& request) const override { return alone()->takes(request); }
  bool wants_arena(const LimitedRequest& request) const override {
    const Alone calls = alone();
    return !calls->rank().is_open() || calls->wants_large_arena(request);
  }
  ArenaReservation reserve(const LimitedRequest& request, Stream stream, bool in_group) override {
    const Alone calls = alone();
    const bool is_first = !calls->rank().is_open();
    if (!calls->rank().reserve_arena()) return {false, is_first, 0};
    const unsigned steps = calls->large_steps(request);
    if (steps == 0) return {true, is_first, 0};
    const cuda::CallMode outside = in_group ? cuda::CallMode::grouped : cuda::CallMode::alone;
    const cuda::CallMode inside =
        in_group ? cuda::CallMode::captured_grouped : cuda::CallMode::captured;
    const cuda::CallMode mode = capturing(stream) ? inside : outside;
    return {calls->rank().reserve_large_arena(mode, steps), is_first, steps};
  }
  void cancel(const ArenaReservation& reserved) noexcept override {
    const Alone calls = alone();
    if (reserved.large_steps != 0)
      calls->rank().cancel_reservation(reserved.large_steps, reserved.is_granted);
    if (reserved.is_first) calls->rank().cancel_arena();
  }
  bool should_begin_arena() const noexcept override { return rank().should_open(); }
  void begin_arena() override { rank().begin_opening(); }
  std::vector<FlightMemory> held() const override { return calls_->held(); }
  int enqueue(const LimitedRequest& request, const void* input, void* output,
              Stream stream) override {
    const int engine = alone()->enqueue_taken(request, input, output, stream);
    return engine < 0 ? kByPlait : kByEngine + engine;
  }
  const char* why_not_scaled(const LimitedRequest& sum) const override {
    return alone()->why_not_scaled(sum);
  }
  int enqueue_scaled(const LimitedRequest& sum, const cuda::ScaleFactor& factor, const void* input,
                     void* output, Stream stream) override {
    const int engine = alone()->enqueue_scaled(sum, factor, input, output, stream);
    return engine < 0 ? kByPlait : kByEngine + engine;
  }
  std::string how(const LimitedRequest& request) const override {
    return alone()->choice_of(request);
  }
  bool takes_messages() const override { return rank().takes_messages(); }
  void messages(const std::vector<MessageEnd>& messages, Stream stream) override {
    alone()->rank().messages(messages, stream);
  }
  GpuMemory gpu_memory() const noexcept override { return rank().gpu_memory(); }
  bool wants_trim() const noexcept override { return rank().wants_trim(); }
  void trim(const std::function<bool()>& have_ended) override { rank().trim(have_ended); }
  bool agree_on_suspend(bool can, const std::function<void()>& give_up) override {
    return alone()->agree_on_suspend(can, give_up);
  }
  void suspend() noexcept override { alone()->suspend(); }
  bool is_suspended() const noexcept override { return rank().is_suspended(); }
  void resume(const std::function<void()>& give_up) override { alone()->resume(give_up); }
  void check() const override { rank().check(); }
  void break_off(Stream stream, const std::exception& error, bool was_eager) noexcept override {
    rank().break_off(stream, error, was_eager);
  }
  bool has_broken_off() const noexcept override { return rank().has_broken_off(); }
  void abort() noexcept override { rank().abort(); }
  void fail() noexcept override { rank().fail(); }
  void fail_if_peer_lost(Stream stream) override { rank().fail_if_peer_lost(stream); }
  bool has_ended(bool knows_calls) noexcept override { return rank().has_ended(knows_calls); }
  void unmap_peers() noexcept override { rank().unmap_peers(); }

 private:
  /// Locked access to the calls, from any thread.
  struct Alone {
    std::unique_lock<std::mutex> lock;
    GpuCalls* calls;
    GpuCalls* operator->() const { return calls; }
  };
  Alone alone() const { return {std::unique_lock(guard_), calls_.get()}; }
  cuda::CudaRank& rank() const { return calls_->rank(); }

  cuda::Primary primary_;
  mutable std::mutex guard_;
  std::unique_ptr<GpuCalls> calls_;
};

class CudaStaging : public ExchangeStaging {
 public:
  CudaStaging(int device, int ranks, std::uint64_t record_bytes)
      : primary_(device), record_bytes_(record_bytes) {
    const cuda::RelaxedCaptureMode relaxed;
    const cuda::Current current(primary_.context());
    PLAIT_CUDA_CALL(memory_alloc, &input_, record_bytes * (static_cast<std::uint64_t>(ranks) + 1));
    output_ = input_ + record_bytes;
    PLAIT_CUDA_CALL(stream_create, &stream_, cuda::kStreamNonBlocking, 0);
    buffer_ = buffer_at(input_);
  }
  bool is_alive() const noexcept override { return buffer_ != 0 && buffer_at(input_) == buffer_; }
  ~CudaStaging() override {
    const cuda::RelaxedCaptureMode relaxed;
    if (cuda::api().context_push(primary_.context()) != cuda::kSuccess) return;
    cuda::api().stream_destroy(stream_);
    cuda::api().memory_free(input_);
    cuda::Context popped = nullptr;
    cuda::api().context_pop(&popped);
  }
  std::string swap(const std::string& mine, int ranks, const Gather& gather,
                   const GiveUp& give_up) override {
    const cuda::Current current(primary_.context());
    // On the private stream, since another thread's capture may forbid the legacy stream.
    PLAIT_CUDA_CALL(memory_copy_async, input_, reinterpret_cast<cuda::DevicePointer>(mine.data()),
                    mine.size(), stream_);
    gather(reinterpret_cast<const void*>(input_), reinterpret_cast<void*>(output_), stream_);
    cuda::Result result = cuda::kNotReady;
    while ((result = cuda::api().stream_query(stream_)) == cuda::kNotReady) {
      give_up();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    cuda::require(result, "cuStreamQuery");
    std::string all(record_bytes_ * static_cast<std::uint64_t>(ranks), '\0');
    PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<cuda::DevicePointer>(all.data()), output_,
                    all.size(), stream_);
    PLAIT_CUDA_CALL(stream_synchronize, stream_);
    return all;
  }

 private:
  /// Returns the number that no other allocation of the process has had; 0 = no allocation.
  static std::uint64_t buffer_at(cuda::DevicePointer address) noexcept {
    std::uint64_t number = 0;
    int attributes[] = {cuda::kPointerBufferId};
    void* values[] = {&number};
    const bool is_known =
        cuda::api().pointer_attributes(1, attributes, values, address) == cuda::kSuccess;
    return is_known ? number : 0;
  }

  cuda::Primary primary_;
  std::uint64_t record_bytes_;
  std::uint64_t buffer_ = 0;  // Of input_.
  cuda::DevicePointer input_ = 0;
  cuda::DevicePointer output_ = 0;
  cuda::Stream stream_ = nullptr;
};

class CudaPlatform : public Platform {
 public:
  bool has_kernels() const override { return cuda::device_code().why_none.empty(); }
  int current_device() override {
    cuda::Device device = -1;
    return cuda::api().context_device(&device) == cuda::kSuccess ? device : -1;
  }
  void enter_thread(int device) override {
    // Relaxed mode: this thread's calls are allowed during captures of other threads and do not
    // break the captures.
    int mode = cuda::kCaptureRelaxed;
    PLAIT_CUDA_CALL(exchange_capture_mode, &mode);
    cuda::Device found = 0;
    cuda::Context context = nullptr;
    PLAIT_CUDA_CALL(device_get, &found, device);
    PLAIT_CUDA_CALL(primary_retain, &context, found);  // the program retains the context too
    PLAIT_CUDA_CALL(context_push, context);
    cuda::api().primary_release(found);
  }
  RankLocation location(int device) override {
    return {host_name(), cuda::uuid_of(device), cuda::gpu_kind(device)};
  }
  cuda::Distance distance(const std::string& device, const std::string& other) override {
    return cuda::distance_between(device, other);
  }
  bool addresses(const std::string& device, const std::string& other) override {
    return cuda::address_each_other(device, other);
  }
  std::unique_ptr<ExchangeStaging> staging(int device, int ranks,
                                           std::uint64_t record_bytes) override {
    return std::make_unique<CudaStaging>(device, ranks, record_bytes);
  }
  std::unique_ptr<CommEngine> engine(const GpuCallsOptions& options, const Exchange& exchange,
                                     const BenchSource& source) override {
    return std::make_unique<CudaEngine>(options, exchange, source);
  }
  std::unique_ptr<Marker> marker(int device) override {
    return std::make_unique<cuda::EventMarker>(device);
  }
  std::unique_ptr<SideStream> side_stream(int device) override { return cuda_side_stream(device); }
};

}  // namespace

Platform& platform() {
  static auto* const only = new CudaPlatform;
  return *only;
}

}  // namespace plait::nccl
