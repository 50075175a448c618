// Residual and RMSNorm of a row by a team of threads (a block or a cluster of blocks), bit for bit
// as cpu/rms_norm.cpp. Kernels hand over a row's sum over all ranks, unit by unit, as soon as the
// packets are here.
#pragma once
#include "gpu/abi/norm_args.hpp"
#include "gpu/device/memory.cuh"

namespace plait::cuda {

/// Sums of the squares of each group of a row. Rows alternate between two places, so that a single
/// barrier per row suffices.
struct GroupSums {
  float of[2][kMostGroups];
  unsigned long long bytes[2];  ///< ByteCounter of clusters
};

/// Returns the sum of a group of a row, 0 behind the row.
__device__ inline float group_sum(const NormArgs& args, const GroupSums& sums, int turn,
                                  unsigned index) {
  return index * kGroupUnits < args.row_units ? sums.of[turn][index] : 0.0f;
}

/// A whole block holds a row.
template <int kUnits>
struct BlockTeam {
  static constexpr bool kHoldsWeight = false;
  __device__ explicit BlockTeam(GroupSums&) {}
  /// Called before the first give() of a row.
  __device__ void prepare(GroupSums&, int) {}
  /// First unit of a thread. Each of its other units is stride() behind the one before.
  __device__ unsigned first() const { return threadIdx.x; }
  __device__ unsigned stride() const { return blockDim.x; }
  /// Stores the sum of a group; each lane of the warp has the sum.
  __device__ void give(GroupSums& sums, int turn, unsigned group, float sum, bool) const {
    if (threadIdx.x % kGroupUnits == 0) sums.of[turn][group] = sum;
  }
  /// Waits for the sums of all groups. Returns true if any thread of the team was broken off.
  __device__ bool meet(GroupSums&, int, const NormArgs&, bool is_broken) {
    return __syncthreads_or(is_broken ? 1 : 0) != 0;
  }
};

#if PLAIT_SM_90
/// All blocks of a cluster hold a row, each a part: sums of groups go to every block's shared
/// memory, and a negative sum says that a thread was broken off. Blocks of a cluster of one meet at
/// their own barrier.
template <int kUnits>
struct ClusterTeam {
  static constexpr bool kHoldsWeight = true;
  BlockTeam<kUnits> alone;
  const unsigned blocks = cluster_blocks();
  unsigned rows = 0;  ///< rows begun
  __device__ explicit ClusterTeam(GroupSums& sums) : alone(sums) {
    if (blocks == 1) return;
    if (threadIdx.x == 0)
      for (ByteCounter& counter : sums.bytes) init_bytes(&counter);
    cluster_arrive();
  }
  __device__ unsigned first() const {
    return block_of_cluster() * blockDim.x * kUnits + threadIdx.x;
  }
  __device__ unsigned stride() const { return blockDim.x; }
  __device__ unsigned bytes() const {
    return blocks * (blockDim.x / kGroupUnits) * kUnits * static_cast<unsigned>(sizeof(float));
  }
  /// No block's shared memory takes stores before all blocks run.
  __device__ void prepare(GroupSums& sums, int turn) {
    if (blocks == 1) return;
    if (rows++ == 0) cluster_wait();
    if (threadIdx.x == 0) expect_bytes(&sums.bytes[turn], bytes());
  }
  __device__ void give(GroupSums& sums, int turn, unsigned group, float sum, bool is_broken) const {
    if (blocks == 1) return alone.give(sums, turn, group, sum, is_broken);
    const unsigned lane = threadIdx.x % kGroupUnits;
    const bool is_any_broken = any_of_warp(is_broken);
    if (lane < blocks)
      store_in_block(&sums.of[turn][group], &sums.bytes[turn], lane, is_any_broken ? -1.0f : sum);
  }
  __device__ bool meet(GroupSums& sums, int turn, const NormArgs& args, bool is_broken) {
    if (blocks == 1) return alone.meet(sums, turn, args, is_broken);
    await_bytes(&sums.bytes[turn], (rows - 1) / 2);
    const unsigned first = 2 * (threadIdx.x & (args.lanes - 1));
    const bool is_any_broken =
        group_sum(args, sums, turn, first) < 0.0f || group_sum(args, sums, turn, first + 1) < 0.0f;
    return any_of_warp(is_any_broken);
  }
};
#endif

template <DataType kType>
__device__ inline float element(const Unit& unit, int index) {
  const unsigned long long word = index < 4 ? unit.lo : unit.hi;
  return DeviceNumber<kType>::up(static_cast<std::uint16_t>(word >> (index % 4 * 16)));
}

/// Rounds eight elements to the type. A NaN becomes the type's canonical NaN.
template <DataType kType>
__device__ inline Unit rounded(const float (&wide)[8]) {
  using N = DeviceNumber<kType>;
  unsigned pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float x = wide[2 * i], y = wide[2 * i + 1];
    pairs[i] = N::pair(x, y);
    if (x != x) pairs[i] = (pairs[i] & 0xffff0000u) | N::kNan;
    if (y != y) pairs[i] = (pairs[i] & 0xffffu) | N::kNan << 16;
  }
  return {pairs[0] | static_cast<unsigned long long>(pairs[1]) << 32,
          pairs[2] | static_cast<unsigned long long>(pairs[3]) << 32};
}

