// Plans of several nodes as a sequence of collectives inside nodes and between them, in the order
// of each rank's first stream. NodeCalls lays the steps out as lanes; GPU communicators over nodes
// run the steps on streams of their own, and predictions price each step in a node by the engine
// that runs the step.
#pragma once
#include <cstdint>
#include <vector>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait {

/// Position of a rank among groups of ranks, for example nodes.
struct GroupPosition {
  int group = 0;
  int place = 0;
};

inline GroupPosition group_position_of(const std::vector<std::vector<int>>& groups, int rank) {
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (std::size_t place = 0; place < groups[group].size(); ++place)
      if (groups[group][place] == rank) return {static_cast<int>(group), static_cast<int>(place)};
  throw Error(ErrorCode::internal, text("rank {} is on no node", rank));
}

/// Regions that a member of a call gives (src) and gets (dst); empty = none.
struct NodePart {
  int rank = 0;
  Region src = {};
  Region dst = {};
  std::uint64_t src_stride = 0;  ///< inside a node: from block to block; 0 = no gaps
  std::uint64_t dst_stride = 0;
  Region before = {};  ///< inside a node: partial sum that each sum continues
};

/// Consecutive ops of a lane of a plan.
struct LaneOps {
  int lane = 0;
  int first = 0;
  int count = 0;
};

struct NodeStep {
  /// inside: a collective in a node, on the first stream of the ranks. across: a collective between
  /// nodes, on the second stream, after all that the first stream holds. await: the first stream
  /// waits for that call. copy, sum: at a single rank, on the rank's first stream.
  enum class Action : std::uint8_t { inside, across, await, copy, sum } kind = Action::inside;
  Collective collective = Collective::all_reduce;
  std::uint64_t count = 0;
  int root = 0, peer = 0;  ///< among `parts`
  bool finish = false;
  std::vector<NodePart> parts;
  int across = -1;  ///< across, await: number of the call between nodes
  Region dst = {};  ///< copy, sum
  std::vector<Region> srcs = {};
  /// inside, if the plan's lanes are written: each lane's wait for the step's begin and the ops
  /// behind the wait, without the signal of the end.
  std::vector<LaneOps> ops = {};
};

}  // namespace plait
