// Which piece a rank pushes in each step of a ring of copy engines (engine_ring.hpp), and to whom.
#pragma once
#include <cstdint>

#include "plait/builder.hpp"

namespace plait::cuda {

/// Of an inbox: two pieces come while the two before them are passed on.
inline constexpr std::uint32_t kRingSlots = 4;
/// Where nobody asks for another size: larger pieces gain little, and the last is taken out late.
inline constexpr std::uint64_t kRingPieceBytes = 32ull << 20;

/// How a call's blocks are cut, the same on all ranks. In a step each rank pushes a piece, which is
/// less or nothing of a block that is smaller than others.
struct RingCut {
  Request request;  ///< all_gather, broadcast, send_recv or all_to_all
  std::uint64_t piece_bytes = 0;
  std::uint32_t steps = 0;
  std::uint32_t hops = 0;  ///< so many others get a rank's block, or blocks of it
  int ranks() const { return request.ranks; }
};
/// most_bytes: of a piece, not 0.
RingCut cut_ring(const Request& request, std::uint64_t most_bytes);
/// Of a broadcast. wished_bytes: of a piece; 0 = such that the ends of the chain wait least.
RingCut cut_chain(const Request& request, std::uint64_t most_bytes, std::uint64_t wished_bytes);

/// Whether copy engines gather it so: two ranks exchange (exchange_cut.hpp).
inline bool is_engine_ring(const Request& request) {
  return request.collective == Collective::all_gather && request.ranks > 2;
}

struct RingPiece {
  int owner = 0;                ///< who began with it
  std::uint64_t sent_from = 0;  ///< of its owner's input
  std::uint64_t from = 0;       ///< of the output of who gets it
  std::uint64_t bytes = 0;      ///< 0 = nothing
};
/// How many ranks on a rank pushes in a step: in an all_to_all one more in each turn.
int ranks_on(const RingCut& cut, std::uint32_t step);
/// What a rank pushes in a step: of its own input, or what came two steps before; of a broadcast
/// the rank before its root pushes nothing.
RingPiece pushed_by(const RingCut& cut, int rank, std::uint32_t step);
/// What of its own input a rank's output gets in a step.
RingPiece kept_by(const RingCut& cut, int rank, std::uint32_t step);

}  // namespace plait::cuda
