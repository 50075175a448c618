// Copies between the GPUs of one process, by copy engines: a proved plan's lanes as streams, its
// signals as events. Forks from and joins the callers' streams and never waits on the host; what
// scratch GPUs and the pinned ring lend is its own, so that each pair of GPUs has one of these.
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

/// What a rank brings to a call: its buffers, and the stream that comes before and after.
struct CopyBuffers {
  const void* input = nullptr;
  void* output = nullptr;
  Stream stream = nullptr;
};

/// How long a call's paths took, from where both could begin; the longest of its senders.
struct PathTimes {
  double direct_ns = 0.0;
  double host_ns = 0.0;
};

/// A plan ready to run; good for the OneProcess that made it.
struct BoundCopies {
  /// A rank that sends by host memory and another way at once: the lanes that read its input.
  struct Sender {
    std::size_t direct_lane = 0;
    std::size_t host_lane = 0;
  };
  CopySteps steps;
  std::vector<int> ordinals;  ///< CUDA ordinal of each place: the ranks, then the relay GPUs
  std::size_t ranks = 0;
  std::vector<std::size_t> streams;  ///< by lane: which of its GPU's; none for the caller's
  std::vector<std::size_t> events;   ///< by event, then by lane (its end): which of its GPU's
  std::vector<Sender> senders;       ///< empty where not every sender has both ways
  bool batches = false;              ///< copies over links go as several of one driver's call
};

class OneProcess {
 public:
  explicit OneProcess(const Api& driver = cuda::api());
  ~OneProcess();
  OneProcess(const OneProcess&) = delete;
  OneProcess& operator=(const OneProcess&) = delete;

  /// Makes streams, events, scratch and ring that the plan needs and that are not there yet; may
  /// wait for the call before. `ordinals`: of each place.
  BoundCopies bind(const Plan& plan, const std::vector<int>& ordinals);
  /// Puts the call on streams: it begins after what all ranks' streams hold, and what they get
  /// later comes after it. Calls of one OneProcess follow each other. Error(unsupported) where a
  /// stream is being captured. is_timed: its paths' ends are recorded for times(); one call at a
  /// time, so that a call asked for while another's times are not known goes without.
  void run(const BoundCopies& bound, const std::vector<CopyBuffers>& ranks, bool is_timed = false);
  /// Of the last call that was timed, once it has ended; then no more. Asks, and never waits.
  std::optional<PathTimes> times();
  /// Error(unsupported) where the GPU's stream is being captured; bind() would break the capture.
  void refuse_capture(int ordinal, Stream stream);
  /// A copy inside one GPU, in the same order of effects.
  void copy_within(int ordinal, void* dst, const void* src, std::uint64_t bytes, Stream dst_stream,
                   Stream src_stream);

 private:
  struct GpuResources {
    Device device = 0;
    Context context = nullptr;
    std::vector<Stream> streams;
    std::vector<Event> events;  // the first two: a call's begin and its end
    std::vector<Event> times;   // both ways may begin, the direct one has ended, the host's has
    DevicePointer scratch = 0;
    std::uint64_t scratch_bytes = 0;
    void* ring = nullptr;
    std::uint64_t ring_bytes = 0;
  };
  class Current;
  class CopyCall;
  void check(Result result, const char* call) const;
  GpuResources& gpu(int ordinal);
  void meet(const std::vector<int>& ordinals);
  void provide(GpuResources& gpu, std::size_t streams, std::size_t events, bool times);
  void lend_scratch(GpuResources& gpu, std::uint64_t bytes);
  void lend_ring(GpuResources& gpu, std::uint64_t bytes);
  void finish_last();
  void refuse_capture(Stream stream) const;
  void abandon() noexcept;
  void close() noexcept;

  const Api& driver_;
  std::mutex guard_;
  std::map<int, GpuResources> gpus_;   // by ordinal
  std::set<std::pair<int, int>> met_;  // pairs whose peer access was asked for
  std::vector<int> last_;              // whose end the last call that borrowed has recorded
  std::vector<int> timed_;             // whose times a call has recorded that nobody has read
};

}  // namespace plait::cuda
