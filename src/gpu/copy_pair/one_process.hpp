// Executes a proved plan of copies between GPUs of a process on copy engines, with a stream per
// lane and an event per signal. A call forks from the callers' streams, joins them again, and never
// blocks the host. Each pair of GPUs has a separate OneProcess, which owns scratch and a pinned
// ring.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "driver/cuda/api.hpp"
#include "gpu/copy_pair/copy_steps.hpp"

namespace plait::cuda {

/// A rank's buffers in a call, and the caller's stream that orders the call.
struct CopyBuffers {
  const void* input = nullptr;
  void* output = nullptr;
  Stream stream = nullptr;
};

/// Duration of each path of a call from the common start of both; maximum over the senders.
struct PathTimes {
  double direct_ns = 0.0;
  double host_ns = 0.0;
};

/// A plan with its streams and events; valid for the OneProcess that bound the plan.
struct BoundCopies {
  /// A rank that sends by a direct path and through host memory at once: the lanes that read the
  /// input.
  struct Sender {
    std::size_t direct_lane = 0;
    std::size_t host_lane = 0;
  };
  CopySteps steps;
  std::vector<int> ordinals;  ///< CUDA ordinal of each place: ranks, then relay GPUs.
  std::size_t ranks = 0;
  /// By lane: index into the streams of the lane's GPU; unused if the lane runs on the caller's
  /// stream.
  std::vector<std::size_t> streams;
  /// Index into the GPU's events: an entry per event of `steps`, then an entry per lane for the
  /// lane's end.
  std::vector<std::size_t> events;
  std::vector<Sender> senders;  ///< Empty unless every sender has both paths.
  bool batches = false;         ///< Copies over links go in batches, a driver call each.
};

class OneProcess {
 public:
  explicit OneProcess(const Api& driver = cuda::api());
  ~OneProcess();
  OneProcess(const OneProcess&) = delete;
  OneProcess& operator=(const OneProcess&) = delete;

  /// Creates the streams, events, scratch and ring that the plan needs; may wait for the previous
  /// call. `ordinals`: a GPU per place.
  BoundCopies bind(const Plan& plan, const std::vector<int>& ordinals);
  /// Enqueues the call behind the work on all ranks' streams and before later work. Calls of a
  /// OneProcess run in order. Error(unsupported) if a stream is being captured. is_timed: records
  /// events for times(). One call is timed at a time; further calls run untimed until the times are
  /// read.
  void run(const BoundCopies& bound, const std::vector<CopyBuffers>& ranks, bool is_timed = false);
  /// Returns the times of the last timed call, once, after the call's end; otherwise nothing. Never
  /// waits.
  std::optional<PathTimes> times();
  /// Error(unsupported) if the GPU's stream is being captured, because bind() would break the
  /// capture.
  void refuse_capture(int ordinal, Stream stream);
  /// Copies inside a GPU, with the same stream order.
  void copy_within(int ordinal, void* dst, const void* src, std::uint64_t bytes, Stream dst_stream,
                   Stream src_stream);

 private:
  struct GpuResources {
    Device device = 0;
    Context context = nullptr;
    std::vector<Stream> streams;
    std::vector<Event> events;  // The first two mark a call's begin and end.
    std::vector<Event> times;   // Start of both paths, end of the direct path, end of the host
                                // path.
    DevicePointer scratch = 0;
    std::uint64_t scratch_bytes = 0;
    void* ring = nullptr;
    std::uint64_t ring_bytes = 0;
  };
  class Current;
  class CopyCall;
  void check(Result result, const char* call) const;
  GpuResources& gpu(int ordinal);
  void enable_peer_access(const std::vector<int>& ordinals);
  void provide(GpuResources& gpu, std::size_t streams, std::size_t events, bool times);
  void lend_scratch(GpuResources& gpu, std::uint64_t bytes);
  void lend_ring(GpuResources& gpu, std::uint64_t bytes);
  void finish_last();
  void refuse_capture(Stream stream) const;
  void abandon() noexcept;
  void close() noexcept;

  const Api& driver_;
  std::mutex guard_;
  std::map<int, GpuResources> gpus_;          // By ordinal.
  std::set<std::pair<int, int>> peer_pairs_;  // Pairs with peer access requested.
  // GPUs with an event at the end of the last call that used scratch or ring.
  std::vector<int> last_;
  std::vector<int> timed_;  // GPUs with unread times.
};

}  // namespace plait::cuda
