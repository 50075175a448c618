// Engines copy_rotation and copy_ring: large calls. Size and group set the pieces. copy_exchange
// has a file of its own.
#include "base/text.hpp"
#include "gpu/copy/copy_plans.hpp"
#include "gpu/copy/copy_tuning.hpp"
#include "gpu/copy/engine_ring.hpp"
#include "gpu/copy/rotation.hpp"
#include "gpu/engine/engine.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/tile/tiled_shape.hpp"

namespace plait::cuda {
namespace {

class RotationReady : public PreparedCall {
 public:
  RotationReady(const Request& request, const Tuning& tuning, EngineRank& rank)
      : rank_(rank),
        type_(moved_type(request)),
        blocks_(blocks_alongside_copies(rank.group(), tuning)),
        shape_(tiled_shape(request, rank.rank())),
        cut_(rotation_cut(shape_.part_bytes, rank.group(), tuning)),
        batches_(tuning.batch == 1) {
    rank.fill_call(shape_, request);
  }
  void enqueue(const CallBuffers& buffers, Stream stream) override {
    TiledArgs shape = shape_;
    set_buffers(shape, buffers);
    Rotation(rank_.queue(), rank_.engine_path(), cut_, shape, type_, blocks_, batches_)
        .enqueue(rank_.fork(), stream);
  }

 private:
  EngineRank& rank_;
  const DataType type_;
  const unsigned blocks_;
  TiledArgs shape_;
  const RotationCut cut_;
  const bool batches_;
};

class RotationEngine : public CopyEngine<RotationReady> {
 public:
  bool sums_in_trees(const Request&, const Group& group) const override {
    return group.runs(kCopyTreeKernels);
  }
  const StrategyInfo& info() const override {
    static const StrategyInfo info{
        "copy_rotation",
        "copy engines push to one peer after the other, so that no two share a port",
        "direct-sendrecv with a throttle of one", all_collectives()};
    return info;
  }
  std::string why_not(const Request& request, const Tuning&, const Group& group) const override {
    if (request.ranks <= 2) return "more than two ranks wanted; copy_exchange serves two";
    if (is_engine_ring(request)) return "all_gather is served by copy_ring";
    const std::string why = why_no_copies(group);
    return why.empty() && slot_bytes(group) == 0
               ? "the arena has slots for pieces only if an sm_budget is set"
               : why;
  }
};

class RingReady : public PreparedCall {
 public:
  RingReady(const Request& request, const Tuning& tuning, EngineRank& rank)
      : rank_(rank), cut_(ring_cut(request, rank.group(), tuning)) {
    rank.fill_call(call_, request);
  }
  void enqueue(const CallBuffers& buffers, Stream stream) override {
    CallArgs call = call_;
    set_buffers(call, buffers);
    EngineRing(rank_.queue(), rank_.engine_path(), cut_, call).enqueue(rank_.fork(), stream);
  }

 private:
  EngineRank& rank_;
  const RingCut cut_;
  CallArgs call_{};
};

class RingEngine : public CopyEngine<RingReady> {
 public:
  const StrategyInfo& info() const override {
    static const StrategyInfo info{
        "copy_ring",
        "copy engines push to one rank at a time: the next of a ring, or each rank in turn",
        "ring all-gather, pipelined broadcast, pairwise exchange",
        {Collective::all_gather, Collective::broadcast, Collective::send_recv,
         Collective::all_to_all}};
    return info;
  }
  std::string why_not(const Request& request, const Tuning&, const Group& group) const override {
    return request.ranks <= 2 ? "more than two ranks wanted; copy_exchange serves two"
                              : why_no_copies(group);
  }
  bool takes_counts() const override { return true; }
};

}  // namespace

const Engine& copy_rotation_engine() {
  static const RotationEngine engine;
  return engine;
}

const Engine& copy_ring_engine() {
  static const RingEngine engine;
  return engine;
}

}  // namespace plait::cuda
