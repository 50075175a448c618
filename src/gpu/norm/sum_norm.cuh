// Kernels of all_reduce_rms_norm: rows travel as LL packets with sentinels, a team of threads sums
// a row, adds the residual and normalises the row. sum_norm_one_shot: every rank gets all ranks'
// rows; the team is a block. sum_norm_cluster: the same with a cluster of blocks, so that few rows
// use many SMs. sum_norm_two_shot: row i is summed by rank i % ranks, which sends the sum to all
// ranks. In all of them every rank adds the residual itself, so the sum is all that travels.
#pragma once
#include "gpu/ll/fused.cuh"
#include "gpu/norm/row_norm.cuh"

namespace plait::cuda {

inline constexpr int kRankOrderSum = static_cast<int>(ReduceOp::sum);

/// kOp: kRankOrderSum or kTreeSum.
template <DataType kType, int kRanks, int kUnits, int kOp, class Team = BlockTeam<kUnits>>
struct SumNorm {
  using Packet = NanSentinelPacket;
  using Call = FusedCall<kType, kOp, kRanks, Packet>;
  static constexpr int kTogether = Call::kTogether;
  /// Packets that a thread holds at once: eight would not fit in 64 registers.
  static constexpr int kMostHeld = is_lean_norm(kUnits) ? 4 : 8;

  const NormArgs& args;
  Call call;
  RowNorm<kType, kUnits, Team> norm;
  unsigned slot_units;  ///< packets of a slot

  __device__ SumNorm(const NormArgs& given, GroupSums& sums, unsigned slot)
      : args(given), call(given), norm(given, sums), slot_units(slot) {}

