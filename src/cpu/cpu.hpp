// run_cpu(): runs one rank's part of a plan on the CPU, over arenas in memory that all ranks map.
// Ranks may be processes or threads. Communicators call it for host memory.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/node_library.hpp"
#include "plait/plan.hpp"

namespace plait {

/// Sizes of the parts of a rank's arena; equal on all ranks.
struct ArenaSizes {
  int ranks = 1;
  int flags_per_pair = 256;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t inbox_bytes = 0;  ///< one half
  std::uint64_t ring_bytes = 0;
  std::uint64_t relay_bytes = 0;  ///< scratch of places beyond the ranks; lies in rank 0's arena
  bool operator==(const ArenaSizes&) const = default;
};

/// Returns the size of a rank's arena: doorbell, flags, scratch, two inbox halves, ring, relay
/// GPUs.
std::uint64_t arena_bytes(const ArenaSizes& sizes);
/// Whether the plan fits.
bool fits(const Plan& plan, const ArenaSizes& sizes);
/// Returns the least sizes that hold the plan.
ArenaSizes sizes_for(const Plan& plan);

/// All ranks' arenas, as mapped by this rank. Zeroed before first use (flags start at 0).
struct Arenas {
  ArenaSizes sizes;
  std::vector<std::byte*> base;  ///< by rank; null = a rank of another node
};

/// Arguments of a call. epoch and parity are equal on all ranks.
struct CpuCall {
  const void* input = nullptr;
  void* output = nullptr;
  std::vector<double> scalars;     ///< premul_sum: every rank's factor; may be empty
  std::uint32_t epoch = 0;         ///< sum of epochs_per_call of all earlier calls
  int parity = 0;                  ///< number of earlier calls that used an inbox, mod 2
  std::int64_t deadline_ns = 0;    ///< steady_clock time after which a wait gives up
  NodeLibrary* library = nullptr;  ///< library that runs join ops; null = the plan has none
};

/// Checks during a wait, at least every 10 ms.
class Watch {
 public:
  virtual ~Watch() = default;
  /// Throws Error(peer_lost) or Error(aborted) to end the wait. `waiting_for` reads
  /// "rank 2 waits in lane r2.kernel op 5 for flag (owner 2, writer 0, index 1) >= 7".
  virtual void check(const std::string& waiting_for) = 0;
  /// Does other work of this thread during the wait; returns true to be called again soon.
  virtual bool meanwhile() { return false; }
};

/// Runs the lanes of `rank`, interleaved in this thread, until all have ended.
/// Error(timeout) past the deadline, naming rank, op and flag, or what `watch` throws.
void run_cpu(const Plan& plan, int rank, const Arenas& arenas, const CpuCall& call, Watch& watch);

/// dst := srcs[0] (op) srcs[1] ... in order, `count` elements, with SIMD and any alignment. 16-bit
/// and 8-bit floats accumulate in fp32 and are rounded once; the calling thread's float mode has no
/// effect. finish: avg divides by `ranks`. scales: a factor for each source (premul_sum), else
/// null. dst may be one of the srcs. order: in a tree, sources are summed in pairs (SumOrder).
void reduce_cpu(DataType type, ReduceOp op, void* dst, const void* const* srcs, int src_count,
                std::uint64_t count, int ranks, bool finish, const double* scales,
                SumOrder order = SumOrder::rank_order);

/// Whether 32-bit counter a has reached b, with wrap-around.
inline bool reached(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) >= 0;
}

}  // namespace plait
