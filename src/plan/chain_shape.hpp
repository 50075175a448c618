// The order of ranks in a chain broadcast or chain reduce, and each rank's receiver. Chain kernels
// (gpu/ll) and chain plans (shots.cpp) read the same value.
#pragma once
#include <cstdint>

#ifndef PLAIT_ON_BOTH  // gpu/abi/direct_shape.hpp states the needs of a compiler for GPUs
#define PLAIT_ON_BOTH
#endif

namespace plait {

struct Request;

/// Broadcast: the message goes from the root to root + 1, root + 2, ...; each rank keeps a copy.
/// Reduce: each rank adds its input to the partial sum of ranks 0, 1, ...: sums are in rank order.
/// The last rank is the root, or returns the sum to the root, rank 0. Of two ranks the root is the
/// last: the root has both inputs, and adds the inputs in rank order.
struct ChainShape {
  std::int32_t first, last;
  std::int32_t root;
  std::int32_t sums;  ///< 1 = a reduce
  std::uint64_t bytes;
};

ChainShape chain_shape(const Request& request);

/// The rank after `rank` in the chain; -1 = none.
PLAIT_ON_BOTH inline int next_in(const ChainShape& shape, int ranks, int rank) {
  return rank == shape.last ? -1 : (rank + 1) % ranks;
}
/// The rank before `rank` in the chain; -1 = none.
PLAIT_ON_BOTH inline int before_in(const ChainShape& shape, int ranks, int rank) {
  return rank == shape.first ? -1 : (rank + ranks - 1) % ranks;
}
/// Whether the last rank of the chain sends the sum back to the first.
PLAIT_ON_BOTH inline bool returns(const ChainShape& shape) {
  return shape.sums != 0 && shape.last != shape.root;
}
/// The rank that `rank` sends to: the next in the chain; the root for a last rank that returns the
/// sum; -1 = none.
PLAIT_ON_BOTH inline int receiver_of(const ChainShape& shape, int ranks, int rank) {
  const int next = next_in(shape, ranks, rank);
  return next >= 0 ? next : returns(shape) ? shape.root : -1;
}
/// Whether `from` sends data to `to`.
PLAIT_ON_BOTH inline bool sends(const ChainShape& shape, int ranks, int from, int to) {
  return receiver_of(shape, ranks, from) == to;
}
/// Whether `from` signals to `to` that it has entered the call, for a message in one piece. Data
/// from rank r implies that all ranks up to r have entered. Therefore only later ranks signal
/// earlier ranks. The returned sum implies that all ranks have entered.
PLAIT_ON_BOTH inline bool greets(const ChainShape& shape, int ranks, int from, int to) {
  const auto place = [&](int rank) { return (rank + ranks - shape.first) % ranks; };
  return place(from) > place(to) && !(returns(shape) && to == shape.root);
}
/// Whether `rank` writes the received message or sum to its own output.
PLAIT_ON_BOTH inline bool keeps(const ChainShape& shape, int rank) {
  return shape.sums == 0 || (rank == shape.last && rank == shape.root);
}

}  // namespace plait
