// Interfaces between the drop-in and the code below it: an engine per communicator, made by a
// platform. Production links the CUDA platform (cuda_platform.cpp), tests without a GPU link a
// platform over host memory (tests/shims/host_platform.cpp).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/gpu/first_start.hpp"
#include "comm/gpu/gpu_bench.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "comm/trace/flight.hpp"
#include "comm/transport/nccl/abi.hpp"
#include "comm/transport/nccl/side_stream.hpp"
#include "gpu/device/direct_access.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait::nccl {

using cuda::Exchange;
using cuda::Marker;
using cuda::MessageEnd;  ///< a send or a receive

/// What CommEngine::reserve() has reserved.
struct ArenaReservation {
  bool is_granted = true;
  bool is_first = false;  ///< the first arena was asked for
  unsigned large_steps = 0;  ///< steps of the large arena that were asked for
};

/// A rank of a communicator.
class CommEngine {
 public:
  virtual ~CommEngine() = default;
  /// Returns whether the engine serves the request. The answer follows from the request alone, so
  /// all ranks get the same.
  virtual bool takes(const LimitedRequest& request) const = 0;
  /// Returns whether reserve() has something to do for the request: an arena is allocated at first
  /// need.
  virtual bool wants_arena(const LimitedRequest&) const { return false; }
  /// Reserves the arenas that a request on `stream` with wants_arena() needs. The call goes to NCCL
  /// unless granted: an arena is not ready on all ranks. All ranks call this function once for each
  /// such request, in the same order, and get the same answer. Starts allocations, and waits a
  /// moment for the end; not for a large arena in a capture, nor waits in a group.
  virtual ArenaReservation reserve(const LimitedRequest&, Stream, bool) { return {}; }
  /// Rolls back the last reserve(): the call was not made.
  virtual void cancel(const ArenaReservation&) noexcept {}
  /// True if a peer waits for begin_arena(). Any thread; takes no lock.
  virtual bool should_begin_arena() const noexcept { return false; }
  /// Starts the allocation of the first arena in a thread.
  virtual void begin_arena() {}
  /// Returns the reason for which the engine does not serve `sum` with each rank's input multiplied
  /// by the rank's own factor before; null = served. As takes(); the factors may differ between
  /// ranks.
  virtual const char* why_not_scaled(const LimitedRequest&) const {
    return "between nodes NCCL alone multiplies by factors";
  }
  /// enqueue() of a call without a why_not_scaled().
  virtual int enqueue_scaled(const LimitedRequest&, const cuda::ScaleFactor&, const void*, void*,
                             Stream) {
    throw Error(ErrorCode::unsupported, "this engine multiplies by no factor");
  }
  /// Enqueues the call; never waits on the host for peers or the stream. Throws Error. Returns the
  /// server of the call: kByPlait, or kByEngine plus the engine's index in engines.def.
  virtual int enqueue(const LimitedRequest& request, const void* input, void* output,
                      Stream stream) = 0;
  /// Returns text for logs on the engine's parameters for a served request; may be empty.
  virtual std::string how(const LimitedRequest&) const { return ""; }
  /// Returns text for logs: the reason for which a request goes to NCCL.
  virtual std::string why_not(const Request&) const {
    return "the engine has no kernel for it, or NCCL is faster";
  }
  /// Returns whether messages() serves all sends and receives; the same on all ranks. No message
  /// may be left to NCCL, since all messages of a group must progress together, and the peers' ends
  /// may lie in other groups.
  virtual bool takes_messages() const { return false; }
  /// Enqueues the sends and receives of a group, as enqueue() does.
  virtual void messages(const std::vector<MessageEnd>&, Stream) {
    throw Error(ErrorCode::unsupported, "this engine takes no messages");
  }
  /// Returns the memory that this rank holds, by part. Any thread; waits for nothing.
  virtual std::vector<FlightMemory> held() const { return {}; }
  /// Returns the GPU memory that the engine has, by what suspend() frees. Any thread.
  virtual GpuMemory gpu_memory() const noexcept { return {}; }
  /// True if trim() has something to do. Any thread; takes no lock.
  virtual bool wants_trim() const noexcept { return false; }
  /// Gives memory up that no call has used for PLAIT_TRIM_S. have_ended: whether all calls have
  /// ended on the GPU. The thread that watches peers.
  virtual void trim(const std::function<bool()>& have_ended) { static_cast<void>(have_ended); }
  /// Returns whether all ranks can suspend now. Every rank calls this once for each suspend, and
  /// one that cannot does not wait. give_up: as for resume().
  virtual bool agree_on_suspend(bool can, const std::function<void()>& give_up) {
    static_cast<void>(give_up);
    return can;
  }
  /// Frees memory until resume(). Called by all ranks once they have agreed, and no work of any
  /// rank runs. Later calls fail until then.
  virtual void suspend() noexcept {}
  /// True from a suspend() that has freed memory to the resume(), which waits for all ranks. The
  /// same on all ranks. A thread of the program's.
  virtual bool is_suspended() const noexcept { return false; }
  /// Brings the memory back; called by all ranks together. give_up: called while waiting for peers,
  /// and throws if waiting is pointless. Throws Error, on all ranks if on any.
  virtual void resume(const std::function<void()>& give_up) { static_cast<void>(give_up); }
  /// Throws Error if an earlier call failed on the device.
  virtual void check() const = 0;
  /// Ends the engine after a call that failed before its last launch was enqueued, since the peers
  /// count the call. From then on check() throws, and waiting kernels fail their stream. Does
  /// nothing in a capture, since a captured call has not run. was_eager: whether the call began on
  /// a stream that did not capture.
  virtual void break_off(Stream stream, const std::exception& error, bool was_eager) noexcept = 0;
  virtual bool has_broken_off() const noexcept = 0;
  /// Returns whether enqueue() calls NCCL itself and hence must not run inside an NCCL group.
  virtual bool uses_nccl() const { return false; }
  /// Ends all waits at once and for good, without a result and without failing the stream, because
  /// the program aborted. Thread-safe; does not wait for NCCL.
  virtual void abort() noexcept = 0;
  /// Returns whether no work of this rank is queued or running on the engine's own streams; if
  /// knows_calls is false, whether the GPU is idle.
  virtual bool has_ended(bool knows_calls) noexcept = 0;
  /// Releases the engine's NCCL communicators when the program ends the communicator. Called once;
  /// only has_ended(), unmap_peers() and the destructor follow.
  virtual void end_nccl() noexcept {}
  /// Unmaps the peers' memory. May wait for all work on the GPU, as may the destructor (frees this
  /// rank's memory).
  virtual void unmap_peers() noexcept = 0;
  /// After abort(): waits at most `wait_s` until NCCL's part has ended.
  virtual void await_abort(double) const noexcept {}
  /// Fails the stream of all current and later waits at once, because a rank is lost: no call may
  /// end as if it had a result. Thread-safe; does not wait for NCCL.
  virtual void fail() noexcept = 0;
  /// Enqueued behind NCCL's part of a call: fails the stream after fail(), since NCCL's part may
  /// have ended early. Throws Error.
  virtual void fail_if_peer_lost(Stream stream) = 0;
};

