// A collective in a single hop: to which owner each rank sends a part, and how owners use the
// parts. Kernels on GPUs and strategies read the same value.
#pragma once
#include <cstdint>

#ifndef PLAIT_ON_BOTH  // gpu/abi/direct_shape.hpp states the needs of a compiler for GPUs
#define PLAIT_ON_BOTH
#endif

namespace plait {

struct Request;

/// An owner's use of the parts received.
enum TileHandling : std::int32_t {
  kReduceParts,  ///< all ranks' parts in rank order; the result to all readers
  kPassPart,     ///< the single part to all readers
  kPlaceParts,   ///< each part to its place in the owner's output
};

/// Each sender's part goes straight to its owner. Sets of ranks are bit masks.
struct DirectShape {
  std::uint32_t senders;
  std::uint32_t owners;
  std::int32_t shift;     ///< not 0: a rank sends its parts to rank + shift only
  std::int32_t handling;  ///< kReduceParts or kPlaceParts
  std::uint64_t part_bytes;
  std::uint64_t part_stride;   ///< in the input, from an owner's part to the next
  std::uint64_t place_stride;  ///< in the output, from a sender's part to the next
  std::uint64_t own_from;      ///< part that stays on this rank: offset in the input
  std::uint64_t own_to;        ///< offset in the output
  std::uint64_t own_bytes;     ///< 0 = nothing stays
  std::uint32_t gives;         ///< bit k: this rank sends a part to rank + k; bit 0: a part stays
  std::uint32_t takes;         ///< bit k > 0: rank + k sends a part to this rank
};

/// Returns the shape for `rank`. own_*, gives and takes differ between ranks; the rest is the same
/// on every rank.
DirectShape direct_shape(const Request& request, int rank);

/// Whether `from` sends a part to `owner`.
PLAIT_ON_BOTH inline bool sends(const DirectShape& shape, int ranks, int from, int owner) {
  return from != owner && (shape.senders >> from & 1) != 0 && (shape.owners >> owner & 1) != 0 &&
         (shape.shift == 0 || (from + shape.shift) % ranks == owner);
}

/// Ranks (bits) of two that receive: only a receiver sees all paths of a call end.
PLAIT_ON_BOTH inline std::uint32_t takers_of_pair(const DirectShape& shape) {
  return (sends(shape, 2, 1, 0) ? 1u : 0u) | (sends(shape, 2, 0, 1) ? 2u : 0u);
}

/// Index of `from` among the ranks except `owner`: the slot of `from` in the owner's inbox.
PLAIT_ON_BOTH inline int place_among_others(int owner, int from) {
  return from - (from > owner ? 1 : 0);
}

}  // namespace plait
