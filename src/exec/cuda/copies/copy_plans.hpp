// The plans of calls by copy engines, without a GPU: each engine's own code makes the call ready
// and enqueues it, for all ranks, on queues that write down (plan_queue.hpp).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "exec/cuda/copies/plan_queue.hpp"
#include "exec/cuda/engine.hpp"
#include "exec/cuda/share/agreed_share.hpp"

namespace plait::cuda {

/// Empty where a group has what all engines by copies want.
std::string why_no_copies(const Group& group);

/// Where a rank enqueues; a test may put a queue of its own between, to damage a call on its way.
using QueueOf = std::function<EngineQueue&(PlanBook& book, int rank)>;

/// A rank whose calls go into a book, as a graph would hold them: no share follows earlier calls.
class WritingRank : public EngineRank {
 public:
  WritingRank(PlanBook& book, const Group& group, int rank, EngineQueue& queue)
      : book_(book), group_(group), rank_(rank), queue_(queue) {}

  int rank() const override { return rank_; }
  const Group& group() const override { return group_; }
  Kernels& kernels() override;
  ArenaHeader& header(int owner) const override;
  char* at(ArenaPart part, int owner) const override;
  EngineQueue& queue() override { return queue_; }
  const EnginePath& engine_path() const override { return book_.path(); }
  Event fork() const override { return PlanBook::fork(); }
  AgreedShare& agreed_share() override { return share_; }
  bool is_capturing(Stream) const override { return true; }
  void fill_call(CallArgs& args, const Request& request) const override;

 private:
  PlanBook& book_;
  const Group& group_;
  const int rank_;
  EngineQueue& queue_;
  AgreedShare share_;
};

/// The call of each rank, as `prepare` makes it ready there.
using PrepareOn = std::function<std::unique_ptr<PreparedCall>(EngineRank& rank)>;
void write_down(PlanBook& book, const Group& group, const PrepareOn& prepare,
                const QueueOf& through);

/// For engines all of whose work goes through the queue. `request`: checked, and not refused.
Plan plan_of_copies(const Engine& engine, const Topology& topology, const Request& request,
                    const Tuning& tuning, const Group& group, const QueueOf& through = nullptr);

/// What engines are whose calls are a `Call`, all of whose work goes through the queue. `Call` is a
/// Ready made of (request, tuning, rank).
template <class Call>
class CopyEngine : public Engine {
 public:
  std::string why_not(const Request&, const Tuning&, const Group& group) const override {
    return why_no_copies(group);
  }
  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const final {
    return plan_of_copies(*this, topology, request, tuning, group);
  }
  std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                        EngineRank& rank) const final {
    return std::make_unique<Call>(request, tuning, rank);
  }
};

/// What a plan says of how its call is cut.
std::map<std::string, std::int64_t> cut_params(const Tuning& tuning);

}  // namespace plait::cuda
