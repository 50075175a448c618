// What tells that a collective is the MPI's, in a few steps and lines of memory: most calls are,
// and they are to cost next to nothing, also while the program's own data fill the caches.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>

#include "shims/mpi/attach.hpp"
#include "shims/mpi/counting.hpp"
#include "shims/mpi/gpu_memory.hpp"
#include "shims/mpi/shape.hpp"

namespace plait::mpi {

class CommState;

/// What this rank knows of a communicator: an attribute of it.
struct alignas(64) CommEntry {
  RankPosition position;
  CommState* state = nullptr;  ///< once attached
  bool uses_gpus = false;      ///< a rank of it does, as all its ranks have found
  std::uint64_t calls = 0;     ///< blocking ones, before that, that GPUs' memory would make plait's
};

/// How often what was known of a communicator has ended, from 1 on: its handle may come back.
extern constinit std::atomic<std::uint64_t> comm_generation;

/// By Collective: the message from which on a call may be plait's, wherever its buffers lie, and
/// from which on GPUs' memory makes it so, in calls that host memory does not. Since MPI_Init.
struct alignas(64) Thresholds {
  std::array<std::uint64_t, 16> any{};
  std::array<std::uint64_t, 16> gpu_only{};  ///< kNever where host memory does too
};
extern constinit Thresholds thresholds;

/// The last communicator and type of this thread's calls that were looked up; handles as they came.
struct alignas(64) LookupCache {
  Handle comm = 0;
  std::uint64_t comm_generation = 0;  ///< when it was looked up
  CommEntry* entry = nullptr;         ///< null where it is the MPI's for good
  Handle type = 0;                    ///< a predefined one
  std::uint64_t element = 0;
};
extern constinit thread_local LookupCache lookup_cache __attribute__((tls_model("initial-exec")));

/// Ranks ask each other in the first such call of a communicator, the second, the fourth, and so
/// on: a program that uses no GPU then pays next to nothing, and one that begins to use them late
/// is heard of before it has made as many calls again. Until then its buffers are staged.
inline bool is_vote_call(std::uint64_t calls) { return (calls & (calls - 1)) == 0; }

/// Whether GPUs' memory alone would make such a call plait's, and no rank is known to use any. Only
/// such blocking calls are counted, by all ranks alike.
inline bool may_be_unserved(Collective collective, const CommEntry& entry) {
  return !entry.uses_gpus && entry.state == nullptr && entry.position.nodes <= 1 &&
         thresholds.gpu_only[static_cast<std::size_t>(collective)] != kNever;
}

/// Whether a blocking call stays the MPI's, and no rank asks; counts it where it is large enough.
[[gnu::always_inline]] inline bool stays_unserved(const CollectiveArgs& args, CommEntry& entry,
                                                  std::uint64_t element) {
  if (!may_be_unserved(args.collective, entry)) return false;
  const std::uint64_t least = thresholds.gpu_only[static_cast<std::size_t>(args.collective)];
  const Count count = part_of(args, entry.position).count;
  if (message_of(args.collective, count, element, entry.position.ranks) < least) return true;
  if (is_vote_call(entry.calls + 1)) return false;
  ++entry.calls;
  return true;
}

/// Whether a call is the MPI's, and none of its buffers on this rank lie on a GPU. False where that
/// takes a closer look: a call of another communicator or type than the last, for example.
[[gnu::always_inline]] inline bool is_forwarded(const CollectiveArgs& args, bool is_blocking) {
  if (is_counting() || may_hold_gpu_memory()) return false;
  const std::uint64_t least = thresholds.any[static_cast<std::size_t>(args.collective)];
  const LookupCache& last = lookup_cache;
  if (least != kNever) {
    if (args.own_counts || args.counts) return false;
    if (args.in_type != last.type || args.out_type != last.type) return false;
    const Count count = std::max(args.in_count, args.out_count);
    if (args.in_count < 0 || args.out_count < 0 || count > 1 << 30) return false;
    if (message_of(args.collective, count, last.element, kMaxRanks) >= least) {
      if (args.comm != last.comm) return false;
      if (last.comm_generation != comm_generation.load(std::memory_order_acquire)) return false;
      if (last.entry == nullptr) return true;
      return is_blocking ? stays_unserved(args, *last.entry, last.element)
                         : last.entry->state == nullptr;
    }
  }
  return true;
}

}  // namespace plait::mpi
