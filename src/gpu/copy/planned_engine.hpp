// An engine of kernels as a part of a call that is recorded as a plan. A prepared call adds the
// engine's plan to the book instead of launching kernels.
#pragma once
#include <deque>
#include <memory>
#include <string>

#include "gpu/copy/copy_plans.hpp"

namespace plait::cuda {

/// Prepared calls of this engine add their plan to the book.
class PlannedEngine : public Engine {
 public:
  PlannedEngine(PlanBook& book, const Topology& topology, const Engine& engine)
      : book_(book), topology_(topology), engine_(engine) {}

  const StrategyInfo& info() const override { return engine_.info(); }
  bool sums_in_trees(const Request& request, const Group& group) const override {
    return engine_.sums_in_trees(request, group);
  }
  std::string why_not(const Request& request, const Tuning& tuning,
                      const Group& group) const override {
    return engine_.why_not(request, tuning, group);
  }
  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const override {
    return engine_.plan(topology, request, tuning, group);
  }
  const Resources& resources() const override { return engine_.resources(); }
  std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                        EngineRank& rank) const override {
    return std::make_unique<PlannedReady>(*this, request, tuning, rank);
  }

 private:
  class PlannedReady : public PreparedCall {
   public:
    PlannedReady(const PlannedEngine& engine, const Request& request, const Tuning& tuning,
                 EngineRank& rank)
        : engine_(engine), request_(request), tuning_(tuning), rank_(rank) {}
    void enqueue(const CallBuffers& buffers, Stream) override {
      PlanBook& book = engine_.book_;
      const CallArgs whole = book.call(rank_.rank());
      const auto behind = [](const void* at, const void* from) {
        return static_cast<std::uint64_t>(static_cast<const char*>(at) -
                                          static_cast<const char*>(from));
      };
      book.add(rank_.rank(), engine_.plan_of(request_, tuning_, rank_.group()),
               behind(buffers.input, whole.input), behind(buffers.output, whole.output));
    }

   private:
    const PlannedEngine& engine_;
    const Request request_;
    const Tuning tuning_;
    EngineRank& rank_;
  };

  /// Returns the plan, the same for all ranks.
  const Plan& plan_of(const Request& request, const Tuning& tuning, const Group& group) const {
    for (const Plan& one : plans_)
      if (one.request == request) return one;
    return plans_.emplace_back(engine_.plan(topology_, request, tuning, group));
  }

  PlanBook& book_;
  const Topology& topology_;
  const Engine& engine_;
  mutable std::deque<Plan> plans_;
};

}  // namespace plait::cuda
