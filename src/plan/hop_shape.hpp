// A collective in one hop: who sends parts to whom, and what their owners do with them. Kernels on
// GPUs and strategies for plans read the same value.
#pragma once
#include <cstdint>

#ifndef PLAIT_ON_BOTH  // exec/cuda/traffic/hop_shape.hpp says what a compiler for GPUs needs
#define PLAIT_ON_BOTH
#endif

namespace plait {

struct Request;

/// What an owner does with the parts that came.
enum TileHandling : std::int32_t {
  kReduceParts,  ///< all ranks' parts in rank order; the result to all readers
  kPassPart,     ///< the one part to all readers
  kPlaceParts,   ///< each to its place in the own output
};

/// Each sender's part goes straight to its owner. Sets of ranks are masks.
struct HopShape {
  std::uint32_t senders;
  std::uint32_t owners;
  std::int32_t shift;     ///< not 0: a rank's parts go to rank + shift only
  std::int32_t handling;  ///< kReduceParts or kPlaceParts
  std::uint64_t part_bytes;
  std::uint64_t part_stride;   ///< in the input, from one owner's part to the next
  std::uint64_t place_stride;  ///< in the output, from one sender's part to the next
  std::uint64_t own_from;      ///< what stays on this rank: in the input,
  std::uint64_t own_to;        ///< in the output,
  std::uint64_t own_bytes;
  std::uint32_t gives;  ///< bit k: this rank has a part for rank + k, for k = 0 one that stays
  std::uint32_t takes;  ///< bit k: rank + k, another one, has a part for this one
};

/// As `rank` sees it; what stays there, gives and takes are its own, all else is the same on every
/// rank.
HopShape hop_shape(const Request& request, int rank);

/// Whether `from` sends a part to `owner`.
PLAIT_ON_BOTH inline bool sends(const HopShape& shape, int ranks, int from, int owner) {
  return from != owner && (shape.senders >> from & 1) != 0 && (shape.owners >> owner & 1) != 0 &&
         (shape.shift == 0 || (from + shape.shift) % ranks == owner);
}

/// Where what `from` sends lies among what the other ranks send to `owner`.
PLAIT_ON_BOTH inline int place_among_others(int owner, int from) {
  return from - (from > owner ? 1 : 0);
}

}  // namespace plait
