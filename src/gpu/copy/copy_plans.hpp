// Plans of calls by copy engines, made without a GPU: each engine's own code prepares and enqueues
// the call for all ranks on queues that record the call (plan_queue.hpp).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "gpu/consensus/agreed_share.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/copy/plan_queue.hpp"
#include "gpu/engine/engine.hpp"

namespace plait::cuda {

/// Returns "" if the group has everything that engines by copies need.
std::string why_no_copies(const Group& group);

/// Returns the queue of a rank; a test may return a queue that damages the call.
using QueueOf = std::function<EngineQueue&(PlanBook& book, int rank)>;

/// A rank that records calls in a book as in a graph: no share depends on earlier calls.
class WritingRank : public EngineRank {
 public:
  WritingRank(PlanBook& book, const Group& group, int rank, EngineQueue& queue)
      : book_(book), group_(group), rank_(rank), queue_(queue) {}

  int rank() const override { return rank_; }
  const Group& group() const override { return group_; }
  Kernels& kernels() override;
  char* at(const FlagsRow& row, int owner) const override;
  char* at(const ArenaPart& part, int owner) const override;
  const std::uint32_t* poisoned(const ArenaPart& part) const override;
  EngineQueue& queue() override { return queue_; }
  const EnginePath& engine_path() const override { return book_.path(); }
  /// The plan is that of a call that has all memory.
  bool reserve_long_inbox(Stream) override { return group_.sizes[kLongInbox] != 0; }
  void end_long_inbox() override {}
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

/// Prepares the call of a rank.
using PrepareOn = std::function<std::unique_ptr<PreparedCall>(EngineRank& rank)>;
void write_down(PlanBook& book, const Group& group, const PrepareOn& prepare,
                const QueueOf& through);

/// Serves engines that put all work on the queue. `request`: checked, and not refused.
Plan plan_of_copies(const Engine& engine, const Topology& topology, const Request& request,
                    const Tuning& tuning, const Group& group, const QueueOf& through = nullptr);

/// Base of engines that put all work of a call on the queue. `Call` is the class of a prepared
/// call, made of (request, tuning, rank).
template <class Call>
class CopyEngine : public Engine {
 public:
  std::string why_not(const Request&, const Tuning&, const Group& group) const override {
    return why_no_copies(group);
  }
  const Resources& resources() const final { return copy_resources(); }
  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const final {
    return plan_of_copies(*this, topology, request, tuning, group);
  }
  std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                        EngineRank& rank) const final {
    return std::make_unique<Call>(request, tuning, rank);
  }
};

/// Returns the parameters of a plan that say how the call is cut.
std::map<std::string, std::int64_t> cut_params(const Tuning& tuning);

const Engine& copy_exchange_engine();
const Engine& copy_rotation_engine();
const Engine& copy_ring_engine();

}  // namespace plait::cuda
