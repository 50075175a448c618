// A call's arguments -> plait's request. What is chosen goes by what all ranks have alike
// (collective, root, operation, bytes), never by what only this rank has (its layout in memory).
#pragma once
#include <optional>

#include "plait/communicator.hpp"
#include "shims/mpi/collective_args.hpp"
#include "shims/mpi/layout.hpp"

namespace plait::mpi {

/// What all ranks of a call find alike, but for what `own` holds.
struct CallShape {
  Request request;
  std::uint64_t part_bytes = 0;  ///< of one rank's part, the largest; by own counts of this rank's
  OwnCounts own;                 ///< bytes; empty where the request says all
  bool has_own_counts() const { return !own.sends.empty(); }
};
std::uint64_t sum_of(const std::vector<std::uint64_t>& sizes);

/// This rank in a communicator.
struct RankPosition {
  int rank = 0;
  int ranks = 0;
  int nodes = 1;  ///< that its ranks are on, as all of them know
};

/// Whether all ranks' parts are one message, and not parts of one.
inline bool is_whole(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::broadcast;
}
/// The message of a call whose parts have so many elements each.
inline std::uint64_t message_of(Collective collective, Count count, std::uint64_t element,
                                int ranks) {
  const auto parts = static_cast<std::uint64_t>(is_whole(collective) ? 1 : ranks);
  return static_cast<std::uint64_t>(count) * element * parts;
}
/// The type and count of one rank's part that this rank knows.
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

/// No message of the call is larger; ~0 where that takes a closer look.
std::uint64_t most_bytes(const CollectiveArgs& args);
/// The message of a call whose parts are alike, as all ranks find it; 0 where it is wrong.
std::uint64_t even_bytes(const CollectiveArgs& args, const RankPosition& position);
/// Nothing where the call must pass on: it is empty, wrong, or not plait's. By own counts a rank's
/// part may be empty, and the call is not.
std::optional<CallShape> shape_of(const CollectiveArgs& args, const RankPosition& position);

/// Whether any of the data that this rank reads or writes lie on a GPU.
bool touches_gpu_memory(const CollectiveArgs& args, const RankPosition& position);
/// The GPU that all buffers of this rank lie on, each as plait wants it; -1 where one does not.
int gpu_of_call(const CollectiveArgs& args, const CallShape& shape, const RankPosition& position);

}  // namespace plait::mpi
