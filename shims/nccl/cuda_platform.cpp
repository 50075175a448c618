// The platform of production: CudaRank as the engine, device buffers for the exchange, the driver's
// GPU numbers as places. Everything goes through the driver that the program itself uses.
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/recent.hpp"
#include "base/text.hpp"
#include "exec/cuda/choices.hpp"
#include "exec/cuda/cuda_rank.hpp"
#include "exec/cuda/device/event_marker.hpp"
#include "exec/cuda/device/gpu_kind.hpp"
#include "exec/cuda/select.hpp"
#include "plait/error.hpp"
#include "shims/nccl/engine.hpp"
#include "shims/nccl/machine_table.hpp"

namespace plait::nccl {
namespace {

cuda::Stream driver_stream(Stream stream) { return static_cast<cuda::Stream>(stream); }

/// The primary context of a device, held while this lives.
class Primary {
 public:
  explicit Primary(int ordinal) {
    PLAIT_CUDA_CALL(device_get, &device_, ordinal);
    PLAIT_CUDA_CALL(primary_retain, &context_, device_);
  }
  ~Primary() { cuda::api().primary_release(device_); }
  Primary(const Primary&) = delete;
  Primary& operator=(const Primary&) = delete;
  cuda::Context context() const { return context_; }

 private:
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
};

bool capturing(Stream stream) {
  int status = cuda::kCaptureNone;
  return cuda::api().stream_is_capturing(driver_stream(stream), &status) != cuda::kSuccess ||
         status != cuda::kCaptureNone;
}

class CudaEngine : public Engine {
 public:
  CudaEngine(const EngineOptions& options, const Exchange& exchange)
      : primary_(options.device), bitwise_(options.bitwise) {
    cuda::TuningTable table = machine_table(options, exchange);
    require_measured(table, options);
    const bool as_measured = cuda::is_measured(options.gpus);
    cuda::CudaRankOptions wanted;
    wanted.device = options.device;
    wanted.rank = options.rank;
    wanted.ranks = options.ranks;
    wanted.wait_s = options.wait_s;
    wanted.most_blocks = options.most_blocks;
    // Applications compute beside large calls, and have several communicators.
    wanted.beside_computing = options.most_blocks == 0;
    wanted.messages = options.bitwise ||
                      (as_measured && cuda::messages_beat_nccl(options.ranks, options.most_blocks));
    wanted.orders_calls = false;  // StreamOrder does, NCCL's calls among them
    wanted.memory.budget_bytes = options.memory_bytes;
    wanted.memory.floats_only = !options.bitwise;
    wanted.growth = options.growth;
    rank_ = std::make_unique<cuda::CudaRank>(wanted, exchange);
    first_ = std::make_unique<cuda::Selector>(rank_->first_group(), table, as_measured);
    whole_ = std::make_unique<cuda::Selector>(rank_->whole_group(), std::move(table), as_measured);
  }
  bool takes(const Request& request) const override {
    const std::lock_guard<std::mutex> hold(guard_);
    return call_of(request).choice.has_value();
  }
  bool wants_room(const Request& request) const override {
    const std::lock_guard<std::mutex> hold(guard_);
    return rank_->grows() && call_of(request).room == Room::whole;
  }
  bool has_room(Stream stream, bool in_group) override {
    const std::lock_guard<std::mutex> hold(guard_);
    return rank_->has_room(capturing(stream) ? cuda::RoomCall::captured
                           : in_group        ? cuda::RoomCall::grouped
                                             : cuda::RoomCall::alone);
  }
  void forget_call() noexcept override {
    const std::lock_guard<std::mutex> hold(guard_);
    rank_->forget_call();
  }
  int enqueue(const Request& request, const void* input, void* output, Stream stream) override {
    const std::lock_guard<std::mutex> hold(guard_);
    Call& call = call_of(request);
    if (call.ready == nullptr)
      call.ready = rank_->prepare(*call.choice->engine, request, call.choice->tuning, call.room);
    rank_->run(*call.ready, request, {input, output, {}}, driver_stream(stream));
    return call.by;
  }
  std::string how(const Request& request) const override {
    const std::lock_guard<std::mutex> hold(guard_);
    const std::string all = selector_of(call_of(request).room).explain(request);
    return all.substr(0, all.find('\n'));  // its first line is the choice
  }
  bool takes_messages() const override { return rank_->takes_messages(); }
  void messages(const std::vector<Message>& messages, Stream stream) override {
    const std::lock_guard<std::mutex> hold(guard_);
    rank_->messages(messages, driver_stream(stream));
  }
  void check() const override { rank_->check(); }
  void abort() noexcept override { rank_->abort(); }
  void fail() noexcept override { rank_->fail(); }
  void heed(Stream stream) override { rank_->heed(driver_stream(stream)); }
  bool has_ended(bool knows_calls) noexcept override { return rank_->has_ended(knows_calls); }
  void unmap_peers() noexcept override { rank_->unmap_peers(); }

