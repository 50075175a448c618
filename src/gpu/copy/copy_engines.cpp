// Engines copy_exchange, copy_rotation and copy_ring: large calls. Size and group set the pieces.
#include "base/text.hpp"
#include "gpu/copy/copy_plans.hpp"
#include "gpu/copy/copy_tuning.hpp"
#include "gpu/copy/engine_ring.hpp"
#include "gpu/copy/host_exchange.hpp"
#include "gpu/copy/pair_exchange.hpp"
#include "gpu/copy/rotation.hpp"
#include "gpu/engine/engine.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/tile/tiled_shape.hpp"

namespace plait::cuda {
namespace {

class ExchangeReady : public PreparedCall {
 public:
  ExchangeReady(const Request& request, const Tuning& tuning, EngineRank& rank)
      : rank_(rank),
        type_(moved_type(request)),
        shape_(direct_shape(request, rank.rank())),
        blocks_(blocks_alongside_copies(rank.group(), tuning)),
        group_(rank.group()),
        is_chosen_(tuning.host_permille < 0),
        host_cut_(host_exchange_cut(request, shape_.part_bytes, group_, tuning)),
        tuning_(tuning) {
    rank.fill_call(call_, request);
  }

  /// Two ranks use all slots as a single inbox each.
  void enqueue(const CallBuffers& buffers, Stream stream) override {
    CallArgs call = call_;
    set_buffers(call, buffers);
    if (group_.through_host) {
      const EnginePath& path = rank_.engine_path();
      HostExchange host(rank_.queue(), path, path.staging, host_cut_, shape_, call, type_, blocks_);
      host.fork(rank_.fork(), stream);
      host.enqueue();
      return host.join(stream);
    }
    const bool corrected = is_chosen_ && may_share(group_) && !rank_.is_capturing(stream);
    AgreedShare& share = rank_.agreed_share();
    if (is_chosen_)
      tuning_.host_permille =
          corrected ? static_cast<int>(share.next(LinkCarrier::copy_engines, shape_.part_bytes,
                                                  group_.host_bytes / kChunkSlots, takers()))
                    : 0;
    const ExchangeCut cut = exchange_cut(shape_.part_bytes, group_, tuning_);
    PairExchange(rank_.queue(), rank_.engine_path(), cut, shape_, call, type_, blocks_,
                 tuning_.batch == 1,
                 corrected ? share.timed(cut.bytes, cut.bytes - cut.host_from) : nullptr)
        .enqueue(rank_.fork(), stream);
  }

 private:
  /// Ranks (bits) that receive: only a receiver sees both paths end.
  std::uint32_t takers() const {
    return (sends(shape_, 2, 1, 0) ? 1u : 0u) | (sends(shape_, 2, 0, 1) ? 2u : 0u);
  }

  EngineRank& rank_;
  const DataType type_;
  const DirectShape shape_;
  const unsigned blocks_;
  const Group& group_;
  const bool is_chosen_;    // the share through host memory, call by call
  const HostCut host_cut_;  // used without a link alone
  Tuning tuning_;
  CallArgs call_{};
};

class ExchangeEngine : public CopyEngine<ExchangeReady> {
 public:
  const StrategyInfo& info() const override {
    static const StrategyInfo info{
        "copy_exchange", "two ranks' copy engines push pieces, and a share through host memory",
        "multi-path copies (Micro 2021)", all_collectives()};
    return info;
  }
  std::string why_not(const Request& request, const Tuning&, const Group& group) const override {
    if (request.ranks != 2) return "two ranks wanted; copy_rotation serves more";
    if (group.through_host) return why_no_host_exchange(group);
    const std::string why = why_no_copies(group);
    return why.empty() && slot_bytes(group) == 0 ? "the arena has no slots for pieces" : why;
  }
};

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

const Engine& copy_exchange_engine() {
  static const ExchangeEngine engine;
  return engine;
}

const Engine& copy_rotation_engine() {
  static const RotationEngine engine;
  return engine;
}

const Engine& copy_ring_engine() {
  static const RingEngine engine;
  return engine;
}

}  // namespace plait::cuda