  /// Loads a unit of this rank's rows, which are aligned.
  __device__ Unit own(unsigned unit) const {
    const ulonglong2 pair = load_plain(static_cast<const ulonglong2*>(args.input) + unit);
    return {pair.x, pair.y};
  }
  /// Loads this rank's row.
  __device__ void load(unsigned row, Unit (&mine)[kUnits]) const {
#pragma unroll
    for (int k = 0; k < kUnits; ++k)
      if (norm.has(k)) mine[k] = own(row * args.row_units + norm.at(k));
  }
  /// Sends this rank's row to the ranks after it, from `first` to before `last` in the rotation. A
  /// rank that has given up sends no rows, since peers may not have read its packets of the call
  /// before last, and its rows may follow from results that were never written.
  __device__ void push(const Unit (&mine)[kUnits], unsigned slot_row, int first, int last) const {
    if (call.broken) return;
    for (int next = first; next < last; ++next)
      send(mine, Call::kParts, rank_after(args.rank, next, call.ranks()), slot_row);
  }
  __device__ void send(const Unit (&units)[kUnits], typename Call::Payload kind, int to,
                       unsigned slot_row) const {
#pragma unroll
    for (int k = 0; k < kUnits; ++k)
      if (norm.has(k))
        Packet::template send<kType>(packet(to, kind, args.rank, slot_row, k), units[k],
                                     call.flag());
  }
  __device__ char* packet(int owner, typename Call::Payload kind, int from, unsigned slot_row,
                          int k) const {
    return call.packet(owner, kind, from, slot_units, slot_row * args.row_units + norm.at(k));
  }
  /// Waits for all parts of a row, and sums them in rank order or in a tree.
  __device__ void reduce(unsigned row, unsigned slot_row, Unit (&sum)[kUnits]) {
    reduce(slot_row, sum, [&](int k) { return own(row * args.row_units + norm.at(k)); });
  }
  /// The same with this rank's units mine(k).
  template <class Mine>
  __device__ void reduce(unsigned slot_row, Unit (&sum)[kUnits], Mine mine) {
#pragma unroll
    for (int k = 0; k < kUnits; k += kTogether) {
      const int valid = norm.valid(k, kUnits < kTogether ? kUnits : kTogether);
      if (valid == 0) continue;
      call.template reduce<kMostHeld>(
          valid,
          [&](int u, int from) { return packet(args.rank, Call::kParts, from, slot_row, k + u); },
          [&](int u) { return mine(k + u); },
          [&](int u, const Unit& unit) {
            if (k + u < kUnits) sum[k + u] = unit;
          });
    }
  }
  /// Waits for the sum of a row from its owner.
  __device__ void gather(int from, unsigned slot_row, Unit (&sum)[kUnits]) {
    typename Packet::LoadedPacket got[kUnits];
    const auto slot = [&](int k) {
      return typename Call::ExpectedPacket{norm.has(k), from,
                                           packet(args.rank, Call::kResults, from, slot_row, k)};
    };
    if (!call.await_packets(got, slot)) return;
#pragma unroll
    for (int k = 0; k < kUnits; ++k)
      if (norm.has(k)) {
        Packet::clear(packet(args.rank, Call::kResults, from, slot_row, k));
        sum[k] = Packet::unit_of(got[k]);
      }
  }
  __device__ void end() {
    if (call.broken) fail_stream_at_end(args.state);
    end_fused_call(args.state, call.number);
  }
};

template <DataType kType, int kRanks, int kUnits, int kOp = kRankOrderSum>
__device__ void sum_norm_one_shot(const NormArgs& args) {
  wait_for_grid_before();
  PLAIT_SHARED(GroupSums, sums);
  SumNorm<kType, kRanks, kUnits, kOp> rows(args, sums, args.rows * args.row_units);
  const int mine = static_cast<int>((args.rows + gridDim.x - 1 - blockIdx.x) / gridDim.x);
  const auto row_of = [&](int i) { return blockIdx.x + static_cast<unsigned>(i) * gridDim.x; };
  rows.call.open();
  fence_earlier_clears(args, rows.call.number);
  for (int i = -args.ahead; i < mine; ++i) {
    if (i + args.ahead < mine) {
      Unit own[kUnits] = {};
      const unsigned row = row_of(i + args.ahead);
      rows.load(row, own);
      rows.push(own, row, 1, rows.call.ranks());
    }
    if (i < 0) continue;
    const unsigned row = row_of(i);
    Unit sum[kUnits];
    rows.norm.begin(row);
    rows.reduce(row, row, sum);
    if (!rows.norm.finish(row, sum, rows.call.broken, i + 1 == mine)) break;
  }
  rows.end();
}

#if PLAIT_SM_90
template <DataType kType, int kRanks, int kUnits>
__device__ void sum_norm_cluster(const NormArgs& args) {
  wait_for_grid_before();
  PLAIT_SHARED(GroupSums, sums);
  SumNorm<kType, kRanks, kUnits, kRankOrderSum, ClusterTeam<kUnits>> rows(
      args, sums, args.rows * args.row_units);
  const unsigned first = cluster_of_grid(), stride = grid_clusters();
  Unit mine[kUnits] = {}, sum[kUnits];
  const auto start = [&](unsigned row) {
    rows.load(row, mine);
    rows.norm.begin(row, row == first);
  };
  start(first);
  issue_loads();
  rows.call.open();
  fence_earlier_clears(args, rows.call.number);
  for (unsigned row = first; row < args.rows; row += stride) {
    if (row != first) start(row);
    rows.push(mine, row, 1, rows.call.ranks());
    rows.reduce(row, sum, [&](int k) { return k < kUnits ? mine[k] : Unit{}; });
    if (!rows.norm.finish(row, sum, rows.call.broken, row + stride >= args.rows)) break;
  }
  rows.end();
}
#endif

template <DataType kType, int kRanks, int kUnits, int kOp = kRankOrderSum>
__device__ void sum_norm_two_shot(const NormArgs& args) {
  wait_for_grid_before();
  PLAIT_SHARED(GroupSums, sums);
  const auto ranks = static_cast<unsigned>(kRanks == 0 ? args.ranks : kRanks);
  const auto rank = static_cast<unsigned>(args.rank);
  const unsigned slot_rows = (args.rows + ranks - 1) / ranks;
  SumNorm<kType, kRanks, kUnits, kOp> rows(args, sums, slot_rows * args.row_units);
  rows.call.open();
  fence_earlier_clears(args, rows.call.number);
  // Slot s holds rows s * ranks to s * ranks + ranks - 1, a row of each owner. A cluster of blocks
  // does all work for a slot, so that a block waits for the peers' clusters of the same number.
  const unsigned blocks = kRanks == 2 ? 1 : args.slot_blocks, member = blockIdx.x % blocks;
  const unsigned first = blockIdx.x / blocks, stride = gridDim.x / blocks;
  // Calls body for this block's rows of other owners, until body returns false.
  const auto each_of_others = [&](const auto& body) {
    for (unsigned slot = first; slot < slot_rows; slot += stride)
      for (unsigned next = 1 + member; next < ranks; next += blocks) {
        const int owner = rank_after(args.rank, static_cast<int>(next), static_cast<int>(ranks));
        const unsigned row = slot * ranks + static_cast<unsigned>(owner);
        if (row < args.rows && !body(row, static_cast<int>(next), owner)) return;
      }
  };
  each_of_others([&](unsigned row, int next, int) {
    Unit mine[kUnits];
    rows.load(row, mine);
    rows.push(mine, row / ranks, next, next + 1);
    return !rows.call.broken;
  });
  bool goes_on = true;
  // The blocks of a cluster take turns at the rows of this rank.
  for (unsigned slot = first + member * stride; goes_on && slot * ranks + rank < args.rows;
       slot += gridDim.x) {
    const unsigned row = slot * ranks + rank;
    Unit sum[kUnits];
    rows.norm.begin(row);
    rows.reduce(row, slot, sum);
    if (!rows.call.broken)
      for (int next = 1; next < static_cast<int>(ranks); ++next)
        rows.send(sum, decltype(rows)::Call::kResults,
                  rank_after(args.rank, next, static_cast<int>(ranks)), slot);
    goes_on = rows.norm.finish(row, sum, rows.call.broken);
  }
  if (goes_on)
    each_of_others([&](unsigned row, int, int owner) {
      Unit sum[kUnits];
      rows.norm.begin(row);
      rows.gather(owner, row / ranks, sum);
      return rows.norm.finish(row, sum, rows.call.broken);
    });
  rows.end();
}

}  // namespace plait::cuda
