// Chooses between one_shot and two_shot, cuts rows into launches with room for their packets, and
// enqueues the launches.
#include "gpu/norm/norm_call.hpp"

#include <algorithm>
#include <bit>

#include "base/text.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/ll/ll_cut.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "plait/error.hpp"
#include "plan/sum_order.hpp"

namespace plait::cuda {
namespace {

/// Most bytes that a rank sends in a one_shot. Two ranks send as many bytes in a two_shot, with a
/// step more (E-0471). Calls of more ranks were not timed.
constexpr std::uint64_t kOneShotBytes = 768 << 10, kOneShotBytesOfTwo = 3 << 20;
/// Limits of the fused kernel: messages above kFusedBytes take an all_reduce and the norm. Messages
/// of two ranks of more than kFewRows rows and less than kFusedFrom bytes take both too, since a
/// block has a single row (E-0471).
constexpr std::uint64_t kFewRows = 4, kFusedFrom = 3 << 19, kFusedBytes = 32 << 20;
/// Most rows of sum_norm_cluster for two ranks: of rows that fit in a block, by eight blocks a row;
/// of longer rows, by eight blocks a row; of rows by a block a row (E-0511).
constexpr std::uint64_t kShortRowsOfCluster = 16, kLongRowsOfCluster = 64, kRowsOfBlock = 128;
constexpr unsigned kMostCluster = 8;
/// Most blocks that share a slot of rows in a two_shot. Not timed.
constexpr unsigned kMostSlotBlocks = 4;

std::string kernel_name(const std::string& kernel, DataType type, int ranks, int units) {
  return text("plait_{}_{}_{}_{}", kernel, name_of(type), is_common_number(ranks) ? ranks : 0,
              units);
}

const char* sum_kernel(NormKernel kernel) {
  switch (kernel) {
    case NormKernel::one_shot: return "sum_norm_one_shot";
    case NormKernel::cluster: return "sum_norm_cluster";
    case NormKernel::two_shot: break;
  }
  return "sum_norm_two_shot";
}

constexpr DataType kNormTypes[] = {DataType::bf16, DataType::fp16};

KernelUses norm_uses(int ranks) {
  KernelUses uses;
  for (const DataType type : kNormTypes)
    for (int units = 2; units <= kMostNormUnits; units *= 2) {
      const KernelUse use{static_cast<unsigned>(norm_threads(units)), 0};
      uses[kernel_name("norm_alone", type, 0, units)] = use;
      for (const NormKernel kernel : {NormKernel::one_shot, NormKernel::two_shot})
        uses[kernel_name(sum_kernel(kernel), type, ranks, units)] = use;
    }
  return uses;
}

/// Trees are sums of more than two ranks, whose threads hold 4 units or 8 (units_of).
constexpr int kLeastTreeUnits = 4;
std::string tree_kernel(NormKernel kernel) { return text("{}_tree", sum_kernel(kernel)); }

KernelUses tree_uses(int ranks) {
  KernelUses uses;
  if (requests_of_trees(ranks).empty()) return uses;
  for (const DataType type : kNormTypes)
    for (int units = kLeastTreeUnits; units <= kMostNormUnits; units *= 2)
      for (const NormKernel kernel : {NormKernel::one_shot, NormKernel::two_shot})
        uses[kernel_name(tree_kernel(kernel), type, ranks, units)] = {
            static_cast<unsigned>(norm_threads(units)), 0};
  return uses;
}

bool sums_in_tree(const RmsNorm& norm, const Group& group) {
  return is_in_tree(all_reduce_of(norm, group.ranks), group.sum_order);
}

KernelUses cluster_uses(int ranks) {
  KernelUses uses;
  for (const DataType type : kNormTypes)
    uses[kernel_name(sum_kernel(NormKernel::cluster), type, ranks, 1)] = {
        static_cast<unsigned>(norm_threads(1)), 0, kMostCluster};
  return uses;
}

unsigned row_units(const RmsNorm& norm) {
  return static_cast<unsigned>(norm.hidden * bytes_of(norm.type) / 16);
}

/// Threads of a block that holds a row, or its part of a row, in whole warps.
unsigned threads_of(const RmsNorm& norm, int units, unsigned cluster = 1) {
  const unsigned held = static_cast<unsigned>(units) * cluster;
  return ((row_units(norm) + held - 1) / held + 31) / 32 * 32;
}

bool holds_row(const RmsNorm& norm, int units) {
  return threads_of(norm, units) <= static_cast<unsigned>(norm_threads(units));
}

/// Returns the blocks of the cluster that holds a row if sum_norm_cluster is the fastest kernel; 0
/// = another kernel is faster. Measured over links, without a budget of SMs (E-0510, E-0511). Under
/// a budget clusters hold all rows at once or none, since a cluster sends no row ahead.
unsigned best_cluster(const RmsNorm& norm, const Group& group) {
  if (group.ranks != 2 || group.through_host || !group.runs(kNormClusterKernels)) return 0;
  const bool fits_block = threads_of(norm, 1) <= static_cast<unsigned>(norm_threads(1));
  const bool is_short = norm.rows <= (fits_block ? kShortRowsOfCluster : kLongRowsOfCluster);
  const unsigned cluster = is_short                                  ? kMostCluster
                           : fits_block && norm.rows <= kRowsOfBlock ? 1
                                                                     : 0;
  return group.most_blocks != 0 && group.blocks() < cluster * norm.rows ? 0 : cluster;
}

/// Fewest units a thread whose block holds a row. Sums over more than two ranks hold more packets:
/// blocks of fewer threads have registers for these packets.
int units_of(const RmsNorm& norm, int ranks) {
  int units = ranks == 2 ? 2 : 4;
  while (!holds_row(norm, units)) units *= 2;
  return units;
}

/// Blocks and threads of a launch of `rows` rows by clusters. As many blocks as fit share half an
/// SM.
void set_cluster_config(NormLaunch& launch, const RmsNorm& norm, const NormTuning& tuning,
                        const Group& group, unsigned cluster, std::uint64_t rows) {
  launch.config.programmatic = true;
  launch.config.cluster = cluster;
  launch.config.threads = threads_of(norm, launch.units, cluster);
  const unsigned an_sm =
      group.most_blocks == 0
          ? static_cast<unsigned>(norm_threads(launch.units)) / launch.config.threads
          : 1;
  unsigned most = group.blocks() * an_sm;
  if (tuning.blocks != 0) most = std::min(most, static_cast<unsigned>(tuning.blocks));
  launch.config.blocks =
      cluster * static_cast<unsigned>(std::min<std::uint64_t>(rows, std::max(1u, most / cluster)));
}

/// Returns the blocks that share a slot of a two_shot, whose launch has at most `most` blocks. A
/// block waits for the peers' blocks of a slot, so blocks of a slot run at once, as a cluster. A
/// quarter of the blocks stays free, since clusters do not fill every group of SMs.
unsigned slot_blocks_of(std::uint64_t slots, unsigned most, const Group& group) {
  if (!group.runs(kNormClusterKernels)) return 1;
  unsigned blocks =
      std::bit_floor(std::min(static_cast<unsigned>(group.ranks - 1), kMostSlotBlocks));
  while (blocks > 1 && 4 * slots * blocks > 3 * std::uint64_t{most}) blocks /= 2;
  return blocks;
}

/// Fills in blocks and threads for `rows` rows of a launch. Two blocks share an SM where both fit
/// in half of the SM, so that a block loads while the other block waits.
void set_config(NormLaunch& launch, const RmsNorm& norm, const NormTuning& tuning,
                const Group& group, std::uint64_t rows) {
  launch.config.threads = threads_of(norm, launch.units);
  launch.config.programmatic = true;
  const bool two_an_sm =
      group.most_blocks == 0 &&
      2 * launch.config.threads <= static_cast<unsigned>(norm_threads(launch.units));
  unsigned most = group.blocks() * (two_an_sm ? 2 : 1);
  if (tuning.blocks != 0) most = std::min(most, static_cast<unsigned>(tuning.blocks));
  std::uint64_t teams = rows;
  if (launch.kernel == NormKernel::two_shot) {
    const auto ranks = static_cast<std::uint64_t>(group.ranks);
    teams = (rows + ranks - 1) / ranks;
    launch.config.cluster = slot_blocks_of(teams, most, group);
  }
  const unsigned cluster = launch.config.cluster;
  launch.config.blocks =
      cluster * static_cast<unsigned>(std::min<std::uint64_t>(teams, most / cluster));
}

}  // namespace

const KernelFamily kNormKernels{"all_reduce_rms_norm", norm_uses};
const KernelFamily kNormClusterKernels{"clusters of all_reduce_rms_norm", cluster_uses, 90, 1000,
                                       "kernels of thread-block clusters want 9.0 or later"};

const KernelFamily kNormTreeKernels{
    .name = "all_reduce_rms_norm in trees", .uses = tree_uses, .sums_in_trees = true};

const Resources& norm_resources() {
  static const Resources resources{
      {}, {}, nullptr, {&kNormKernels, &kNormClusterKernels, &kNormTreeKernels}, {}};
  return resources;
}

bool is_fused_strategy(const std::string& strategy) {
  return strategy == "one_shot" || strategy == "two_shot";
}

NormTuning norm_tuning_from(const std::string& strategy,
                            const std::map<std::string, std::int64_t>& params) {
  NormTuning tuning;
  tuning.strategy = strategy;
  const auto is_power_to_8 = [](std::int64_t value) {
    return value == 1 || value == 2 || value == 4 || value == 8;
  };
  for (const auto& [name, value] : params) {
    int* place = nullptr;
    if (name == "units" && is_power_to_8(value)) place = &tuning.units;
    if (name == "cluster" && is_power_to_8(value)) place = &tuning.cluster;
    if (name == "blocks" && value >= 1 && value <= 1024) place = &tuning.blocks;
    if (name == "ahead" && value >= 0 && value <= 1024) place = &tuning.ahead;
    if (place == nullptr)
      throw Error(ErrorCode::invalid_argument,
                  text("parameter of all_reduce_rms_norm: wanted units or cluster (1, 2, 4, 8), "
                       "blocks (1 to 1024) or ahead (0 to 1024), found {}={}",
                       name, value));
    *place = static_cast<int>(value);
  }
  return tuning;
}

namespace {

/// Whether the caller demands sum_norm_cluster, whose threads hold a unit each.
bool wants_cluster(const NormTuning& tuning) { return tuning.cluster > 1 || tuning.units == 1; }

/// Fewest blocks that hold a row by a unit a thread.
unsigned least_cluster(const RmsNorm& norm) {
  const auto threads = static_cast<unsigned>(norm_threads(1));
  return std::bit_ceil((row_units(norm) + threads - 1) / threads);
}

unsigned most_blocks_of(const NormTuning& tuning, const Group& group) {
  return tuning.blocks != 0 ? std::min(group.blocks(), static_cast<unsigned>(tuning.blocks))
                            : group.blocks();
}

/// Returns the blocks of the cluster that holds a row of a one_shot; 0 = sum_norm_one_shot does.
unsigned cluster_of(const RmsNorm& norm, const NormTuning& tuning, const Group& group) {
  if (wants_cluster(tuning))
    return tuning.cluster != 0 ? static_cast<unsigned>(tuning.cluster) : least_cluster(norm);
  const bool chooses =
      tuning.cluster == 0 && tuning.units == 0 && tuning.ahead < 0 && tuning.blocks == 0;
  return chooses ? best_cluster(norm, group) : 0;
}

/// Whether a call goes by the kernel of two_shot.
bool is_by_two_shot(const RmsNorm& norm, const NormTuning& tuning, const Group& group) {
  if (!tuning.strategy.empty()) return tuning.strategy == "two_shot";
  if (wants_cluster(tuning)) return false;
  const std::uint64_t sent = static_cast<std::uint64_t>(group.ranks - 1) * input_bytes(norm);
  return sent > (group.ranks == 2 ? kOneShotBytesOfTwo : kOneShotBytes);
}

/// Returns why the demanded cluster does not hold the rows, and parameters that hold the rows;
/// "" = no reason.
std::string why_no_cluster(const RmsNorm& norm, const NormTuning& tuning, const Group& group) {
  if (!group.runs(kNormClusterKernels)) return group.lacks(kNormClusterKernels);
  if (tuning.strategy == "two_shot")
    return "clusters of blocks are for one_shot, found two_shot, which serves cluster=1 and units "
           "of 2, 4 or 8";
  if (tuning.units > 1)
    return text(
        "a thread of a cluster of {} holds 1 unit, found units={}; wanted cluster=1 or "
        "units=1",
        tuning.cluster, tuning.units);
  if (tuning.ahead > 0)
    return text("a cluster sends no row ahead, found ahead={}; wanted ahead=0 or cluster=1",
                tuning.ahead);
  const unsigned least = least_cluster(norm), most = most_blocks_of(tuning, group),
                 wanted = cluster_of(norm, tuning, group);
  if (wanted >= least && wanted <= most) return "";
  if (most < least && group.blocks() >= least)
    return text(
        "rows of {} elements want a cluster of at least {} blocks by a unit a thread, found "
        "blocks={}; wanted blocks={} or more, or units of 2, 4 or 8",
        norm.hidden, least, tuning.blocks, least);
  if (most < least)
    return text(
        "rows of {} elements want a cluster of at least {} blocks by a unit a thread, found at "
        "most {} blocks a launch; wanted sm_budget={} or more, or units of 2, 4 or 8",
        norm.hidden, least, group.blocks(), least);
  return text(
      "rows of {} elements want a cluster of {} to {} blocks by a unit a thread, found cluster={}; "
      "units of 2, 4 or 8 want none",
      norm.hidden, least, std::min(kMostCluster, std::bit_floor(most)), wanted);
}

}  // namespace

std::string why_no_params(const RmsNorm& norm, const NormTuning& tuning, const Group& group) {
  const bool is_tree = sums_in_tree(norm, group);
  if (is_tree && (wants_cluster(tuning) || tuning.units == 2))
    return text(
        "sums in the order {} want cluster=1 and units of 4 or 8, found cluster={}, "
        "units={}",
        name_of(group.sum_order), tuning.cluster, tuning.units);
  if (group.ranks > 1 && wants_cluster(tuning)) return why_no_cluster(norm, tuning, group);
  if (tuning.units <= 1 || holds_row(norm, tuning.units)) return "";
  return text("rows of {} elements want at least {} units a thread, found units={}", norm.hidden,
              units_of(norm, 2), tuning.units);
}

NormLaunch norm_launch(const RmsNorm& norm, const NormTuning& tuning, const Group& group) {
  NormLaunch launch;
  const auto peers = static_cast<std::uint64_t>(group.ranks - 1);
  const bool is_two_shot = is_by_two_shot(norm, tuning, group);
  const std::uint64_t packets =
      std::min(bytes_of_call(group, kSentinelPackets) / kSentinelPacketBytes, kMostPackets);
  const std::uint64_t slot_rows = packets / (peers * row_units(norm) * (is_two_shot ? 2 : 1));
  const std::uint64_t most =
      is_two_shot ? slot_rows * static_cast<std::uint64_t>(group.ranks) : slot_rows;
  launch.piece_rows = std::min(norm.rows, most);
  if (is_two_shot) launch.kernel = NormKernel::two_shot;
  if (const unsigned cluster = is_two_shot ? 0 : cluster_of(norm, tuning, group); cluster != 0) {
    launch.kernel = NormKernel::cluster;
    launch.units = 1;
    set_cluster_config(launch, norm, tuning, group, cluster, launch.piece_rows);
    return launch;
  }
  launch.units = tuning.units != 0 ? tuning.units : units_of(norm, group.ranks);
  set_config(launch, norm, tuning, group, launch.piece_rows);
  const bool has_one_row = launch.piece_rows <= launch.config.blocks;
  launch.ahead = tuning.ahead >= 0 ? tuning.ahead : has_one_row ? 0 : 1;
  return launch;
}

NormLaunch norm_launch_alone(const RmsNorm& norm, const NormTuning& tuning, const Group& group) {
  NormLaunch launch;
  launch.units = tuning.units > 1 ? tuning.units : units_of(norm, 2);
  launch.piece_rows = norm.rows;
  set_config(launch, norm, tuning, group, norm.rows);
  return launch;
}

std::string why_not_fused(const RmsNorm& norm, const NormTuning& tuning, const Group& group) {
  if (group.ranks == 1) return "one rank sums nothing";
  if (!group.runs(kNormKernels)) return group.lacks(kNormKernels);
  if (sums_in_tree(norm, group) && !group.runs(kNormTreeKernels))
    return group.lacks(kNormTreeKernels);
  if (norm_launch(norm, tuning, group).piece_rows == 0)
    return text(
        "the room of {} bytes for a call's packets is too small for a row of each rank (raise "
        "PLAIT_DEVICE_MEMORY)",
        bytes_of_call(group, kSentinelPackets));
  return "";
}

bool is_faster_fused(const RmsNorm& norm, const Group& group) {
  const std::uint64_t bytes = input_bytes(norm);
  const bool is_between = group.ranks == 2 && norm.rows > kFewRows && bytes < kFusedFrom &&
                          best_cluster(norm, group) == 0;
  // Without clusters a two_shot of more ranks has few blocks: a block for a row of each rank.
  const bool has_few_blocks =
      group.ranks > 2 && is_by_two_shot(norm, {}, group) && !group.runs(kNormClusterKernels);
  return bytes <= kFusedBytes && !is_between && !has_few_blocks;
}

NormCall::NormCall(const RmsNorm& norm, const NormTuning& tuning, EngineRank& rank, bool alone)
    : rank_(rank), norm_(norm) {
  const Group& group = rank.group();
  launch_ = alone ? norm_launch_alone(norm, tuning, group) : norm_launch(norm, tuning, group);
  const std::string sums =
      sums_in_tree(norm, group) ? tree_kernel(launch_.kernel) : sum_kernel(launch_.kernel);
  kernel_ = rank.kernels().find(alone ? kernel_name("norm_alone", norm.type, 0, launch_.units)
                                      : kernel_name(sums, norm.type, group.ranks, launch_.units));
  rank.fill_call(args_, all_reduce_of(norm, group.ranks));
  for (int peer = 0; !alone && peer < group.ranks; ++peer)
    args_.inbox[peer] = rank.at(kSentinelPackets, peer);
  args_.half_bytes = bytes_of_call(group, kSentinelPackets);
  args_.row_units = row_units(norm);
  const unsigned groups = (args_.row_units + kGroupUnits - 1) / kGroupUnits;
  args_.lanes = std::bit_ceil((groups + 1) / 2);
  args_.is_fp8 = norm.output == DataType::fp8e4m3 ? 1 : 0;
  args_.inverse_length = 1.0f / static_cast<float>(norm.hidden);
  args_.epsilon = norm.epsilon;
}

void NormCall::enqueue(const RmsNormBuffers& buffers, Stream stream) {
  NormArgs args = args_;
  args.ahead = launch_.ahead;
  args.slot_blocks = launch_.config.cluster;
  args.weight = buffers.weight;
  args.scale = buffers.scale;
  for (std::uint64_t row = 0; row < norm_.rows; row += launch_.piece_rows) {
    const std::uint64_t rows = std::min(launch_.piece_rows, norm_.rows - row);
    const std::uint64_t at = row * norm_.hidden;
    args.input = static_cast<const char*>(buffers.input) + at * bytes_of(norm_.type);
    args.residual = static_cast<char*>(buffers.residual) + at * bytes_of(norm_.type);
    args.output = static_cast<char*>(buffers.output) + at * bytes_of(norm_.output);
    args.rows = static_cast<std::uint32_t>(rows);
    args.count = rows * norm_.hidden;
    KernelLaunchConfig config = launch_.config;
    config.blocks =
        static_cast<unsigned>(std::min<std::uint64_t>(config.blocks, rows * config.cluster));
    rank_.kernels().launch(kernel_, config, stream, {&args});
  }
}

}  // namespace plait::cuda
