// A collective along a chain of all ranks: what passes along it, in which order, and whom the end
// returns it to. Kernels on GPUs and plans read the same value.
#pragma once
#include <cstdint>

#ifndef PLAIT_ON_BOTH  // exec/cuda/traffic/hop_shape.hpp says what a compiler for GPUs needs
#define PLAIT_ON_BOTH
#endif

namespace plait {

struct Request;

/// Of a broadcast ranks root, root + 1, ... keep what passes. Of a reduce ranks 0, 1, ... add their
/// own to it, so that sums are in rank order; the last one is the root, or returns them to rank 0.
struct ChainShape {
  std::int32_t first, last;
  std::int32_t root;
  std::int32_t sums;  ///< 1 = a reduce
  /// Of one of several pieces: 1 = the root takes what returns of it while the next one passes, so
  /// that pieces follow each other with no gap. Not of the last two: the next call writes into the
  /// half of inboxes that the last but one had, once all have come to the last one.
  std::int32_t deferred;
  std::uint64_t bytes;
};

ChainShape chain_shape(const Request& request);
/// Of a piece of it, no longer than the one before.
ChainShape chain_piece(const ChainShape& whole, std::uint64_t offset, std::uint64_t bytes);

/// The rank after `rank`; none = -1.
PLAIT_ON_BOTH inline int next_in(const ChainShape& shape, int ranks, int rank) {
  return rank == shape.last ? -1 : (rank + 1) % ranks;
}
PLAIT_ON_BOTH inline int before_in(const ChainShape& shape, int ranks, int rank) {
  return rank == shape.first ? -1 : (rank + ranks - 1) % ranks;
}
/// Whether the end of the chain sends its sums back to where it begins.
PLAIT_ON_BOTH inline bool returns(const ChainShape& shape) {
  return shape.sums != 0 && shape.last != shape.root;
}
/// Whether `from` sends data to `to`.
PLAIT_ON_BOTH inline bool sends(const ChainShape& shape, int ranks, int from, int to) {
  return next_in(shape, ranks, from) == to ||
         (returns(shape) && from == shape.last && to == shape.root);
}
/// Whether `from` tells `to` that it is in the call. What passes tells so of all ranks before, and
/// what returns of all. Of a deferred piece the root hears of the one alone to which it sends, by a
/// line behind what it has not taken yet of a piece that is as long.
PLAIT_ON_BOTH inline bool greets(const ChainShape& shape, int ranks, int from, int to) {
  const auto place = [&](int rank) { return (rank + ranks - shape.first) % ranks; };
  if (place(from) <= place(to)) return false;
  if (!returns(shape) || to != shape.root) return true;
  return shape.deferred != 0 && place(from) == 1;
}
/// Whether a rank's output gets what is here.
PLAIT_ON_BOTH inline bool keeps(const ChainShape& shape, int rank) {
  return shape.sums == 0 || (rank == shape.last && rank == shape.root);
}

}  // namespace plait
