// What stands below the drop-in: one engine a communicator, made by a platform. Production links
// the CUDA one; tests without a GPU link one over host memory.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/gpu/gpu_calls.hpp"
#include "comm/nccl/abi.hpp"
#include "comm/nccl/side_stream.hpp"
#include "exec/cuda/device/direct_access.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait::nccl {

using cuda::Exchange;
using cuda::Marker;
using cuda::MessageEnd;  ///< a send or a receive

/// One rank of one communicator.
class CommEngine {
 public:
  virtual ~CommEngine() = default;
  /// The same answer on all ranks, from the request alone.
  virtual bool takes(const Request& request) const = 0;
  /// True of a request that wants more room than there is from the first call on.
  virtual bool wants_large_arena(const Request&) const { return false; }
  /// Of such a request, which the program asks for on `stream`: false where that room is not there
  /// yet on all ranks, so that the call is NCCL's. The same answer on all ranks, which ask once for
  /// each such call, in the same order. The room is begun, but in a capture, and waited for a
  /// moment, but in_group.
  virtual bool reserve_large_arena(Stream, bool) { return true; }
  /// The call asked about last is not made after all.
  virtual void cancel_reservation() noexcept {}
  /// In stream order; never waits for peers or the stream on the host. Throws Error. Returns who
  /// did it: kByPlait, or kByEngine and the engine's place in engines.def.
  virtual int enqueue(const Request& request, const void* input, void* output, Stream stream) = 0;
  /// For people: how it does a request that it takes; may be empty.
  virtual std::string how(const Request&) const { return ""; }
  /// For people: why it leaves one to NCCL.
  virtual std::string why_not(const Request&) const {
    return "the engine has no kernel for it, or NCCL is faster";
  }
  /// True where messages() serves every message: the same answer on all ranks. All or none, since
  /// those of one group must move side by side whatever groups their other ends are in.
  virtual bool takes_messages() const { return false; }
  /// What one group sends and receives, in stream order; as enqueue().
  virtual void messages(const std::vector<MessageEnd>&, Stream) {
    throw Error(ErrorCode::unsupported, "this engine takes no messages");
  }
  /// Throws Error where an earlier call failed on the device.
  virtual void check() const = 0;
  /// Ends the engine after a call that failed before its last launch was on the stream: the other
  /// ranks count the call. From then on check() throws, and kernels that wait fail their stream.
  /// Does nothing during a capture, since a captured call has not run.
  virtual void break_off(Stream stream, const std::exception& error) noexcept = 0;
  virtual bool has_broken_off() const noexcept = 0;
  /// True where enqueue() itself calls NCCL, so must not happen inside one of its groups.
  virtual bool uses_nccl() const { return false; }
  /// Ends whatever waits, at once and for good, without a result and without an error of its
  /// stream: the program does not want it any more. Any thread; returns without waiting for NCCL.
  virtual void abort() noexcept = 0;
  /// True once nothing of this rank is queued or runs any more on streams of the engine's own, and
  /// where its calls' ends are not known, once the GPU has done all that it had to do.
  virtual bool has_ended(bool knows_calls) noexcept = 0;
  /// The program ends the communicator: what the engine has of NCCL goes. Once, and last of all but
  /// has_ended(), unmap_peers() and the destructor.
  virtual void end_nccl() noexcept {}
  /// Lets go of the other ranks' memory; may wait for all that runs on the GPU, as may the
  /// destructor, which frees this rank's own.
  virtual void unmap_peers() noexcept = 0;
  /// After abort(): waits until NCCL's part of it is over too, at most `wait_s`.
  virtual void await_abort(double) const noexcept {}
  /// A rank is lost: whatever waits, now or later, fails its stream at once, since no call may end
  /// as if it had a result. Any thread; returns without waiting for NCCL.
  virtual void fail() noexcept = 0;
  /// In stream order, behind what NCCL did for a call: after fail() it may have ended early, so the
  /// stream fails here. Throws Error.
  virtual void fail_if_peer_lost(Stream stream) = 0;
};

/// Memory and a private stream on a communicator's device, for the exchange over NCCL itself.
class ExchangeStaging {
 public:
  virtual ~ExchangeStaging() = default;
  using Gather = std::function<void(const void* input, void* output, Stream stream)>;
  using GiveUp = std::function<void()>;  ///< throws when waiting is pointless
  /// Copies `mine` to the device, lets `gather` enqueue, waits, returns all ranks' bytes.
  virtual std::string swap(const std::string& mine, int ranks, const Gather& gather,
                           const GiveUp& give_up) = 0;
};

/// Where a rank runs: ranks can share memory if `host` is equal and no `device` (NVML's word for
/// the GPU) occurs twice.
struct RankLocation {
  std::string host;
  std::string device;
  std::string gpu;  ///< its kind (exec/cuda/device/gpu_kind.hpp)
};

class Platform {
 public:
  virtual ~Platform() = default;
  /// False where this build can serve nothing anywhere: it was made without device code.
  virtual bool has_kernels() const = 0;
  /// CUDA ordinal of the thread's current device; -1 where it has none yet.
  virtual int current_device() = 0;
  /// Helper threads call this first, so that what they do never breaks a capture elsewhere.
  virtual void enter_thread(int device) = 0;
  virtual RankLocation location(int device) = 0;
  /// Of two GPUs of this machine, by RankLocation::device.
  virtual cuda::Distance distance(const std::string& device, const std::string& other) = 0;
  virtual std::unique_ptr<ExchangeStaging> staging(int device, int ranks,
                                                   std::uint64_t record_bytes) = 0;
  /// All ranks together.
  virtual std::unique_ptr<CommEngine> engine(const GpuCallsOptions& options,
                                             const Exchange& exchange) = 0;
  virtual std::unique_ptr<Marker> marker(int device) = 0;
  virtual std::unique_ptr<SideStream> side_stream(int device) = 0;
};

/// The one that was linked in.
Platform& platform();
/// For platforms, whose engines all know when to leave a call to NCCL: group.tuning, or
/// Error(unsupported) where nothing tells. All ranks together.
void learn_what_beats_nccl(GpuGroup& group, const GpuCallsOptions& options,
                           const Exchange& exchange);

}  // namespace plait::nccl
