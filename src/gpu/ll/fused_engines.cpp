// Engines one_shot and two_shot: an all_reduce by LL packets in a single kernel; two_shot also
// serves reduces. If the packets of a call do not fit into half an inbox, two_shot reuses packets
// (kernel long_two_shot).
#include <algorithm>

#include "base/text.hpp"
#include "gpu/abi/ll_args.hpp"
#include "gpu/engine/engine.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/ll/ll_cut.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "gpu/ll/ll_plan.hpp"

namespace plait::cuda {
namespace {

bool uses_nan_sentinel(const Request& request, const Tuning& tuning) {
  return is_float(request.type) && tuning.bare != 0;
}

/// Returns the steps that pushes run ahead of reductions. Source: bench/results/gpu_two_shot_*.csv.
int steps_ahead(const Request& request, bool is_lean) {
  const std::uint64_t mib = (request.count * bytes_of(request.type)) >> 20;
  if (request.ranks == 2) return mib >= 16 ? 2 : 1;
  if (is_lean) return mib >= 48 ? 3 : mib >= 12 ? 2 : 1;
  return mib > 16 ? 4 : 1;
}

/// Launch of a call.
struct ShotLaunch {
  KernelLaunchConfig config;
  int ahead = 0;
  bool fits = false;     ///< half an inbox is large enough
  bool is_long = false;  ///< packets are reused
  unsigned workers() const { return config.threads - (is_long ? kLongShotSignalThreads : 0); }
};

/// Least bytes that a rank must have in flight for long_two_shot to pay. With less, links are
/// nearly idle. Source: E-0402.
constexpr std::uint64_t kLeastInFlight = 512 << 10;
/// Most steps of long_two_shot: the proof of a longer plan would take too long.
constexpr std::uint64_t kMostShotSteps = 128;

class FusedReady : public PreparedCall {
 public:
  FusedReady(EngineRank& rank, Function kernel, const LongShotArgs& args, const ShotLaunch& launch)
      : rank_(rank),
        kernel_(kernel),
        args_(args),
        config_(launch.config),
        is_long_(launch.is_long) {}

  void enqueue(const CallBuffers& buffers, Stream stream) override {
    if (args_.count == 0) return;
    LongShotArgs args = args_;
    set_scalars(args, buffers.scalars);
    args.input = buffers.input;
    args.output = buffers.output;
    if (is_long_) return rank_.kernels().launch(kernel_, config_, stream, {&args});
    FusedArgs& one = args;
    rank_.kernels().launch(kernel_, config_, stream, {&one});
  }

 private:
  EngineRank& rank_;
  const Function kernel_;
  const LongShotArgs args_;
  const KernelLaunchConfig config_;
  const bool is_long_;
};

class FusedEngine : public Engine {
 public:
  FusedEngine(StrategyInfo info, bool is_one_shot)
      : info_(std::move(info)), is_one_shot_(is_one_shot) {}
  const StrategyInfo& info() const override { return info_; }
  bool sums_in_trees(const Request& request, const Group& group) const override {
    return sums_common_floats(request) && group.runs(kShotTreeKernels);
  }

  std::string why_not(const Request& request, const Tuning& tuning,
                      const Group& group) const override {
    if (!group.runs(kShotKernels)) return group.lacks(kShotKernels);
    if (is_in_tree(request, group.sum_order) && !uses_nan_sentinel(request, tuning))
      return text("sums in the order {} are served with bare=1", name_of(group.sum_order));
    const ShotLaunch launch = launch_of(request, tuning, group);
    if (!launch.fits)
      return text(
          "packet buffer of {} bytes a call is too small for the message (raise "
          "PLAIT_DEVICE_MEMORY)",
          half_bytes(uses_nan_sentinel(request, tuning), group));
    if (request.collective == Collective::reduce) return why_no_reduce(request, tuning, launch);
    return launch.is_long ? why_not_again(request, tuning, group, launch) : "";
  }

  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const override {
    const bool nan_sentinel = uses_nan_sentinel(request, tuning);
    const ShotLaunch launch = launch_of(request, tuning, group);
    const std::uint64_t threads = std::uint64_t{launch.config.blocks} * launch.workers();
    Plan made = ll_plan(
        topology, request, is_one_shot_ ? LlKernel::one_shot : LlKernel::two_shot,
        nan_sentinel ? PacketFormat::nan_sentinel : PacketFormat::flag,
        half_bytes(nan_sentinel, group),
        {.units = threads * static_cast<unsigned>(together(request)), .ahead = launch.ahead});
    KernelLaunchConfig config = launch.config;
    config.threads = launch.workers();
    set_launch(made, config, request.ranks == 2 ? 2 : 1,
               nan_sentinel ? kSentinelPacketBytes : kFlagPacketBytes, group.through_host);
    return made;
  }

