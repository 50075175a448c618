// Device sides over several nodes: plait's engines in each node, NCCL between nodes.
#pragma once
#include <memory>
#include <string>

#include "comm/gpu/gpu_side.hpp"
#include "comm/multinode/gpu_multinode.hpp"
#include "comm/multinode/multinode_host_side.hpp"

namespace plait {

class MultinodeDevice : public DeviceSide {
 public:
  /// Makes the GPU side in each node, then sets up NCCL between nodes. Called by all ranks of all
  /// nodes together: all get GPUs, or all get NoDevice. If only the launcher chose GPUs, a failure
  /// leaves the communicator without GPUs.
  static std::unique_ptr<DeviceSide> create(const CommunicatorOptions& options,
                                            MultinodeHostSide& host);
  ~MultinodeDevice() override;

  using DeviceSide::enqueue;
  void enqueue(const Request& request, const void* input, void* output, void* stream,
               const CallOptions& options) override {
    rails_->enqueue(request, input, output, stream, options);
  }
  void check() override { rails_->check(host_.is_caller()); }
  const Topology& topology_or(const Topology&) const override { return node_->topology(); }
  bool on_device(const void* pointer) const override { return node_->on_device(pointer); }
  std::string explain(const Request& request) override { return rails_->explain(request); }
  void add_to(Counters& counters) const override { rails_->add_to(counters); }
  void abort() noexcept override;
  void begin_closing() override { node_->begin_closing(); }
  void end_work() override { node_->end_work(); }
  std::shared_ptr<const WatchedPeers> peers() const override { return node_->peers(); }
  void lend_to(PairOf& pair) const override { node_->lend_to(pair); }
  std::unique_ptr<DeviceSide> far_pair(int peer, const HostSide& host) override;

  /// Enqueues rank `me`'s end of a message of two ranks of different nodes.
  void message(int peer, const Request& request, int me, const void* input, void* output,
               void* stream) {
    rails_->message(peer, request, me, input, output, stream, host_.is_caller());
  }

 private:
  MultinodeDevice(MultinodeHostSide& host, std::unique_ptr<GpuSide> node)
      : DeviceSide(node->ordinal()), host_(host), node_(std::move(node)) {}
  NodeSide node_side();
  void join_rails(const CommunicatorOptions& options);

  MultinodeHostSide& host_;
  std::unique_ptr<GpuSide> node_;
  std::unique_ptr<GpuMultinode> rails_;
};

/// A pair across nodes on the larger communicator's GPUs, which count the pair's calls.
class FarPairDevice : public DeviceSide {
 public:
  /// host: the pair's host side. Both outlive this object.
  FarPairDevice(MultinodeDevice& whole, int peer, const HostSide& host)
      : DeviceSide(whole.ordinal()), whole_(whole), peer_(peer), host_(host) {}
  using DeviceSide::enqueue;
  void enqueue(const Request& request, const void* input, void* output, void* stream,
               const CallOptions& options) override;
  void check() override { whole_.check(); }
  const Topology& topology_or(const Topology& host) const override {
    return whole_.topology_or(host);
  }
  bool on_device(const void* pointer) const override { return whole_.on_device(pointer); }

 private:
  MultinodeDevice& whole_;
  const int peer_;  ///< the peer's rank in the larger communicator
  const HostSide& host_;
};

}  // namespace plait
