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
  std::uint64_t bytes;
};

ChainShape chain_shape(const Request& request);

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
/// Whom a rank sends what passes, the end of the chain what returns; nobody = -1.
PLAIT_ON_BOTH inline int receiver_of(const ChainShape& shape, int ranks, int rank) {
  const int next = next_in(shape, ranks, rank);
  return next >= 0 ? next : returns(shape) ? shape.root : -1;
}
/// Whether `from` sends data to `to`.
PLAIT_ON_BOTH inline bool sends(const ChainShape& shape, int ranks, int from, int to) {
  return receiver_of(shape, ranks, from) == to;
}
/// Of a message in one piece, whether `from` tells `to` that it is in the call. What passes tells
/// so of all ranks before, and what returns of all.
PLAIT_ON_BOTH inline bool greets(const ChainShape& shape, int ranks, int from, int to) {
  const auto place = [&](int rank) { return (rank + ranks - shape.first) % ranks; };
  return place(from) > place(to) && !(returns(shape) && to == shape.root);
}
/// Whether a rank's output gets what is here.
PLAIT_ON_BOTH inline bool keeps(const ChainShape& shape, int rank) {
  return shape.sums == 0 || (rank == shape.last && rank == shape.root);
}

}  // namespace plait
