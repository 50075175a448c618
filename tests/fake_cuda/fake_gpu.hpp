// Fake libcuda.so.1 for tests without a GPU. A test sets the properties of the GPU; launches are
// recorded instead of run, and the rest of the driver is emulated in host memory.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda/fake_driver.hpp"

namespace plait_test {

/// Properties of the GPU and of the device code chosen for it.
struct FakeGpu {
  const char* name = "NVIDIA H200";
  int major = 9, minor = 0;
  int multiprocessors = 132;
  int shared_bytes = 227 << 10;          ///< Limit per block.
  int multiprocessor_bytes = 228 << 10;  ///< Shared memory of a multiprocessor.
  int multiprocessor_threads = 2048;
  int made_for = 90;  ///< Architecture of the code; 0 = no code.
  char number = 0;    ///< Every byte of the UUID, if the process sees one GPU.
  /// Number of GPUs that the process sees. GPUs 0 and 1 address each other, GPUs 2 and 3 do, and so
  /// on.
  int seen = 1;
  bool maps_memory = false;  ///< Physical memory at fixed addresses, shared as files.
};

struct FakeLaunch {
  std::string kernel;
  unsigned blocks, threads, shared_bytes;
  bool is_programmatic;
  unsigned cluster;  ///< blocks of a cluster
};

/// Allocated GPU memory.
struct FakeMemory {
  std::mutex guard;
  std::map<plait::cuda::DevicePointer, std::size_t> parts;
  std::size_t bytes = 0;
  std::size_t most = ~std::size_t{0};  ///< Capacity.
};

/// State and planned answers of the fake libnccl.so.2.
struct FakeNccl {
  std::atomic<int> ids{0}, made{0}, destroyed{0}, aborted{0};
  std::atomic<int> init_result{0}, call_result{0}, async_error{0};
  std::atomic<bool> holds_init{false};   ///< Holds ncclCommInit until cleared.
  std::atomic<bool> holds_calls{false};  ///< Holds calls until the communicator is aborted.
};

/// Streams that make no progress, as behind an NCCL call that waits for a rank, and the events
/// recorded on these streams since.
struct FakeStill {
  std::atomic<bool> is_wanted{false};  ///< Applies to streams of NCCL calls.
  std::mutex guard;
  std::set<const void*> streams, events;
};

/// A recorded item of a stream, in call order: a kernel, an NCCL call, or an event's record or
/// wait.
struct FakeNote {
  std::string what;
  const void* stream;
  const void* event = nullptr;
  bool is_record = false;
};

/// Recorded items of all threads, in call order.
class FakeNotes {
 public:
  void add(FakeNote note) {
    const std::lock_guard<std::mutex> hold(guard_);
    all_.push_back(std::move(note));
  }
  void clear() {
    const std::lock_guard<std::mutex> hold(guard_);
    all_.clear();
  }
  std::vector<FakeNote> all() const {
    const std::lock_guard<std::mutex> hold(guard_);
    return all_;
  }

 private:
  mutable std::mutex guard_;
  std::vector<FakeNote> all_;
};

/// Calls that would end a capture of another thread, by the calling thread: of the legacy stream,
/// and calls that CUDA refuses during a capture in global mode, unless the caller is in relaxed
/// mode.
class FakeUnsafeCalls {
 public:
  void add(const char* function) {
    const std::lock_guard<std::mutex> hold(guard_);
    all_[std::this_thread::get_id()].insert(function);
  }
  /// Returns the functions that other threads than the caller have called.
  std::set<std::string> of_others() const {
    const std::lock_guard<std::mutex> hold(guard_);
    std::set<std::string> found;
    for (const auto& [thread, functions] : all_)
      if (thread != std::this_thread::get_id()) found.insert(functions.begin(), functions.end());
    return found;
  }

 private:
  mutable std::mutex guard_;
  std::map<std::thread::id, std::set<std::string>> all_;
};

/// Copies of a single driver call.
struct FakeBatch {
  std::vector<std::size_t> bytes;
  unsigned flags;
  int source_order;
};

/// Makes the n-th call from now on of a function of cuda::Api fail, or all calls.
class FakeRefusal {
 public:
  /// Chooses the call that fails. function: "" counts calls of all functions. n: 1 = the next call;
  /// 0 = no call.
  void of(std::string function, int n, int result = 2 /* CUDA_ERROR_OUT_OF_MEMORY */) {
    const std::lock_guard<std::mutex> hold(guard_);
    function_ = std::move(function);
    left_ = n;
    refuses_all_ = false;
    result_ = result;
  }
  /// Makes all calls of `function` fail until of() or none().
  void all_of(std::string function) {
    of(std::move(function), 1);
    const std::lock_guard<std::mutex> hold(guard_);
    refuses_all_ = true;
  }
  void none() { of("", 0); }
  /// True until the call has been refused.
  bool is_ahead() const {
    const std::lock_guard<std::mutex> hold(guard_);
    return left_ > 0;
  }
  /// Error of a refused call of `function`; 0 = the call succeeds.
  int said_to(const char* function) {
    const std::lock_guard<std::mutex> hold(guard_);
    if (left_ == 0 || (!function_.empty() && function_ != function)) return 0;
    if (!refuses_all_ && --left_ > 0) return 0;
    return result_;
  }

 private:
  mutable std::mutex guard_;
  std::string function_;
  int left_ = 0, result_ = 0;
  bool refuses_all_ = false;
};

struct FakeCuda {
  FakeGpu gpu;
  FakeRefusal refuses;
  std::atomic<int> streams{0};  ///< Existing streams.
  std::vector<FakeBatch> batches;
  FakeMemory memory;
  /// Context of the program's GPU memory; null = of a memory pool.
  std::atomic<plait::cuda::Context> owner{nullptr};
  std::atomic<int> opened{0};  ///< Memory of peers that is mapped.
  std::vector<FakeLaunch> launches;
  /// Called for every launch with kernel, blocks, threads and arguments; null = nothing is called.
  std::function<void(const std::string&, unsigned, unsigned, const void*)> on_launch;
  /// Time of a launch in ns, by kernel, which streams and graphs add up; null = 0.
  std::function<double(const std::string&)> launch_ns;
  std::vector<std::string> kernels;         ///< By handle - 1.
  std::vector<const void*> graph_launches;  ///< Instance of each launch of a graph.
  FakeNccl nccl;
  FakeStill still;
  std::atomic<bool> holds_queries{false};  ///< Holds cuEventQuery.
  std::atomic<int> held_queries{0};        ///< Held calls of cuEventQuery.
  FakeNotes notes;
  std::atomic<bool> is_capturing{false};  ///< The default stream captures.
  /// Fault that the next plait_fail_if_peer_lost reports; 0 = none.
  std::atomic<std::uint32_t> fault{0};
  int loses_from = -1;                ///< Rank whose stores into this GPU are lost; -1 = none.
  std::atomic<int> busy_looks{0};     ///< Number of stream_query() calls that return busy.
  std::atomic<int> looks{0};          ///< Number of stream_query() calls so far.
  std::atomic<int> waits_for_all{0};  ///< Host waits for all GPU work.
  FakeUnsafeCalls unsafe;             ///< Calls that would end captures of other threads.
};

/// The instance in libcuda.so.1.
extern "C" FakeCuda& fake_cuda();

}  // namespace plait_test
