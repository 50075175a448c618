// Engine copy_exchange: a large call of two ranks, over the link with a share through host memory,
// or through host memory alone. The share is the caller's, or follows the times of earlier calls.
#include "gpu/copy/copy_plans.hpp"
#include "gpu/copy/copy_tuning.hpp"
#include "gpu/copy/host_exchange.hpp"
#include "gpu/copy/pair_exchange.hpp"
#include "gpu/engine/engine.hpp"
#include "gpu/engine/kernel_types.hpp"

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
    const LongInbox inbox(rank_, long_inbox_bytes(group_, shape_.part_bytes), stream);
    exchange(call, stream, inbox.is_held());
  }

 private:
  /// Holds the long inbox while a call is enqueued, also if the call throws.
  class LongInbox {
   public:
    LongInbox(EngineRank& rank, std::uint64_t bytes, Stream stream)
        : rank_(rank), is_held_(bytes != 0 && rank.reserve_long_inbox(stream)) {}
    ~LongInbox() {
      if (is_held_) rank_.end_long_inbox();
    }
    LongInbox(const LongInbox&) = delete;
    LongInbox& operator=(const LongInbox&) = delete;
    bool is_held() const { return is_held_; }

   private:
    EngineRank& rank_;
    const bool is_held_;
  };

  void exchange(const CallArgs& call, Stream stream, bool is_long) {
    const bool corrected = is_chosen_ && may_share(group_, is_long) && !rank_.is_capturing(stream);
    AgreedShare& share = rank_.agreed_share();
    Tuning tuning = tuning_;
    if (is_chosen_) tuning.host_permille = 0;
    if (corrected)
      tuning.host_permille =
          static_cast<int>(share.next(LinkCarrier::copy_engines, shape_.part_bytes,
                                      group_.host_bytes / kChunkSlots, takers_of_pair(shape_)));
    const ExchangeCut cut = exchange_cut(shape_.part_bytes, group_, tuning, is_long);
    PairExchange(rank_.queue(), rank_.engine_path(), cut, shape_, call, type_, blocks_,
                 tuning.batch == 1,
                 corrected ? share.timed(cut.bytes, cut.bytes - cut.host_from) : nullptr)
        .enqueue(rank_.fork(), stream);
  }

  EngineRank& rank_;
  const DataType type_;
  const DirectShape shape_;
  const unsigned blocks_;
  const Group& group_;
  const bool is_chosen_;    // the share through host memory, call by call
  const HostCut host_cut_;  // used without a link alone
  const Tuning tuning_;
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

}  // namespace

const Engine& copy_exchange_engine() {
  static const ExchangeEngine engine;
  return engine;
}

}  // namespace plait::cuda
