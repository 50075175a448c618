// The GPU side of a communicator of plait's own: ranks that have met over sockets -> calls on their
// GPUs. A thread of its own watches the other ranks meanwhile, since no call of ours waits for
// them.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/gpu_calls.hpp"
#include "comm/setup.hpp"

namespace plait {

class GpuSide {
 public:
  /// All ranks together; null on all where the options ask for no device, or leave it to the
  /// launcher and some rank has none, or none that works: `why_not` says so. Throws AgreedError on
  /// all ranks alike.
  static std::unique_ptr<GpuSide> create(const CommunicatorOptions& options, Joined& joined,
                                         const std::function<void()>& check, std::string& why_not);
  /// What the others may still write into is freed when they are through: now, where that takes no
  /// longer than a moment, or later by a thread (base/departures.hpp).
  ~GpuSide();
  /// Before several are destroyed: own work is awaited for a moment from now on, then all ranks are
  /// told that this one is through; so their waits do not add up.
  void begin_closing();
  void end_work();
  GpuSide(const GpuSide&) = delete;
  GpuSide& operator=(const GpuSide&) = delete;

  int ordinal() const { return calls_->ordinal(); }
  const Topology& topology() const { return calls_->group().topology; }
  /// As Communicator::enqueue.
  void enqueue(const Request& request, const void* input, void* output, void* stream,
               const CallOptions& options);
  /// As Communicator::check.
  void check();
  /// Kernels that wait give up. Any thread.
  void abort() noexcept;
  GpuCalls& calls() const { return *calls_; }

 private:
  struct Remains;
  GpuSide(const CommunicatorOptions& options, Joined& joined, const Patience& patience);
  void set_up(const cuda::Exchange& exchange);
  GpuCallsOptions calls_options(const Env& env) const;
  std::optional<Error> cause() const;
  void watch();
  void fail(const Error& error);
  bool look_at_peers(const std::vector<short>& events);
  void stop_watching();
  void leave();

  CommunicatorOptions options_;
  Joined& joined_;
  const pid_t owner_;
  std::unique_ptr<GpuCalls> calls_;
  mutable std::mutex guard_;  ///< of cause_
  std::optional<Error> cause_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> fails_ns_{0};  ///< another rank has aborted: what waits fails then
  std::int64_t closed_ns_ = 0;             ///< when closing: own work is awaited until then
  bool has_ended_ = false;                 ///< this rank's work, or it was waited for in vain
  std::vector<Peer> peers_;
  Fd wake_;
  std::unique_ptr<std::thread> watcher_;
};

}  // namespace plait
