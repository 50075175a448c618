// Translates a plan for the GPU: regions become (base, offset), flags become addresses, and
// adjacent ops of a kernel become a single launch.
#include "gpu/lanes/bound_plan.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "gpu/abi/lane_args.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

struct OpAccess {
  DeviceRegion region;
  std::uint64_t bytes;
  bool writes;
};

bool clash(const OpAccess& a, const OpAccess& b) {
  // input and output may be the same memory (in place). The proof of a plan covers that case only
  // for lanes that keep an order, so both count as a single base.
  const auto same = [](int base) { return base <= 1 ? 0 : base; };
  return (a.writes || b.writes) && same(a.region.base) == same(b.region.base) &&
         a.region.half == b.region.half && a.region.offset < b.region.offset + b.bytes &&
         b.region.offset < a.region.offset + a.bytes;
}

void check(bool holds, const std::string& wanted) {
  if (!holds) throw Error(ErrorCode::unsupported, text("plan cannot run on GPUs: {}", wanted));
}

DeviceRegion device_region(const Region& region) {
  return {region.offset, base_index(region.space, region.rank),
          static_cast<std::uint16_t>(region.space == Space::inbox ? 1 : 0), -1};
}

bool touches_ring(const Op& op) {
  if (op.kind == OpKind::copy)
    return op.dst.space == Space::ring || op.srcs[0].space == Space::ring;
  return op.kind == OpKind::reduce && op.dst.space == Space::ring;
}

std::uint64_t largest(const std::vector<std::uint64_t>& bytes) {
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

}  // namespace

std::uint16_t base_index(Space space, int rank) {
  int index = 0;
  switch (space) {
    case Space::input: index = 0; break;
    case Space::output: index = 1; break;
    case Space::scratch: index = 2 + rank; break;
    case Space::inbox: index = 2 + kMaxCudaRanks + rank; break;
    case Space::ring: index = 2 + 2 * kMaxCudaRanks + rank; break;
  }
  return static_cast<std::uint16_t>(index);
}

LaneTables::LaneTables(const Plan& plan, int rank, const DeviceArenaSizes& sizes,
                       const FlagAt& flag_at, std::uint64_t ring_bytes,
                       const LaneLaunchConfig& config)
    : plan_(plan) {
  check(plan.request.ranks <= kMaxCudaRanks, text("more than {} ranks", kMaxCudaRanks));
  check(plan.relay_devices.empty(), "scratch on GPUs outside the job is not supported");
  check(!plan.symmetric, "registered buffers are not supported");
  check(flags_per_pair(plan) <= kFlagsPerPair, text("more than {} flags a pair", kFlagsPerPair));
  check(largest(plan.scratch_bytes) <= sizes[kPlanScratch],
        text("scratch of {} bytes wanted, the arena has {}", largest(plan.scratch_bytes),
             sizes[kPlanScratch]));
  check(largest(plan.inbox_bytes) <= sizes[kPlanInbox],
        text("inbox of {} bytes wanted, the arena has {}", largest(plan.inbox_bytes),
             sizes[kPlanInbox]));
  check(largest(plan.ring_bytes) <= ring_bytes,
        text("host ring of {} bytes wanted, found {}", largest(plan.ring_bytes), ring_bytes));
  uses_inbox_ = largest(plan.inbox_bytes) != 0;
  if (plan.request.op == ReduceOp::premul_sum) origins_ = origins_of(plan);
  for (const bool whole : {false, true}) {
    if (whole) first_whole_ = static_cast<std::uint32_t>(segments_.size());
    for (std::size_t i = 0; i < plan.lanes.size(); ++i) {
      if (plan.lanes[i].rank != rank) continue;
      const auto index = static_cast<std::uint32_t>(i);
      if (whole)
        bind_whole(plan.lanes[i], index, flag_at, config);
      else
        bind_stream(plan.lanes[i], index, flag_at, config);
    }
  }
  share_blocks(config);
  for (const DeviceLane& segment : segments_) place_barriers(segment);
}

void LaneTables::begin_segment(std::uint32_t index) {
  DeviceLane segment{};
  segment.first_op = static_cast<std::uint32_t>(host_ops_.size());
  segment.first_counter = counter_count_++;
  segment.blocks = 1;
  segment.index = index;
  segments_.push_back(segment);
}

