// Residual and RMSNorm of a row by a team of threads (a block, a part of one, or a cluster of
// blocks), bit for bit as cpu/rms_norm.cpp. Kernels hand over a row's sum over all ranks, unit by
// unit, as soon as the packets are here.
#pragma once
#include "gpu/abi/norm_args.hpp"
#include "gpu/device/memory.cuh"

namespace plait::cuda {

/// Sums of the squares of each group of a row. Rows alternate between two places, so that a single
/// barrier per row suffices.
struct GroupSums {
  float of[2][kMostGroups];
  float broken[2];  ///< of clusters: not 0 after a thread of any block was broken off in the row
};

/// A whole block holds a row.
template <int kUnits>
struct BlockTeam {
  static constexpr bool kHoldsWeight = false;
  __device__ explicit BlockTeam(GroupSums&) {}
  __device__ void prepare() {}
  /// First unit of a thread. Each of its other units is stride() behind the one before.
  __device__ unsigned first() const { return threadIdx.x; }
  __device__ unsigned stride() const { return blockDim.x; }
  /// Stores the sum of a group; each lane of the warp has the sum.
  __device__ void give(float* sums, unsigned group, float sum) const {
    if (threadIdx.x % kGroupUnits == 0) sums[group] = sum;
  }
  /// Barrier of the team. Returns true if any of its threads was broken off.
  __device__ bool meet(int, bool is_broken) const {
    return __syncthreads_or(is_broken ? 1 : 0) != 0;
  }
};

/// The first threads of a block hold a row; the others (kNormSenders) send.
template <int kUnits>
struct WorkerTeam {
  static constexpr bool kHoldsWeight = is_lean_norm(kUnits);
  __device__ explicit WorkerTeam(GroupSums&) {}
  __device__ void prepare() {}
  __device__ unsigned first() const { return threadIdx.x; }
  __device__ unsigned stride() const { return blockDim.x - kNormSenders; }
  __device__ void give(float* sums, unsigned group, float sum) const {
    if (threadIdx.x % kGroupUnits == 0) sums[group] = sum;
  }
  __device__ bool meet(int, bool is_broken) const {
    return any_of_threads(kWorkerBarrier, stride(), is_broken);
  }
};

#if PLAIT_SM_90
/// All blocks of a cluster hold a row, each a part: sums of groups go to every block's shared
/// memory.
template <int kUnits>
struct ClusterTeam {
  static constexpr bool kHoldsWeight = kUnits == 1;
  GroupSums& sums;
  bool has_met = false;
  __device__ explicit ClusterTeam(GroupSums& given) : sums(given) {
    if (threadIdx.x == 0) sums.broken[0] = sums.broken[1] = 0.0f;
    cluster_arrive();
  }
  __device__ unsigned first() const {
    return block_of_cluster() * blockDim.x * kUnits + threadIdx.x;
  }
  __device__ unsigned stride() const { return blockDim.x; }
  /// Waits for the start of all blocks before the first store to another block.
  __device__ void prepare() {
    if (!has_met) cluster_wait();
    has_met = true;
  }
  __device__ void give(float* groups, unsigned group, float sum) const {
    const unsigned lane = threadIdx.x % kGroupUnits;
    if (lane < cluster_blocks()) store_in_block(groups + group, lane, sum);
  }
  /// A thread that goes on to the next row sets the other place: the threads of a row agree.
  __device__ bool meet(int turn, bool is_broken) const {
    if (is_broken)
      for (unsigned block = 0; block < cluster_blocks(); ++block)
        store_in_block(&sums.broken[turn], block, 1.0f);
    cluster_arrive();
    cluster_wait();
    return sums.broken[turn] != 0.0f;
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
    if (args.is_fp8 != 0) inverse_scale_ = args.scale == nullptr ? 1.0f : 1.0f / *args.scale;
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
  /// the team call it together. Returns false on all if any was broken off.
  __device__ bool finish(unsigned row, const Unit (&sum)[kUnits], bool is_broken) {
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
    team_.prepare();
#pragma unroll
    for (int k = 0; k < kUnits; ++k) team_.give(sums_.of[turn_], at(k) / kGroupUnits, squares[k]);
    if (team_.meet(turn_, is_broken)) return false;
    const float factor = 1.0f / sqrtf(total() * args_.inverse_length + args_.epsilon);
    turn_ ^= 1;
#pragma unroll
    for (int k = 0; k < kUnits; ++k)
      if (has(k)) put(row, k, factor, weight_[k]);
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
  __device__ float group(unsigned index) const {
    return index * kGroupUnits < args_.row_units ? sums_.of[turn_][index] : 0.0f;
  }
  /// Every warp adds up all groups.
  __device__ float total() const {
    const unsigned first = 2 * (threadIdx.x & (args_.lanes - 1));
    float sum = group(first) + group(first + 1);
    for (unsigned mask = 1; mask < args_.lanes; mask *= 2) sum += from_lane(sum, mask);
    return sum;
  }
  __device__ void put(unsigned row, int k, float factor, const Unit& weight) const {
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
                   pair_of_e4m3(wide[i] * inverse_scale_, wide[i + 1] * inverse_scale_))
               << (8 * i);
    store_plain(static_cast<unsigned long long*>(args_.output) + unit_of(row, k), codes);
  }

  const NormArgs& args_;
  GroupSums& sums_;
  Team team_;
  Unit held_[kUnits];  // residual, then the new residual
  Unit weight_[kUnits];
  float inverse_scale_ = 1.0f;
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
