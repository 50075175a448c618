// Who sends parts to whom in one hop, and what their owners do with them.
#pragma once
#include <cstdint>

namespace plait::cuda {

/// What an owner does with the parts that came.
enum TileHandling : std::int32_t {
  kReduceParts,  ///< all ranks' parts in rank order; the result to all readers
  kPassPart,     ///< the one part to all readers
  kPlaceParts,   ///< each to its place in the own output
};

/// A collective in one hop: each sender's part goes straight to its owner. Sets of ranks are masks.
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
};

}  // namespace plait::cuda