 private:
  using Room = cuda::CudaRank::Room;
  struct Call {
    std::optional<cuda::Choice> choice;  ///< none = NCCL's
    Room room = Room::whole;
    std::unique_ptr<cuda::Ready> ready;  ///< null = not made ready yet
    int by = kByNccl;
  };
  using Key = std::tuple<int, std::uint64_t, int, int, int, int>;

  const cuda::Selector& selector_of(Room room) const {
    return room == Room::first ? *first_ : *whole_;
  }
  Call& call_of(const Request& request) const {
    const Key key{
        static_cast<int>(request.collective), request.count, static_cast<int>(request.type),
        static_cast<int>(request.op),         request.root,  request.peer};
    if (Call* const known = calls_.find(key)) return *known;
    Call call;
    if (rank_->grows() && !wants_later_room(*first_, *whole_, request)) call.room = Room::first;
    const cuda::Selector& selector = selector_of(call.room);
    if (request.count != 0)
      call.choice = bitwise_ ? selector.best(request) : selector.no_slower_than_nccl(request);
    if (call.choice) {
      const std::vector<const cuda::Engine*>& all = cuda::engines();
      const auto engine = std::find(all.begin(), all.end(), call.choice->engine);
      call.by = kByEngine + static_cast<int>(engine - all.begin());
    }
    return calls_.add(key, std::move(call), [](const Call&) {});
  }

  Primary primary_;
  const bool bitwise_;
  std::unique_ptr<cuda::CudaRank> rank_;
  std::unique_ptr<const cuda::Selector> first_, whole_;  ///< by the room that a call goes in
  mutable std::mutex guard_;                             // of all below
  mutable Recent<Key, Call> calls_{4096};
};

class CudaStaging : public Staging {
 public:
  CudaStaging(int device, int ranks, std::uint64_t card_bytes)
      : primary_(device), card_bytes_(card_bytes) {
    const cuda::BesideCaptures beside;
    const cuda::Current current(primary_.context());
    PLAIT_CUDA_CALL(memory_alloc, &input_, card_bytes * (static_cast<std::uint64_t>(ranks) + 1));
    output_ = input_ + card_bytes;
    PLAIT_CUDA_CALL(stream_create, &stream_, cuda::kStreamNonBlocking, 0);
  }
  ~CudaStaging() override {
    const cuda::BesideCaptures beside;
    if (cuda::api().context_push(primary_.context()) != cuda::kSuccess) return;
    cuda::api().stream_destroy(stream_);
    cuda::api().memory_free(input_);
    cuda::Context popped = nullptr;
    cuda::api().context_pop(&popped);
  }
  std::string swap(const std::string& mine, int ranks, const Gather& gather,
                   const GiveUp& give_up) override {
    const cuda::Current current(primary_.context());
    // On the private stream: the legacy one may be forbidden while somebody captures.
    PLAIT_CUDA_CALL(memory_copy_async, input_, reinterpret_cast<cuda::DevicePointer>(mine.data()),
                    mine.size(), stream_);
    gather(reinterpret_cast<const void*>(input_), reinterpret_cast<void*>(output_), stream_);
    cuda::Result result = cuda::kNotReady;
    while ((result = cuda::api().stream_query(stream_)) == cuda::kNotReady) {
      give_up();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    cuda::require(result, "cuStreamQuery");
    std::string all(card_bytes_ * static_cast<std::uint64_t>(ranks), '\0');
    PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<cuda::DevicePointer>(all.data()), output_,
                    all.size(), stream_);
    PLAIT_CUDA_CALL(stream_synchronize, stream_);
    return all;
  }

 private:
  Primary primary_;
  std::uint64_t card_bytes_;
  cuda::DevicePointer input_ = 0;
  cuda::DevicePointer output_ = 0;
  cuda::Stream stream_ = nullptr;
};

class CudaMarker : public Marker {
 public:
  explicit CudaMarker(int device) : primary_(device) {
    const cuda::Current current(primary_.context());
    marker_.open();
  }
  ~CudaMarker() override { marker_.close(); }
  cuda::StreamPlace place(Stream stream) override {
    const cuda::Current current(primary_.context());
    return marker_.place(driver_stream(stream));
  }
  void record(Stream stream) override {
    const cuda::Current current(primary_.context());
    marker_.record(driver_stream(stream));
  }
  void wait(Stream stream) override {
    const cuda::Current current(primary_.context());
    marker_.wait(driver_stream(stream));
  }
  void wait_at_replay(Stream stream) override {
    const cuda::Current current(primary_.context());
    marker_.wait_at_replay(driver_stream(stream));
  }
  void go_behind(Stream stream, const cuda::CapturedCalls& calls) override {
    const cuda::Current current(primary_.context());
    marker_.go_behind(driver_stream(stream), calls);
  }
  void end(Stream stream, cuda::CapturedCalls& calls, bool records) override {
    const cuda::Current current(primary_.context());
    marker_.end(driver_stream(stream), calls, records);
  }
  bool is_ahead() const noexcept override { return marker_.is_ahead(); }

