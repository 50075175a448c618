// Converts a call's arguments to plait's request. Decisions depend on facts that all ranks share
// (collective, root, operation, bytes), never on this rank's layout in memory.
#pragma once
#include <optional>

#include "plait/communicator.hpp"
#include "shims/mpi/args/collective_args.hpp"
#include "shims/mpi/args/fallback.hpp"
#include "shims/mpi/args/layout.hpp"

namespace plait::mpi {

/// A call as all ranks see it, except `own`.
struct CallShape {
  Request request;
  std::uint64_t part_bytes = 0;  ///< largest part; with own_counts, this rank's part
  OwnCounts own;                 ///< in bytes; empty without own_counts
  bool has_own_counts() const { return !own.sends.empty(); }
};
std::uint64_t sum_of(const std::vector<std::uint64_t>& sizes);

/// This rank in a communicator.
struct RankPosition {
  int rank = 0;
  int ranks = 0;
  int nodes = 1;  ///< number of nodes of the ranks, the same on all ranks
};

/// Returns whether each rank's part is the whole message.
inline bool is_whole(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::broadcast;
}
/// Returns the message bytes of a call with parts of `count` elements.
inline std::uint64_t message_of(Collective collective, Count count, std::uint64_t element,
                                int ranks) {
  const auto parts = static_cast<std::uint64_t>(is_whole(collective) ? 1 : ranks);
  return static_cast<std::uint64_t>(count) * element * parts;
}
/// Type and count of a rank's part, as far as this rank knows them.
struct RankPart {
  Handle type;
  Count count;
};
[[gnu::always_inline]] inline RankPart part_of(const CollectiveArgs& args,
                                               const RankPosition& position) {
  const bool is_root = args.root == position.rank;
  const bool by_input = args.collective == Collective::gather    ? !is_root
                        : args.collective == Collective::scatter ? is_root
                                                                 : false;
  return by_input ? RankPart{args.in_type, args.in_count} : RankPart{args.out_type, args.out_count};
}

/// Returns an upper bound of the call's message bytes; ~0 if that takes a closer look.
std::uint64_t most_bytes(const CollectiveArgs& args);
/// Returns the message bytes of a call with equal parts, the same on all ranks; 0 = wrong call.
std::uint64_t even_bytes(const CollectiveArgs& args, const RankPosition& position);
/// Returns nothing for a call that must be forwarded: empty, wrong, or not plait's; `why` then has
/// the reason. With own_counts a rank's part may be empty though the call is not.
std::optional<CallShape> shape_of(const CollectiveArgs& args, const RankPosition& position,
                                  Fallback& why);

/// Returns whether this rank reads or writes GPU memory in the call.
bool touches_gpu_memory(const CollectiveArgs& args, const RankPosition& position);
/// Returns the GPU of all buffers of this rank, if engines can use them; else -1. `why` then has
/// the words for the reason, which hold if some buffer is in device memory.
int gpu_of_call(const CollectiveArgs& args, const CallShape& shape, const RankPosition& position,
                const char*& why);

}  // namespace plait::mpi
