// Implements node_engine(): NodeProgramRunner over the node's engine and the program's
// communicator.
#include "shims/nccl/nodes.hpp"

#include <atomic>

#include "base/error_reason.hpp"
#include "base/text.hpp"
#include "comm/choose/multinode_choice.hpp"
#include "comm/multinode/node_program_runner.hpp"
#include "comm/node/setup.hpp"
#include "plait/error.hpp"
#include "plan/sum_order.hpp"
#include "shims/nccl/group.hpp"
#include "shims/nccl/settings.hpp"

namespace plait::nccl {
namespace {

class NodeEngine : public CommEngine {
 public:
  NodeEngine(const Nodes& nodes, int device, std::unique_ptr<CommEngine> inside, Comm whole,
             Comm across)
      : inside_(std::move(inside)),
        runner_(nodes,
                {[this](const Request& request) { return inside_->takes({request, {}}); },
                 [this](const Request& request, const void* input, void* output, Stream stream) {
                   inside_->enqueue({request, {}}, input, output, stream);
                 }},
                platform().side_stream(device),
                std::make_unique<NcclTransport>(whole, false, across,
                                                [] { return std::make_shared<InNative>(); }),
                multinode_algo(settings().env.algo), settings().env.bitwise,
                demanded_order(settings().env)) {}
  bool uses_nccl() const override { return true; }
  /// Forwards a request that NCCL would run alone. In strict mode, also forwards (to be refused) a
  /// floating-point sum that would not be in the order that is asked for.
  bool takes(const LimitedRequest& request) const override {
    if (request.limits != CallLimits{}) return false;  // NCCL runs a part between nodes
    const bool has_order = reduces(request.collective) && is_float(request.type) &&
                           request.op != ReduceOp::min && request.op != ReduceOp::max;
    bool is_taken = false;
    const auto failure = attempt([&] {
      const auto program = runner_.program(request, {});
      is_taken = !program->is_library() && (program->in_order || !has_order || !settings().strict);
    });
    return is_taken && !failure;
  }
  int enqueue(const LimitedRequest& request, const void* input, void* output,
              Stream stream) override {
    const InNative in_native;
    const std::shared_ptr<const NodeProgram> program = runner_.program(request, {});
    runner_.enqueue(*program, input, output, stream);
    inside_->fail_if_peer_lost(stream);
    sent_ += program->bytes_between;
    return kByPlait;
  }
  std::string how(const LimitedRequest& request) const override {
    return text("{}, NCCL between {} nodes", runner_.program(request, {})->label,
                runner_.nodes().count());
  }
  std::string why_not(const Request& request) const override {
    std::string why;
    const auto failure = attempt([&] {
      const auto program = runner_.program(request, {});
      why = program->why;
      if (why.empty())
        why = program->is_library() ? text("PLAIT_ALGO={} leaves it whole", settings().env.algo)
                                    : text("over nodes it is not summed in the order {}",
                                           name_of(demanded_order(settings().env)));
    });
    return failure ? reason_of(*failure) : why;
  }
  /// A node's ranks are not all ranks, which suspend together.
  GpuMemory gpu_memory() const noexcept override {
    const GpuMemory inside = inside_->gpu_memory();
    return {inside.staying + inside.suspendable, 0};
  }
  void check() const override { inside_->check(); }
  void break_off(Stream stream, const std::exception& error, bool was_eager) noexcept override {
    inside_->break_off(stream, error, was_eager);
  }
  bool has_broken_off() const noexcept override { return inside_->has_broken_off(); }
  void fail() noexcept override {
    inside_->fail();
    runner_.nccl_transport().abort();
  }
  void fail_if_peer_lost(Stream stream) override { inside_->fail_if_peer_lost(stream); }
  void abort() noexcept override {
    inside_->abort();
    runner_.nccl_transport().abort();
  }
  void end_nccl() noexcept override { runner_.nccl_transport().end(); }
  bool has_ended(bool knows_calls) noexcept override { return inside_->has_ended(knows_calls); }
  void unmap_peers() noexcept override { inside_->unmap_peers(); }
  std::vector<FlightMemory> held() const override { return inside_->held(); }
  void await_abort(double wait_s) const noexcept override {
    runner_.nccl_transport().await_abort(wait_s);
  }

 private:
  std::unique_ptr<CommEngine> inside_;
  mutable NodeProgramRunner runner_;  // caches programs of requests
  std::atomic<std::uint64_t> sent_{0};
  const CountedPaths paths_{
      [this] { return std::map<std::string, std::uint64_t>{{"nccl", sent_.load()}}; }};
};

}  // namespace

std::unique_ptr<CommEngine> node_engine(const Nodes& nodes, int device,
                                        std::unique_ptr<CommEngine> inside, Comm whole,
                                        Comm across) {
  return std::make_unique<NodeEngine>(nodes, device, std::move(inside), whole, across);
}

}  // namespace plait::nccl