/// Device memory and a private stream for the exchange of set-up records over NCCL.
class ExchangeStaging {
 public:
  virtual ~ExchangeStaging() = default;
  using Gather = std::function<void(const void* input, void* output, Stream stream)>;
  using GiveUp = std::function<void()>;  ///< throws if waiting is pointless
  /// False once the program has reset the device (cudaDeviceReset), which ends memory and stream:
  /// the staging may neither be used nor destroyed.
  virtual bool is_alive() const noexcept = 0;
  /// Copies `mine` to the device, enqueues `gather`, waits, and returns all ranks' bytes.
  virtual std::string swap(const std::string& mine, int ranks, const Gather& gather,
                           const GiveUp& give_up) = 0;
};

/// Host and GPU of a rank. Ranks can share memory if `host` is equal and no `device` (UUID by NVML)
/// occurs twice.
struct RankLocation {
  std::string host;
  std::string device;
  std::string gpu;  ///< kind of the GPU (gpu/device/gpu_kind.hpp)
};

class Platform {
 public:
  virtual ~Platform() = default;
  /// Returns false if this build has no device code and hence serves nothing.
  virtual bool has_kernels() const = 0;
  /// Returns the CUDA ordinal of the thread's current device; -1 = none yet.
  virtual int current_device() = 0;
  /// Prepares a helper thread, so that its CUDA calls break no capture of another thread.
  virtual void enter_thread(int device) = 0;
  virtual RankLocation location(int device) = 0;
  /// Returns the distance of two GPUs of this machine, named by RankLocation::device.
  virtual cuda::Distance distance(const std::string& device, const std::string& other) = 0;
  /// Returns whether the driver lets one of the two address the other's memory.
  virtual bool addresses(const std::string& device, const std::string& other) = 0;
  virtual std::unique_ptr<ExchangeStaging> staging(int device, int ranks,
                                                   std::uint64_t record_bytes) = 0;
  /// Makes an engine. Collective. source: for the measurement of GPUs without a table.
  virtual std::unique_ptr<CommEngine> engine(const GpuCallsOptions& options,
                                             const Exchange& exchange,
                                             const BenchSource& source) = 0;
  virtual std::unique_ptr<Marker> marker(int device) = 0;
  virtual std::unique_ptr<SideStream> side_stream(int device) = 0;
};

/// Returns the platform that is linked in.
Platform& platform();
/// For platforms: make_with_arenas() by the platform's GPUs. With several nodes, ranks of which one
/// addresses no peer get Error(unsupported), since all nodes must make the same exchanges.
void make_with_arenas(const GpuGroup& group, const GpuCallsOptions& options,
                      const Exchange& exchange, const std::function<void(GpuGroup)>& make);
/// What a platform does while ranks learn which calls plait serves. Collective.
struct EngineProbes {
  std::function<std::unique_ptr<CallBench>()> bench;  ///< as FirstStart::bench
  /// Checks the paths between the GPUs, and leaves nothing. Throws NoDirectAccess if one is broken.
  std::function<void()> prove_paths;
  double budget_s = kFirstStartS;
};
/// For platforms: fills group.tuning. By this table engines decide when to forward a call to NCCL.
/// Without a table, calls are measured on a bench. Throws Error(unsupported) if there is no table
/// then, unless paths are broken on which NCCL may hang: paths are checked before ranks are left to
/// NCCL. Collective.
void learn_what_beats_nccl(GpuGroup& group, const GpuCallsOptions& options,
                           const Exchange& exchange, const EngineProbes& probes);

}  // namespace plait::nccl