 private:
  Primary primary_;
  cuda::EventMarker marker_{cuda::api()};
};

class CudaSideStream : public SideStream {
 public:
  explicit CudaSideStream(int device) : primary_(device) {
    const cuda::Current current(primary_.context());
    PLAIT_CUDA_CALL(stream_create, &side_, cuda::kStreamNonBlocking, 0);
    PLAIT_CUDA_CALL(event_create, &mark_, cuda::kEventDisableTiming);
  }
  ~CudaSideStream() override {
    cuda::api().stream_destroy(side_);
    cuda::api().event_destroy(mark_);
  }
  Stream stream() override { return side_; }
  void fork(Stream main) override { order(driver_stream(main), side_); }
  void join(Stream main) override { order(side_, driver_stream(main)); }

 private:
  void order(cuda::Stream first, cuda::Stream then) {
    const cuda::Current current(primary_.context());
    PLAIT_CUDA_CALL(event_record, mark_, first);
    PLAIT_CUDA_CALL(stream_wait_event, then, mark_, 0);
  }
  Primary primary_;
  cuda::Stream side_ = nullptr;
  cuda::Event mark_ = nullptr;
};

class CudaTimer : public Timer {
 public:
  explicit CudaTimer(Stream stream) {
    PLAIT_CUDA_CALL(event_create, &begin_, 0);
    PLAIT_CUDA_CALL(event_create, &end_, 0);
    PLAIT_CUDA_CALL(event_record, begin_, driver_stream(stream));
  }
  ~CudaTimer() override {
    cuda::api().event_destroy(begin_);
    cuda::api().event_destroy(end_);
  }
  void stop(Stream stream) override { cuda::api().event_record(end_, driver_stream(stream)); }
  float elapsed_ms() override {
    float ms = -1;
    return cuda::api().event_elapsed(&ms, begin_, end_) == cuda::kSuccess ? ms : -1;
  }

 private:
  cuda::Event begin_ = nullptr;
  cuda::Event end_ = nullptr;
};

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The same for all processes that can hand device memory to each other: one boot of one machine,
/// one PID namespace.
std::string host_name() {
  char link[128] = {};
  if (::readlink("/proc/self/ns/pid", link, sizeof link - 1) < 0) link[0] = '?';
  return text(first_line("/proc/sys/kernel/random/boot_id"), ' ', link);
}

class CudaPlatform : public Platform {
 public:
  bool has_kernels() const override { return cuda::has_device_code(); }
  int current_device() override {
    cuda::Device device = -1;
    return cuda::api().context_device(&device) == cuda::kSuccess ? device : -1;
  }
  void enter_thread(int device) override {
    // In this thread, what a capture forbids is allowed and breaks no capture of another thread.
    int mode = cuda::kCaptureRelaxed;
    PLAIT_CUDA_CALL(exchange_capture_mode, &mode);
    cuda::Device found = 0;
    cuda::Context context = nullptr;
    PLAIT_CUDA_CALL(device_get, &found, device);
    PLAIT_CUDA_CALL(primary_retain, &context, found);  // the program holds it anyway
    PLAIT_CUDA_CALL(context_push, context);
    cuda::api().primary_release(found);
  }
  Place place(int device) override {
    return {host_name(), cuda::uuid_of(device), cuda::gpu_kind(device)};
  }
  cuda::Distance distance(const std::string& device, const std::string& other) override {
    return cuda::distance_between(device, other);
  }
  std::unique_ptr<Staging> staging(int device, int ranks, std::uint64_t card_bytes) override {
    return std::make_unique<CudaStaging>(device, ranks, card_bytes);
  }
  std::unique_ptr<Engine> engine(const EngineOptions& options, const Exchange& exchange) override {
    return std::make_unique<CudaEngine>(options, exchange);
  }
  std::unique_ptr<Marker> marker(int device) override {
    return std::make_unique<CudaMarker>(device);
  }
  std::unique_ptr<SideStream> side_stream(int device) override {
    return std::make_unique<CudaSideStream>(device);
  }
  std::unique_ptr<Timer> timer(Stream stream) override {
    if (capturing(stream)) return nullptr;
    return std::make_unique<CudaTimer>(stream);
  }
};

}  // namespace

Platform& platform() {
  static auto* const only = new CudaPlatform;
  return *only;
}

}  // namespace plait::nccl