  const Resources& resources() const override { return ll_resources(); }
  std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                        EngineRank& rank) const override {
    const Group& group = rank.group();
    const bool nan_sentinel = uses_nan_sentinel(request, tuning);
    const ShotLaunch launch = launch_of(request, tuning, group);
    LongShotArgs args{};
    rank.fill_call(args, request);
    for (int peer = 0; peer < group.ranks; ++peer)
      args.inbox[peer] = rank.at(nan_sentinel ? kSentinelPackets : kFlagPackets, peer);
    args.half_bytes = half_bytes(nan_sentinel, group);
    args.count = request.count;
    args.root = request.root;
    args.ahead = launch.ahead;
    args.ring = shot_ring(launch.ahead);
    args.workers = launch.workers();
    for (int peer = 0; peer < group.ranks; ++peer) args.flags[peer] = rank.flags(kShotFlags, peer);
    const std::string name = launch.is_long ? "long_two_shot" : info_.name;
    return std::make_unique<FusedReady>(
        rank, rank.kernels().find(shot_kernel(name, request, nan_sentinel, group.sum_order)), args,
        launch);
  }

 private:
  static std::uint64_t half_bytes(bool nan_sentinel, const Group& group) {
    return nan_sentinel ? bytes_of_call(group, kSentinelPackets)
                        : bytes_of_call(group, kFlagPackets);
  }
  /// Returns the units that a rank sends to another rank, or has in its own shard.
  std::uint64_t work_of(const Request& request) const {
    const auto ranks = static_cast<std::uint64_t>(request.ranks);
    return is_one_shot_ ? units_of(request) : (units_of(request) + ranks - 1) / ranks;
  }
  static std::uint64_t packet_bytes(bool nan_sentinel) {
    return nan_sentinel ? kSentinelPacketBytes : kFlagPacketBytes;
  }
  /// Returns the units that a thread passes together, as the kernel is compiled.
  static int together(const Request& request) {
    return request.ranks == 2 && is_common_sum(request) ? 2 : 1;
  }
  ShotLaunch launch_of(const Request& request, const Tuning& tuning, const Group& group) const {
    const bool nan_sentinel = uses_nan_sentinel(request, tuning);
    const std::uint64_t packets = half_bytes(nan_sentinel, group) / packet_bytes(nan_sentinel);
    ShotLaunch made;
    made.fits = holds_packets(packets, units_of(request), request.ranks, is_one_shot_);
    if (!made.fits && !is_one_shot_) return long_launch(request, tuning, group);
    made.config = launch_config_of(request, tuning, group);
    made.ahead = tuning.ahead >= 0 ? tuning.ahead : steps_ahead(request, is_lean(request));
    return made;
  }
  /// Returns a launch on all SMs with as many threads as the inbox has packets for.
  ShotLaunch long_launch(const Request& request, const Tuning& tuning, const Group& group) const {
    const bool nan_sentinel = uses_nan_sentinel(request, tuning);
    ShotLaunch made;
    made.is_long = true;
    made.ahead = tuning.ahead >= 0 ? std::min(tuning.ahead, kMostShotAhead) : 1;
    const std::uint64_t threads =
        most_shot_units(half_bytes(nan_sentinel, group), packet_bytes(nan_sentinel), request.ranks,
                        made.ahead) /
        static_cast<unsigned>(together(request));
    const unsigned most_blocks = std::min(group.blocks(tuning), kLongShotBlocks);
    const unsigned most_threads = tuning.threads != 0 ? static_cast<unsigned>(tuning.threads)
                                                      : group.most_threads(is_lean(request));
    const auto workers = static_cast<unsigned>(std::clamp<std::uint64_t>(
        (threads / most_blocks + 31) / 32 * 32, 32,
        std::max(most_threads, 2 * kLongShotSignalThreads) - kLongShotSignalThreads));
    made.config.threads = workers + kLongShotSignalThreads;
    made.config.blocks =
        static_cast<unsigned>(std::min<std::uint64_t>(most_blocks, threads / workers));
    made.config.programmatic = true;
    made.fits = made.config.blocks != 0 && units_of(request) <= kMostPackets;
    return made;
  }
  /// Returns "", or why reusing packets does not pay for this call. A caller that sets blocks or
  /// threads is not refused.
  std::string why_not_again(const Request& request, const Tuning& tuning, const Group& group,
                            const ShotLaunch& launch) const {
    const std::uint64_t units = std::uint64_t{launch.config.blocks} * launch.workers() *
                                static_cast<unsigned>(together(request));
    const std::uint64_t steps = (work_of(request) + units - 1) / units;
    if (has_ll_only(group)) return "";
    if (steps > kMostShotSteps)
      return text("the message would take {} steps that reuse packets, {} is the most", steps,
                  kMostShotSteps);
    if (tuning.blocks != 0 || tuning.threads != 0) return "";
    if (!is_common_sum(request) || !uses_nan_sentinel(request, tuning))  // tiles are faster
      return text(
          "packet buffer of {} bytes a call is too small for the message (raise "
          "PLAIT_DEVICE_MEMORY); packets are reused only in sums of fp32, bf16 and fp16 over 2, 4 "
          "and 8 ranks with "
          "bare=1",
          half_bytes(uses_nan_sentinel(request, tuning), group));
    const auto ahead = static_cast<std::uint64_t>(std::max(1, 2 * launch.ahead));
    const std::uint64_t in_flight = ahead * static_cast<unsigned>(request.ranks - 1) * units *
                                    packet_bytes(uses_nan_sentinel(request, tuning));
    if (in_flight >= kLeastInFlight) return "";
    return text(
        "a packet buffer of {} bytes a call and {} blocks give a rank {} bytes in flight, wanted "
        "{} "
        "(raise PLAIT_DEVICE_MEMORY)",
        half_bytes(uses_nan_sentinel(request, tuning), group), launch.config.blocks, in_flight,
        kLeastInFlight);
  }
  /// Returns "", or why two_shot does not serve this reduce.
  std::string why_no_reduce(const Request& request, const Tuning& tuning,
                            const ShotLaunch& launch) const {
    if (!has_two_shot_to_root(request) || !uses_nan_sentinel(request, tuning))
      return "reduce is served for sums of fp32, bf16 and fp16 over 4 and 8 ranks, with bare=1";
    if (launch.is_long) return "reduce is served if its packets fit into half an inbox at once";
    const std::uint64_t units = units_of(request);
    const std::uint64_t of_others = work_of(request) * static_cast<unsigned>(request.ranks - 1);
    return of_others < units ? "" : text("a rank would have no shard of {} units", units);
  }
  bool is_lean(const Request& request) const {
    if (!is_common_sum(request)) return false;
    if (is_one_shot_) return is_lean_one_shot(request.ranks);
    return request.collective == Collective::reduce ? is_lean_two_shot_to_root(request.ranks)
                                                    : is_lean_two_shot(request.ranks);
  }
  KernelLaunchConfig launch_config_of(const Request& request, const Tuning& tuning,
                                      const Group& group) const {
    const std::uint64_t work = work_of(request);
    const bool is_long = !is_one_shot_ && units_of(request) > 1u << 20;  // more than 16 MiB
    const bool lean = is_lean(request);
    // With much work, two blocks of 256 threads share an SM: one loads while the other waits.
    const bool two_an_sm = lean && work >= 65536 && (request.ranks == 2 || is_long) &&
                           tuning.blocks == 0 && tuning.threads == 0 && group.most_blocks == 0;
    const bool is_wide = work < 65536 || two_an_sm || (is_long && request.ranks > 2 && !lean);
    KernelLaunchConfig config;
    config.threads = tuning.threads != 0 ? static_cast<unsigned>(tuning.threads)
                     : work < 8192       ? 128
                     : is_wide           ? 256
                                         : group.most_threads(lean);
    const std::uint64_t useful =
        std::max<std::uint64_t>(1, (work + config.threads - 1) / config.threads);
    config.blocks = static_cast<unsigned>(
        std::min<std::uint64_t>(useful, group.blocks(tuning) * (two_an_sm ? 2 : 1)));
    config.programmatic = true;
    return config;
  }

  const StrategyInfo info_;
  const bool is_one_shot_;
};

}  // namespace

const Engine& one_shot_engine() {
  static const FusedEngine engine(
      {"one_shot",
       "every rank pushes its message to all ranks and reduces what it receives",
       "one-shot all-reduce; packets as in NCCL's LL protocol",
       {Collective::all_reduce}},
      true);
  return engine;
}

const Engine& two_shot_engine() {
  static const FusedEngine engine(
      {"two_shot",
       "every rank reduces a shard of the message and pushes the result to all, or to the root",
       "two-shot all-reduce; packets as in NCCL's LL protocol",
       {Collective::all_reduce, Collective::reduce}},
      false);
  return engine;
}

}  // namespace plait::cuda
