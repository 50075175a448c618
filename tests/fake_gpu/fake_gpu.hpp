// A libcuda.so.1 without a GPU: what it says of its GPU is the test's choice, and launches are
// noted instead of done. Everything else is the driver played in host memory.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "conformance/fake_driver.hpp"

namespace plait_test {

/// What the driver says of a GPU and of the code that it chose for it.
struct FakeGpu {
  const char* name = "NVIDIA H200";
  int major = 9, minor = 0;
  int multiprocessors = 132;
  int shared_bytes = 227 << 10;          ///< of a block, at most
  int multiprocessor_bytes = 228 << 10;  ///< of shared memory
  int multiprocessor_threads = 2048;
  int made_for = 90;  ///< what its code was compiled for; 0 = there is none
  char number = 0;    ///< all of its UUID
};

struct FakeLaunch {
  std::string kernel;
  unsigned blocks, threads, shared_bytes;
  bool is_programmatic;
};

/// Memory of the GPU that is handed out.
struct FakeMemory {
  std::mutex guard;
  std::map<plait::cuda::DevicePointer, std::size_t> parts;
  std::size_t bytes = 0;
  std::size_t most = ~std::size_t{0};  ///< that there is
};

/// What the fake libnccl.so.2 has seen, and is to say.
struct FakeNccl {
  std::atomic<int> ids{0}, made{0}, destroyed{0}, aborted{0};
  std::atomic<int> init_result{0}, call_result{0}, async_error{0};
  std::atomic<bool> holds_init{false};   ///< making a communicator takes as long
  std::atomic<bool> holds_calls{false};  ///< a call returns when a communicator is aborted
};

/// Streams that stand still, as behind a call of NCCL's that waits for a rank, and events that
/// were recorded on them since.
struct FakeStill {
  std::atomic<bool> is_wanted{false};  ///< of streams that a call of NCCL's is put on
  std::mutex guard;
  std::set<const void*> streams, events;
};

/// Something put on a stream, in order of the calls: a kernel, a call of NCCL's, or an event's
/// record or wait.
struct FakeNote {
  std::string what;
  const void* stream;
  const void* event = nullptr;
  bool is_record = false;
};

/// In order of the calls, of all threads.
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

/// Copies of one call.
struct FakeBatch {
  std::vector<std::size_t> bytes;
  unsigned flags;
  int source_order;
};

/// Makes the driver refuse the n-th call, from now on, of one function of cuda::Api.
class FakeRefusal {
 public:
  /// function: "" counts calls of all functions. n: 1 = the next call; 0 = no call.
  void of(std::string function, int n, int result = 2 /* CUDA_ERROR_OUT_OF_MEMORY */) {
    const std::lock_guard<std::mutex> hold(guard_);
    function_ = std::move(function);
    left_ = n;
    result_ = result;
  }
  void none() { of("", 0); }
  /// True until the call has been refused.
  bool is_ahead() const {
    const std::lock_guard<std::mutex> hold(guard_);
    return left_ > 0;
  }
  /// The error of a call of `function` that is refused; 0 = the call goes on.
  int said_to(const char* function) {
    const std::lock_guard<std::mutex> hold(guard_);
    if (left_ == 0 || (!function_.empty() && function_ != function) || --left_ > 0) return 0;
    return result_;
  }

 private:
  mutable std::mutex guard_;
  std::string function_;
  int left_ = 0, result_ = 0;
};

struct FakeCuda {
  FakeGpu gpu;
  FakeRefusal refuses;
  std::atomic<int> streams{0};  ///< that there are
  std::vector<FakeBatch> batches;
  FakeMemory memory;
  std::vector<FakeLaunch> launches;
  /// Where set, of every launch: its kernel, blocks, threads and arguments.
  std::function<void(const std::string&, unsigned, unsigned, const void*)> on_launch;
  std::vector<std::string> kernels;  ///< by handle, less one
  FakeNccl nccl;
  FakeStill still;
  std::atomic<bool> holds_queries{false};  ///< the driver does not answer cuEventQuery
  std::atomic<int> held_queries{0};        ///< that wait for it
  FakeNotes notes;
  std::atomic<bool> is_capturing{false};  ///< every stream
  std::atomic<std::uint32_t> fault{
      0};  ///< not 0: the next plait_fail_if_peer_lost finds that a kernel has met this
  std::atomic<int> busy_looks{0};     ///< stream_query() says so often that a stream is at work
  std::atomic<int> waits_for_all{0};  ///< of the host, for all that the GPU does
};

/// The one in libcuda.so.1.
extern "C" FakeCuda& fake_cuda();

}  // namespace plait_test