void LaneTables::bind_stream(const Lane& lane, std::uint32_t index, const FlagAt& flag_at,
                             const LaneLaunchConfig& config) {
  BoundLane bound;
  // Chunks through the host ring are small and many: a single launch replaces several calls per
  // chunk.
  const bool engine = lane.kind == LaneKind::copy_engine &&
                      std::none_of(lane.ops.begin(), lane.ops.end(), touches_ring);
  for (std::size_t i = 0; i < lane.ops.size(); ++i) {
    const Op& op = lane.ops[i];
    const bool in_inbox = op.kind == OpKind::copy &&
                          (op.dst.space == Space::inbox || op.srcs[0].space == Space::inbox);
    // Only the device knows the current inbox half (replays), so a kernel copies.
    if (engine && op.kind == OpKind::copy && !in_inbox) {
      bound.copies = true;
      LaneStep step;
      step.work = LaneStep::LaneWork::copy;
      step.dst = device_region(op.dst);
      step.src = device_region(op.srcs[0]);
      step.bytes = op.dst.bytes;
      bound.steps.push_back(step);
      continue;
    }
    const LaneStep::LaneWork work = !engine                     ? LaneStep::LaneWork::kernel
                                    : op.kind == OpKind::wait   ? LaneStep::LaneWork::waits
                                    : op.kind == OpKind::signal ? LaneStep::LaneWork::signals
                                                                : LaneStep::LaneWork::kernel;
    if (bound.steps.empty() || bound.steps.back().work != work) {
      begin_segment(index);
      LaneStep step;
      step.work = work;
      step.segment = static_cast<std::uint32_t>(segments_.size()) - 1;
      bound.steps.push_back(step);
    }
    append_op(op, index, static_cast<std::uint32_t>(i), flag_at, config);
    bound.steps.back().blocks = segments_.back().blocks;
    if (op.kind == OpKind::copy || op.kind == OpKind::reduce) bound.steps.back().threads = 512;
  }
  lanes_.push_back(std::move(bound));
}

void LaneTables::bind_whole(const Lane& lane, std::uint32_t index, const FlagAt& flag_at,
                            const LaneLaunchConfig& config) {
  begin_segment(index);
  for (std::size_t i = 0; i < lane.ops.size(); ++i)
    append_op(lane.ops[i], index, static_cast<std::uint32_t>(i), flag_at, config);
}

/// Limits the blocks of the single launch, and of the launches side by side, in proportion if not
/// all could run at once: running blocks would wait for ever for blocks that cannot start.
void LaneTables::share_blocks(const LaneLaunchConfig& config) {
  unsigned side_by_side = 0;
  for (const BoundLane& lane : lanes_) {
    unsigned most = 0;
    for (const LaneStep& step : lane.steps) most = std::max(most, step.blocks);
    side_by_side += most;
  }
  for (BoundLane& lane : lanes_)
    for (LaneStep& step : lane.steps) {
      if (step.work == LaneStep::LaneWork::copy) continue;
      if (side_by_side > config.most_blocks)
        step.blocks = std::max(1u, step.blocks * config.most_blocks / side_by_side);
      segments_[step.segment].blocks = step.blocks;
    }
  unsigned wanted = 0;
  for (std::size_t i = first_whole_; i < segments_.size(); ++i) wanted += segments_[i].blocks;
  for (std::size_t i = first_whole_; i < segments_.size(); ++i) {
    DeviceLane& segment = segments_[i];
    if (wanted > config.most_blocks)
      segment.blocks = std::max(1u, segment.blocks * config.most_blocks / wanted);
    segment.first_block = whole_blocks_;
    whole_blocks_ += segment.blocks;
  }
}

