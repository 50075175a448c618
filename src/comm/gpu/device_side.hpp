// Device side of a communicator: calls on GPU memory. NoDevice stands for a communicator without
// GPUs, GpuSide for the GPUs of a node, MultinodeDevice and FarPairDevice (comm/multinode) for GPUs
// of several nodes.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "comm/liveness/peer_watch.hpp"
#include "comm/node/host_side.hpp"
#include "plait/communicator.hpp"
#include "plait/rms_norm.hpp"

namespace plait {

class DeviceSide {
 public:
  /// ordinal: CUDA ordinal of this rank's GPU, or kNoDevice.
  explicit DeviceSide(int ordinal) : ordinal_(ordinal) {}
  virtual ~DeviceSide() = default;
  int ordinal() const { return ordinal_; }
  /// Like Communicator::enqueue and check.
  virtual void enqueue(const Request& request, const void* input, void* output, void* stream,
                       const CallOptions& options) = 0;
  /// Like Communicator::enqueue_all_reduce_rms_norm. Error(unsupported) over several nodes.
  virtual void enqueue(const RmsNorm& norm, const RmsNormBuffers& buffers, void* stream,
                       const CallOptions& options);
  virtual void check() = 0;
  /// Throws Error(no_device) without GPUs, Error(unsupported) over several nodes.
  virtual void require_suspendable() const;
  /// Waits for this GPU's work. Throws the error of an earlier call.
  virtual void finish_work() const {}
  /// Like Communicator::suspend and resume, once no work of any rank runs. All ranks together.
  virtual void suspend() {}
  virtual void resume() {}
  virtual GpuMemory gpu_memory() const { return {}; }
  /// Throws Error(no_device) without GPUs.
  virtual void require() const {}
  /// Topology of the GPUs; `host` without GPUs.
  virtual const Topology& topology_or(const Topology& host) const { return host; }
  /// Like Communicator::tuning_file.
  virtual std::string tuning_file(const std::string&) const { return {}; }
  virtual bool on_device(const void*) const { return false; }
  virtual std::string explain(const Request&) { return {}; }
  virtual void add_to(Counters&) const {}
  /// Makes waiting kernels give up. Any thread.
  virtual void abort() noexcept {}
  /// Ends this rank's work before the communicator closes. begin_closing() starts the time limit,
  /// so that the waits of several communicators do not add up.
  virtual void begin_closing() {}
  virtual void end_work() {}
  /// Liveness pages of the peers; null = none.
  virtual std::shared_ptr<const WatchedPeers> peers() const { return nullptr; }
  /// Gives the pair a part of the device memory, and the calling thread a relaxed capture mode, so
  /// that a capture elsewhere in the process is not disturbed.
  virtual void lend_to(PairOf&) const {}
  /// Makes the device side of a pair with a rank of another node. host: the pair's host side.
  virtual std::unique_ptr<DeviceSide> far_pair(int peer, const HostSide& host);

 protected:
  int ordinal_;
};

class NoDevice : public DeviceSide {
 public:
  /// why: for messages; empty = no GPU was asked for.
  explicit NoDevice(std::string why) : DeviceSide(kNoDevice), why_(std::move(why)) {}
  void enqueue(const Request&, const void*, void*, void*, const CallOptions&) override;
  void enqueue(const RmsNorm&, const RmsNormBuffers&, void*, const CallOptions&) override;
  void check() override;
  void require_suspendable() const override { require(); }
  void require() const override;
  std::unique_ptr<DeviceSide> far_pair(int peer, const HostSide& host) override;

 private:
  const std::string why_;
};

/// The device side of a communicator, which one call may replace while other threads use the former
/// side. The former side lives as long as this object.
class ReplaceableDevice {
 public:
  explicit ReplaceableDevice(std::unique_ptr<DeviceSide> first)
      : first_(std::move(first)), now_(first_.get()) {}
  DeviceSide* get() const { return now_.load(); }
  DeviceSide* operator->() const { return get(); }
  /// Called at most once, after which every thread gets `next`.
  void replace(std::unique_ptr<DeviceSide> next) {
    next_ = std::move(next);
    now_.store(next_.get());
  }
  void reset() {
    next_.reset();
    first_.reset();
  }

 private:
  std::unique_ptr<DeviceSide> first_, next_;
  std::atomic<DeviceSide*> now_;
};

}  // namespace plait
