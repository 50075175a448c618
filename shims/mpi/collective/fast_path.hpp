// Fast path: decides with a few loads that a collective goes to the native MPI. Most calls do, and
// must cost next to nothing even if the program's data fill the caches.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>

#include "shims/mpi/args/counting.hpp"
#include "shims/mpi/args/gpu_memory.hpp"
#include "shims/mpi/args/shape.hpp"
#include "shims/mpi/collective/attach.hpp"

namespace plait::mpi {

class ServedComm;

/// Cache entry of a communicator, stored as an attribute.
struct alignas(64) CommEntry {
  RankPosition position;
  ServedComm* state = nullptr;  ///< null until attached
  bool uses_gpus = false;       ///< all ranks have found that a rank does
  std::uint64_t calls = 0;  ///< blocking calls before that which only GPU memory would make plait's
};

/// Counts freed communicators, from 1 on: a freed handle may be reused.
extern constinit std::atomic<std::uint64_t> comm_generation;

/// Smallest messages that plait may serve, indexed by Collective; set by MPI_Init. any: at any
/// buffer location. gpu_only: in GPU memory, for collectives not served in host memory.
struct alignas(64) Thresholds {
  std::array<std::uint64_t, 16> any{};
  std::array<std::uint64_t, 16> gpu_only{};  ///< kNever if host memory is served too
};
extern constinit Thresholds thresholds;

/// The communicator and the type that this thread looked up last, as the program passed them.
struct alignas(64) LookupCache {
  Handle comm = 0;
  std::uint64_t comm_generation = 0;  ///< at the look-up
  CommEntry* entry = nullptr;         ///< null = the communicator is always native
  Handle type = 0;                    ///< a predefined type
  std::uint64_t element = 0;
};
extern constinit thread_local LookupCache lookup_cache __attribute__((tls_model("initial-exec")));

/// Ranks vote on GPU use in a communicator's first, second, fourth, eighth ... counted call. Votes
/// cost a program without GPUs next to nothing. A program that starts to use GPUs late is noticed
/// before the number of calls has doubled; until then the buffers are staged.
inline bool is_vote_call(std::uint64_t calls) { return (calls & (calls - 1)) == 0; }

/// Returns whether plait would serve a call only in GPU memory, and no rank is known to use GPUs.
/// Blocking calls of this kind are counted, by all ranks alike.
inline bool may_be_unserved(Collective collective, const CommEntry& entry) {
  return !entry.uses_gpus && entry.state == nullptr && entry.position.nodes <= 1 &&
         thresholds.gpu_only[static_cast<std::size_t>(collective)] != kNever;
}

/// Returns whether a blocking call is native without a vote; counts the call if large enough.
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

/// Returns whether a call is native and has no buffer of this rank on a GPU. False = the slow path
/// must decide, for example because the communicator or the type is not that of the last call.
[[gnu::always_inline]] inline bool is_forwarded(const CollectiveArgs& args, bool is_blocking) {
  if (is_recording() || may_hold_gpu_memory()) return false;
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