void LaneTables::append_op(const Op& op, std::uint32_t lane, std::uint32_t index,
                           const FlagAt& flag_at, const LaneLaunchConfig& config) {
  DeviceLane& segment = segments_.back();
  DeviceOp device{};
  device.kind = static_cast<std::uint32_t>(op.kind);
  device.index = index;
  if (op.kind == OpKind::signal || op.kind == OpKind::wait) {
    device.flag = flag_at(op.flag.owner, op.flag.writer, op.flag.index);
    device.value = op.value;
    device.peer =
        static_cast<std::uint32_t>(op.kind == OpKind::wait ? op.flag.writer : op.flag.owner);
    // Counters of a segment are consecutive: [0] is the barrier of the blocks, the rest count
    // arrivals.
    if (op.kind == OpKind::signal) device.arrivals = counter_count_++ - segment.first_counter;
  } else {
    check(op.srcs.size() <= kMaxSources, text("a reduction has more than {} sources", kMaxSources));
    device.dst = device_region(op.dst);
    device.bytes = op.dst.bytes;
    device.finish = op.finish ? 1 : 0;
    device.first_source = static_cast<std::uint32_t>(host_sources_.size());
    device.source_count = static_cast<std::uint32_t>(op.srcs.size());
    for (const Region& source : op.srcs) host_sources_.push_back(device_region(source));
    if (op.kind == OpKind::reduce && !origins_.empty())
      for (std::size_t s = 0; s < op.srcs.size(); ++s)
        host_sources_[device.first_source + s].origin = origins_[lane][index][s];
    const bool ring = touches_ring(op);
    const std::uint64_t useful = (op.dst.bytes + 8191) / 8192;  // 512 threads x 16 bytes
    const std::uint64_t cap = ring                        ? config.ring_blocks
                              : op.kind == OpKind::reduce ? config.reduce_blocks
                                                          : config.copy_blocks;
    segment.blocks = std::max(segment.blocks, static_cast<std::uint32_t>(std::min(useful, cap)));
  }
  host_ops_.push_back(device);
  ++segment.op_count;
}

void LaneTables::place_barriers(const DeviceLane& step) {
  std::vector<OpAccess> open;
  for (std::uint32_t i = step.first_op; i < step.first_op + step.op_count; ++i) {
    DeviceOp& op = host_ops_[i];
    const auto kind = static_cast<OpKind>(op.kind);
    if (kind == OpKind::signal || kind == OpKind::wait) continue;
    std::vector<OpAccess> mine{{op.dst, op.bytes, true}};
    for (std::uint32_t s = 0; s < op.source_count; ++s)
      mine.push_back({host_sources_[op.first_source + s], op.bytes, false});
    const bool clashes = std::any_of(mine.begin(), mine.end(), [&](const OpAccess& a) {
      return std::any_of(open.begin(), open.end(), [&](const OpAccess& b) { return clash(a, b); });
    });
    if (clashes) {
      op.barrier = 1;
      open.clear();
    }
    open.insert(open.end(), mine.begin(), mine.end());
  }
}

std::vector<char> LaneTables::image() const {
  std::vector<char> image;
  const auto append = [&](const auto& items) {
    const auto* first = reinterpret_cast<const char*>(items.data());
    image.insert(image.end(), first, first + items.size() * sizeof(items[0]));
  };
  append(segments_);
  append(host_ops_);
  append(host_sources_);
  append(std::vector<std::uint32_t>(counter_count_ + 1, 0));
  return image;
}

LaneImage LaneTables::parts_of(char* image) const {
  auto* const segments = reinterpret_cast<DeviceLane*>(image);
  auto* const ops = reinterpret_cast<DeviceOp*>(segments + segments_.size());
  auto* const sources = reinterpret_cast<DeviceRegion*>(ops + host_ops_.size());
  return {segments, ops, sources, reinterpret_cast<std::uint32_t*>(sources + host_sources_.size())};
}

BoundPlan::BoundPlan(const Plan& plan, int rank, const DeviceArena& arena,
                     const DeviceArenaSizes& sizes, std::uint64_t ring_bytes,
                     const LaneLaunchConfig& config, Stream upload)
    : LaneTables(
          plan, rank, sizes,
          [&arena](int owner, int writer, int index) {
            return &arena.flags(kPlanFlags, owner)->by[writer][index];
          },
          ring_bytes, config),
      image_(image()) {
  PLAIT_CUDA_CALL(memory_alloc, &memory_, image_.size());
  PLAIT_CUDA_CALL(memory_copy_async, memory_, reinterpret_cast<DevicePointer>(image_.data()),
                  image_.size(), upload);
  parts_ = parts_of(reinterpret_cast<char*>(memory_));
}

BoundPlan::~BoundPlan() {
  if (memory_ != 0) api().memory_free(memory_);
}

}  // namespace plait::cuda
