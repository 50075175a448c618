// Copies between GPUs of one process by copy engines: runs a proved plan with a stream per lane and
// an event per signal. Forks from the callers' streams, joins them, and never waits on the host.
// Scratch and the pinned ring belong to the object, so each pair of GPUs has one.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "driver/cuda/api.hpp"
#include "exec/cuda/one_process/copy_steps.hpp"

namespace plait::cuda {

/// A rank's buffers in a call, and the stream before and after.
struct CopyBuffers {
  const void* input = nullptr;
  void* output = nullptr;
  Stream stream = nullptr;
};

/// Times of a call's paths, from the start of both; the longest of all senders.
struct PathTimes {
  double direct_ns = 0.0;
  double host_ns = 0.0;
};

/// A plan ready to run; valid for the OneProcess that made it.
struct BoundCopies {
  /// A rank that sends by a direct path and through host memory at once: the lanes that read its
  /// input.
  struct Sender {
    std::size_t direct_lane = 0;
    std::size_t host_lane = 0;
  };
  CopySteps steps;
  std::vector<int> ordinals;  ///< CUDA ordinal of each place: ranks, then relay GPUs.
  std::size_t ranks = 0;
  /// By lane: index of its GPU's stream; unused for the caller's.
  std::vector<std::size_t> streams;
  std::vector<std::size_t> events;  ///< By event, then by lane (its end): index of its GPU's event.
  std::vector<Sender> senders;      ///< Empty unless every sender has both paths.
  bool batches = false;             ///< Copies over links go in batches, one driver call each.
};

class OneProcess {
 public:
  explicit OneProcess(const Api& driver = cuda::api());
  ~OneProcess();
  OneProcess(const OneProcess&) = delete;
  OneProcess& operator=(const OneProcess&) = delete;

  /// Creates the streams, events, scratch and ring that the plan needs; may wait for the previous
  /// call. `ordinals`: one per place.
  BoundCopies bind(const Plan& plan, const std::vector<int>& ordinals);
  /// Enqueues the call behind the work on all ranks' streams and before their later work. Calls of
  /// one OneProcess run in order. Error(unsupported) if a stream is being captured. is_timed:
  /// records events for times(). One call is timed at a time; further calls run untimed until its
  /// times are read.
  void run(const BoundCopies& bound, const std::vector<CopyBuffers>& ranks, bool is_timed = false);
  /// Times of the last timed call once it has ended; then none until the next. Never waits.
  std::optional<PathTimes> times();
  /// Error(unsupported) if the GPU's stream is being captured, because bind() would break the
  /// capture.
  void refuse_capture(int ordinal, Stream stream);
  /// Copies inside one GPU, with the same stream order.
  void copy_within(int ordinal, void* dst, const void* src, std::uint64_t bytes, Stream dst_stream,
                   Stream src_stream);

 private:
  struct GpuResources {
    Device device = 0;
    Context context = nullptr;
    std::vector<Stream> streams;
    std::vector<Event> events;  // The first two mark a call's begin and end.
    std::vector<Event> times;   // Start of both paths, end of the direct one, end of the host path.
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
  // GPUs whose events mark the end of the last call that used shared buffers.
  std::vector<int> last_;
  std::vector<int> timed_;  // GPUs with unread times.
};

}  // namespace plait::cuda
