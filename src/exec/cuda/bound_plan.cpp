// Regions become (base, offset), flags become addresses, and neighbouring ops that a kernel does
// become one launch.
#include "exec/cuda/bound_plan.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

struct Access {
  DeviceRegion region;
  std::uint64_t bytes;
  bool writes;
};

bool clash(const Access& a, const Access& b) {
  // input and output may be the same memory (in place): the plan's own proof covers that case
  // only for lanes that keep their order, so treat them as one base.
  const auto same = [](int base) { return base <= 1 ? 0 : base; };
  return (a.writes || b.writes) && same(a.region.base) == same(b.region.base) &&
         a.region.half == b.region.half && a.region.offset < b.region.offset + b.bytes &&
         b.region.offset < a.region.offset + a.bytes;
}

void check(bool holds, const std::string& wanted) {
  if (!holds) throw Error(ErrorCode::unsupported, text("this plan cannot run on GPUs: ", wanted));
}

DeviceRegion device_region(const Region& region) {
  return {region.offset, base_index(region.space, region.rank),
          static_cast<std::uint16_t>(region.space == Space::inbox ? 1 : 0), -1};
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

BoundPlan::BoundPlan(const Plan& plan, int rank, const DeviceArena& arena, std::uint64_t ring_bytes,
                     const LaneSpread& spread)
    : plan_(plan), rank_(rank) {
  check(plan.request.ranks <= kMaxCudaRanks, text("it has more than ", kMaxCudaRanks, " ranks"));
  check(plan.guests.empty(), "it borrows memory of GPUs outside the job");
  check(!plan.symmetric, "it needs registered buffers");
  check(flags_per_pair(plan) <= kFlagsPerPair, text("it has more than ", kFlagsPerPair, " flags a pair"));
  check(largest(plan.scratch_bytes) <= arena.sizes().scratch_bytes,
        text("it needs ", largest(plan.scratch_bytes), " bytes of scratch, the arena has ",
             arena.sizes().scratch_bytes));
  check(largest(plan.inbox_bytes) <= arena.sizes().inbox_bytes,
        text("it needs ", largest(plan.inbox_bytes), " bytes of inbox, the arena has ",
             arena.sizes().inbox_bytes));
  check(largest(plan.ring_bytes) <= ring_bytes,
        text("it needs ", largest(plan.ring_bytes), " bytes of host ring, there are ", ring_bytes));
  uses_inbox_ = largest(plan.inbox_bytes) != 0;
  if (plan.request.op == ReduceOp::premul_sum) origins_ = origins_of(plan);
  for (std::size_t i = 0; i < plan.lanes.size(); ++i)
    if (plan.lanes[i].rank == rank)
      bind_lane(plan.lanes[i], static_cast<std::uint32_t>(i), arena, spread);
  upload();
}

BoundPlan::~BoundPlan() {
  if (memory_ != 0) api().memory_free(memory_);
}

void BoundPlan::bind_lane(const Lane& lane, std::uint32_t index, const DeviceArena& arena,
                          const LaneSpread& spread) {
  BoundLane bound{lane.name, index, {}};
  for (std::size_t i = 0; i < lane.ops.size(); ++i) {
    const Op& op = lane.ops[i];
    const bool in_inbox = op.kind == OpKind::copy && (op.dst.space == Space::inbox ||
                                                      op.srcs[0].space == Space::inbox);
    // Which inbox half it is, only the device knows (replays): then a kernel copies.
    if (lane.kind == LaneKind::copy_engine && op.kind == OpKind::copy && !in_inbox) {
      Step step;
      step.by_copy_engine = true;
      step.dst = device_region(op.dst);
      step.src = device_region(op.srcs[0]);
      step.bytes = op.dst.bytes;
      bound.steps.push_back(step);
      continue;
    }
    if (bound.steps.empty() || bound.steps.back().by_copy_engine) {
      Step step;
      step.first_op = static_cast<std::uint32_t>(host_ops_.size());
      step.first_counter = counter_count_++;
      bound.steps.push_back(step);
    }
    Step& step = bound.steps.back();
    append_op(step, op, arena, index, static_cast<std::uint32_t>(i));
    if (op.kind == OpKind::copy || op.kind == OpKind::reduce) {
      const bool ring = op.dst.space == Space::ring ||
                        (op.kind == OpKind::copy && op.srcs[0].space == Space::ring);
      const std::uint64_t useful = (op.dst.bytes + 8191) / 8192;  // 512 threads x 16 bytes
      const std::uint64_t cap = ring ? spread.ring_blocks : spread.reduce_blocks;
      step.threads = 512;
      step.blocks = std::max(step.blocks, static_cast<unsigned>(std::min(useful, cap)));
    }
  }
  for (const Step& step : bound.steps)
    if (!step.by_copy_engine) place_barriers(step);
  lanes_.push_back(std::move(bound));
}

void BoundPlan::append_op(Step& step, const Op& op, const DeviceArena& arena, std::uint32_t lane,
                          std::uint32_t index) {
  DeviceOp device{};
  device.kind = static_cast<std::uint32_t>(op.kind);
  device.index = index;
  if (op.kind == OpKind::signal || op.kind == OpKind::wait) {
    device.flag = arena.flag(op.flag.owner, op.flag.writer, op.flag.index);
    device.value = op.value;
    device.peer = static_cast<std::uint32_t>(op.kind == OpKind::wait ? op.flag.writer : op.flag.owner);
    // Counters of a step are consecutive: [0] meets blocks, the others count arrivals.
    if (op.kind == OpKind::signal) device.arrivals = counter_count_++ - step.first_counter;
  } else {
    check(op.srcs.size() <= kMaxSources, text("a reduction has more than ", kMaxSources, " sources"));
    device.dst = device_region(op.dst);
    device.bytes = op.dst.bytes;
    device.finish = op.finish ? 1 : 0;
    device.first_source = static_cast<std::uint32_t>(host_sources_.size());
    device.source_count = static_cast<std::uint32_t>(op.srcs.size());
    for (const Region& source : op.srcs) host_sources_.push_back(device_region(source));
    if (op.kind == OpKind::reduce && !origins_.empty())
      for (std::size_t s = 0; s < op.srcs.size(); ++s)
        host_sources_[device.first_source + s].origin = origins_[lane][index][s];
  }
  host_ops_.push_back(device);
  ++step.op_count;
}

void BoundPlan::place_barriers(const Step& step) {
  std::vector<Access> open;
  for (std::uint32_t i = step.first_op; i < step.first_op + step.op_count; ++i) {
    DeviceOp& op = host_ops_[i];
    const auto kind = static_cast<OpKind>(op.kind);
    if (kind == OpKind::signal || kind == OpKind::wait) continue;
    std::vector<Access> mine{{op.dst, op.bytes, true}};
    for (std::uint32_t s = 0; s < op.source_count; ++s)
      mine.push_back({host_sources_[op.first_source + s], op.bytes, false});
    const bool clashes = std::any_of(mine.begin(), mine.end(), [&](const Access& a) {
      return std::any_of(open.begin(), open.end(), [&](const Access& b) { return clash(a, b); });
    });
    if (clashes) {
      op.barrier = 1;
      open.clear();
    }
    open.insert(open.end(), mine.begin(), mine.end());
  }
}

const DeviceRegion* BoundPlan::sources() const {
  return reinterpret_cast<const DeviceRegion*>(memory_ + host_ops_.size() * sizeof(DeviceOp));
}

std::uint32_t* BoundPlan::counters() const {
  return reinterpret_cast<std::uint32_t*>(memory_ + host_ops_.size() * sizeof(DeviceOp) +
                                          host_sources_.size() * sizeof(DeviceRegion));
}

void BoundPlan::upload() {
  const std::size_t ops = host_ops_.size() * sizeof(DeviceOp);
  const std::size_t sources = host_sources_.size() * sizeof(DeviceRegion);
  std::vector<char> image(ops + sources + (counter_count_ + 1) * sizeof(std::uint32_t), 0);
  std::copy_n(reinterpret_cast<const char*>(host_ops_.data()), ops, image.data());
  std::copy_n(reinterpret_cast<const char*>(host_sources_.data()), sources, image.data() + ops);
  PLAIT_CUDA_CALL(memory_alloc, &memory_, image.size());
  PLAIT_CUDA_CALL(memory_copy, memory_, reinterpret_cast<DevicePointer>(image.data()), image.size());
}

}  // namespace plait::cuda