/// A thread's units of rows.
template <DataType kType, int kUnits, class Team = BlockTeam<kUnits>>
class RowNorm {
 public:
  __device__ RowNorm(const NormArgs& args, GroupSums& sums)
      : args_(args), sums_(sums), team_(sums) {
    if (args.is_fp8 != 0 && args.scale != nullptr) scale_ = *args.scale;
  }
  __device__ unsigned at(int k) const {
    return team_.first() + static_cast<unsigned>(k) * team_.stride();
  }
  __device__ bool has(int k) const { return at(k) < args_.row_units; }
  /// Returns how many of the units k, k + 1, ... below k + together the row has.
  __device__ int valid(int k, int together) const {
    int valid = 0;
    while (valid < together && has(k + valid)) ++valid;
    return valid;
  }

  /// Loads the residual's row. To be called before a wait for the row's packets. is_first: the
  /// team's first row.
  __device__ void begin(unsigned row, bool is_first = false) {
#pragma unroll
    for (int k = 0; k < kUnits; ++k)
      if (has(k)) held_[k] = load(static_cast<const char*>(args_.residual), row, k);
    if constexpr (Team::kHoldsWeight)
      if (is_first) load_weight();
  }
  /// Adds the sum to the residual, stores the new residual and the normalised row. All threads of
  /// the team call it together. Returns false on all if any was broken off. is_last: the team
  /// awaits no packet behind this row's.
  __device__ bool finish(unsigned row, const Unit (&sum)[kUnits], bool is_broken,
                         bool is_last = false) {
    float squares[kUnits];
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      squares[k] = 0.0f;
      if (!has(k)) continue;
      held_[k] = added(sum[k], held_[k]);
      store(static_cast<char*>(args_.residual), row, k, held_[k]);
      squares[k] = sum_of_squares(held_[k]);
    }
    if constexpr (!Team::kHoldsWeight) load_weight();
#pragma unroll
    for (unsigned mask = 1; mask < kGroupUnits; mask *= 2)
#pragma unroll
      for (int k = 0; k < kUnits; ++k) squares[k] += from_lane(squares[k], mask);
    team_.prepare(sums_, turn_);
#pragma unroll
    for (int k = 0; k < kUnits; ++k)
      team_.give(sums_, turn_, at(k) / kGroupUnits, squares[k], is_broken);
    const float inverse_scale = args_.is_fp8 != 0 ? 1.0f / scale_ : 1.0f;
    if (team_.meet(sums_, turn_, args_, is_broken)) return false;
    if (is_last) let_next_grid_start();
    const float factor = 1.0f / sqrtf(total() * args_.inverse_length + args_.epsilon);
    turn_ ^= 1;
#pragma unroll
    for (int k = 0; k < kUnits; ++k)
      if (has(k)) put(row, k, factor, weight_[k], inverse_scale);
    return true;
  }

 private:
  __device__ void load_weight() {
#pragma unroll
    for (int k = 0; k < kUnits; ++k)
      if (has(k)) weight_[k] = load(static_cast<const char*>(args_.weight), 0, k);
  }
  __device__ unsigned long long unit_of(unsigned row, int k) const {
    return static_cast<unsigned long long>(row) * args_.row_units + at(k);
  }
  __device__ Unit load(const char* rows, unsigned row, int k) const {
    const ulonglong2 pair = load_plain(reinterpret_cast<const ulonglong2*>(rows) + unit_of(row, k));
    return {pair.x, pair.y};
  }
  __device__ void store(char* rows, unsigned row, int k, const Unit& unit) const {
    store_plain(reinterpret_cast<ulonglong2*>(rows) + unit_of(row, k),
                make_ulonglong2(unit.lo, unit.hi));
  }
  __device__ static Unit added(const Unit& sum, const Unit& residual) {
    float wide[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) wide[i] = element<kType>(sum, i) + element<kType>(residual, i);
    return rounded<kType>(wide);
  }
  /// A balanced tree of neighbours, as all sums of squares of a row.
  __device__ static float sum_of_squares(const Unit& unit) {
    float tree[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) tree[i] = element<kType>(unit, i) * element<kType>(unit, i);
#pragma unroll
    for (int width = 1; width < 8; width *= 2)
#pragma unroll
      for (int i = 0; i < 8; i += 2 * width) tree[i] += tree[i + width];
    return tree[0];
  }
  /// Every warp adds up all groups.
  __device__ float total() const {
    const unsigned first = 2 * (threadIdx.x & (args_.lanes - 1));
    float sum = group_sum(args_, sums_, turn_, first) + group_sum(args_, sums_, turn_, first + 1);
    for (unsigned mask = 1; mask < args_.lanes; mask *= 2) sum += from_lane(sum, mask);
    return sum;
  }
  __device__ void put(unsigned row, int k, float factor, const Unit& weight,
                      float inverse_scale) const {
    float wide[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      wide[i] = element<kType>(held_[k], i) * factor * element<kType>(weight, i);
    if (args_.is_fp8 == 0)
      return store(static_cast<char*>(args_.output), row, k, rounded<kType>(wide));
    unsigned long long codes = 0;
#pragma unroll
    for (int i = 0; i < 8; i += 2)
      codes |= static_cast<unsigned long long>(
                   pair_of_e4m3(wide[i] * inverse_scale, wide[i + 1] * inverse_scale))
               << (8 * i);
    store_plain(static_cast<unsigned long long*>(args_.output) + unit_of(row, k), codes);
  }

  const NormArgs& args_;
  GroupSums& sums_;
  Team team_;
  Unit held_[kUnits];  // residual, then the new residual
  Unit weight_[kUnits];
  float scale_ = 1.0f;  // of fp8 results
  int turn_ = 0;
};

/// The norm alone: the sums are args.input, which may be the output.
template <DataType kType, int kUnits>
__device__ void rms_norm(const NormArgs& args) {
  wait_for_grid_before();
  PLAIT_SHARED(GroupSums, sums);
  RowNorm<kType, kUnits> norm(args, sums);
  for (unsigned row = blockIdx.x; row < args.rows; row += gridDim.x) {
    norm.begin(row);
    Unit sum[kUnits];
#pragma unroll
    for (int k = 0; k < kUnits; ++k)
      if (norm.has(k)) {
        const auto* const units = static_cast<const ulonglong2*>(args.input);
        const ulonglong2 pair =
            load_plain(units + static_cast<unsigned long long>(row) * args.row_units + norm.at(k));
        sum[k] = {pair.x, pair.y};
      }
    norm.finish(row, sum, false);
  }
  let_next_grid_start();
}

}  // namespace plait::cuda
