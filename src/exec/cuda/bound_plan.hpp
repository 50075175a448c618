// A plan -> what one GPU has to enqueue for it: for each lane of its rank, copies for the copy
// engines and stretches of ops for the lane kernel. Made once a plan, run any number of times.
#pragma once
#include <string>
#include <vector>

#include "exec/cuda/arena.hpp"
#include "exec/origins.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// A stretch of a lane: one copy by a copy engine, or one launch of the lane kernel.
struct Step {
  bool by_copy_engine = false;
  DeviceRegion dst{}, src{};        ///< copy engine
  std::uint64_t bytes = 0;
  std::uint32_t first_op = 0;       ///< lane kernel
  std::uint32_t op_count = 0;
  std::uint32_t first_counter = 0;
  unsigned blocks = 1;
  unsigned threads = 32;
};

struct BoundLane {
  std::string name;
  std::uint32_t index = 0;  ///< in the plan
  std::vector<Step> steps;
};

/// How many blocks kernel lanes get.
struct LaneSpread {
  unsigned reduce_blocks = 32;  ///< measured on HGX H200: enough to keep up with NVLink
  unsigned ring_blocks = 4;     ///< PCIe is slow: more would only take SMs away
};

class BoundPlan {
 public:
  /// Error(unsupported) where the plan needs what this executor has not (guests, symmetric buffers,
  /// more flags, scratch or inbox than the arena holds).
  BoundPlan(const Plan& plan, int rank, const DeviceArena& arena, std::uint64_t ring_bytes,
            const LaneSpread& spread);
  ~BoundPlan();
  BoundPlan(const BoundPlan&) = delete;
  BoundPlan& operator=(const BoundPlan&) = delete;

  const Plan& plan() const { return plan_; }
  const std::vector<BoundLane>& lanes() const { return lanes_; }
  const DeviceOp* ops() const { return reinterpret_cast<const DeviceOp*>(memory_); }
  const DeviceRegion* sources() const;
  std::uint32_t* counters() const;
  bool uses_inbox() const { return uses_inbox_; }

 private:
  void bind_lane(const Lane& lane, std::uint32_t index, const DeviceArena& arena,
                 const LaneSpread& spread);
  void append_op(Step& step, const Op& op, const DeviceArena& arena, std::uint32_t lane,
                 std::uint32_t index);
  void place_barriers(const Step& step);
  void upload();

  Plan plan_;
  int rank_;
  Origins origins_;  // premul_sum only
  std::vector<BoundLane> lanes_;
  std::vector<DeviceOp> host_ops_;
  std::vector<DeviceRegion> host_sources_;
  std::uint32_t counter_count_ = 0;
  bool uses_inbox_ = false;
  DevicePointer memory_ = 0;
};

/// Index into LaneArgs::bases.
std::uint16_t base_index(Space space, int rank);

}  // namespace plait::cuda
