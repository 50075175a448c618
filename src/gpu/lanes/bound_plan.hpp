// Work that a GPU enqueues for a plan: for each lane of the rank, copies for the copy engines and
// segments of ops for the lane kernel. Made once per plan, run any number of times.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpu/abi/lane_args.hpp"
#include "gpu/arena/arena.hpp"
#include "plait/plan.hpp"
#include "plan/origins.hpp"

namespace plait::cuda {

/// A segment of a lane: a copy by a copy engine, or a launch of the lane kernel.
struct LaneStep {
  enum class LaneWork { copy, waits, signals, kernel };
  LaneWork work = LaneWork::kernel;
  DeviceRegion dst{}, src{};  ///< copy engine
  std::uint64_t bytes = 0;
  std::uint32_t segment = 0;  ///< lane kernel: index into the table of segments
  unsigned blocks = 1;
  unsigned threads = 32;
};

/// A lane on a separate stream.
struct BoundLane {
  bool copies = false;  ///< some step is a copy: waits and signals get separate streams
  std::vector<LaneStep> steps;
};

/// Blocks of lanes in kernels, `most_blocks` in total.
struct LaneLaunchConfig {
  unsigned reduce_blocks = 64;  ///< measured on HGX H200: enough to keep up with NVLink
  unsigned copy_blocks = 16;
  unsigned ring_blocks = 4;  ///< PCIe is slow: more would only take SMs away
  /// Blocks of a call, an SM each. All blocks of a call must run at once, also beside a call of
  /// another communicator: without a budget of SMs at most half of the blocks that fit at once.
  unsigned most_blocks = 64;
};

/// Tables of a plan that the lane kernel reads, in memory that the kernel reaches.
struct LaneImage {
  const DeviceLane* segments;
  const DeviceOp* ops;
  const DeviceRegion* sources;
  std::uint32_t* counters;
};

/// The tables, independent of the address.
class LaneTables {
 public:
  /// Address of the flag that `writer` raises in `owner`'s memory.
  using FlagAt = std::function<std::uint32_t*(int owner, int writer, int index)>;

  /// Error(unsupported) if the plan needs what this executor lacks (relay GPUs, symmetric buffers,
  /// more flags, scratch or inbox than the arena holds).
  LaneTables(const Plan& plan, int rank, const DeviceArenaSizes& sizes, const FlagAt& flag_at,
             std::uint64_t ring_bytes, const LaneLaunchConfig& config);

  const Plan& plan() const { return plan_; }
  /// Lanes as streams, with copies by copy engines.
  const std::vector<BoundLane>& lanes() const { return lanes_; }
  /// All lanes as a single launch, with copies by kernels: segments first_whole() and on, in
  /// whole_blocks() blocks.
  std::uint32_t first_whole() const { return first_whole_; }
  std::uint32_t whole_count() const {
    return static_cast<std::uint32_t>(segments_.size()) - first_whole_;
  }
  unsigned whole_blocks() const { return whole_blocks_; }
  bool uses_inbox() const { return uses_inbox_; }
  /// Bytes of the tables in memory that a kernel reads, and the addresses within. Counters are 0.
  std::vector<char> image() const;
  LaneImage parts_of(char* image) const;

 private:
  void bind_stream(const Lane& lane, std::uint32_t index, const FlagAt& flag_at,
                   const LaneLaunchConfig& config);
  void bind_whole(const Lane& lane, std::uint32_t index, const FlagAt& flag_at,
                  const LaneLaunchConfig& config);
  void share_blocks(const LaneLaunchConfig& config);
  void begin_segment(std::uint32_t index);
  void append_op(const Op& op, std::uint32_t lane, std::uint32_t index, const FlagAt& flag_at,
                 const LaneLaunchConfig& config);
  void place_barriers(const DeviceLane& segment);

  Plan plan_;
  Origins origins_;  // premul_sum only
  std::vector<BoundLane> lanes_;
  std::vector<DeviceLane> segments_;
  std::uint32_t first_whole_ = 0;
  unsigned whole_blocks_ = 0;
  std::vector<DeviceOp> host_ops_;
  std::vector<DeviceRegion> host_sources_;
  std::uint32_t counter_count_ = 0;
  bool uses_inbox_ = false;
};

/// Tables in this GPU's memory.
class BoundPlan : public LaneTables {
 public:
  /// Uploads the tables on `upload`; the plan must live until then.
  BoundPlan(const Plan& plan, int rank, const DeviceArena& arena, const DeviceArenaSizes& sizes,
            std::uint64_t ring_bytes, const LaneLaunchConfig& config, Stream upload);
  ~BoundPlan();
  BoundPlan(const BoundPlan&) = delete;
  BoundPlan& operator=(const BoundPlan&) = delete;

  const DeviceLane* segments() const { return parts_.segments; }
  const DeviceOp* ops() const { return parts_.ops; }
  const DeviceRegion* sources() const { return parts_.sources; }
  std::uint32_t* counters() const { return parts_.counters; }

 private:
  const std::vector<char> image_;
  DevicePointer memory_ = 0;
  LaneImage parts_{};
};

/// Returns the index into LaneArgs::bases.
std::uint16_t base_index(Space space, int rank);

}  // namespace plait::cuda
