// Plans of several nodes before they are laid out as lanes: collectives in nodes and between them,
// in the order in which each rank's first stream meets them. What has streams of its own runs
// these.
#pragma once
#include <cstdint>
#include <vector>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait {

/// Where a rank stands among groups of ranks, such as nodes.
struct GroupPosition {
  int group = 0;
  int place = 0;
};

inline GroupPosition group_position_of(const std::vector<std::vector<int>>& groups, int rank) {
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (std::size_t place = 0; place < groups[group].size(); ++place)
      if (groups[group][place] == rank) return {static_cast<int>(group), static_cast<int>(place)};
  throw Error(ErrorCode::internal, text("rank ", rank, " is on no node"));
}

/// What a member of a call gives and gets, from the first byte on; of empty regions it has none.
struct NodePart {
  int rank = 0;
  Region src = {};
  Region dst = {};
  std::uint64_t src_stride = 0;  ///< in a node: from block to block; 0 = blocks touch
  std::uint64_t dst_stride = 0;
  Region before = {};  ///< in a node: each sum goes on from these bytes
};

struct NodeStep {
  /// inside: on the first stream of its ranks. across: on their second, behind what the first has.
  /// await: the first goes on behind that call. copy, sum: at one rank, on its first stream.
  enum class Action : std::uint8_t { inside, across, await, copy, sum } kind = Action::inside;
  Collective collective = Collective::all_reduce;
  std::uint64_t count = 0;
  int root = 0, peer = 0;  ///< among `parts`
  bool finish = false;
  std::vector<NodePart> parts;
  int across = -1;  ///< across, await: the number of that call
  Region dst = {};  ///< copy, sum
  std::vector<Region> srcs = {};
};

}  // namespace plait
