// Cuts of rings by copy engines (engine_ring.hpp): piece and receiver of each push.
#pragma once
#include <cstdint>

#include "plait/builder.hpp"

namespace plait::cuda {

/// Slots of an inbox: two pieces arrive while the two pieces before are pushed on.
inline constexpr std::uint32_t kRingSlots = 4;
/// Bytes of a piece by default. Larger pieces gain little, and the last piece is taken out late.
inline constexpr std::uint64_t kRingPieceBytes = 32ull << 20;

/// Cut of a call's blocks, the same on all ranks. A piece of a small block is shorter or empty.
struct RingCut {
  Request request;  ///< all_gather, broadcast, send_recv or all_to_all
  std::uint64_t piece_bytes = 0;
  std::uint32_t steps = 0;
  std::uint32_t hops = 0;  ///< other ranks that get a rank's block, or blocks of it
  int ranks() const { return request.ranks; }
};
/// Cuts all collectives but broadcast. most_bytes: of a piece, not 0.
RingCut cut_ring(const Request& request, std::uint64_t most_bytes);
/// Cuts a broadcast. wished_bytes: of a piece; 0 = so that the ends of the chain wait least.
RingCut cut_chain(const Request& request, std::uint64_t most_bytes, std::uint64_t wished_bytes);

/// True if copy engines gather round a ring; two ranks exchange instead (exchange_cut.hpp).
inline bool is_engine_ring(const Request& request) {
  return request.collective == Collective::all_gather && request.ranks > 2;
}

struct RingPiece {
  int owner = 0;                ///< rank that owns the data
  std::uint64_t sent_from = 0;  ///< offset in the owner's input
  std::uint64_t from = 0;       ///< offset in the receiver's output
  std::uint64_t bytes = 0;      ///< 0 = no piece
};
/// Returns the distance from a rank to the rank it pushes to in a step. In an all_to_all the
/// distance grows by 1 each turn.
int ranks_on(const RingCut& cut, std::uint32_t step);
/// Returns the piece that a rank pushes in a step: of the own input, or the piece of two steps
/// before. In a broadcast the rank before the root pushes nothing.
RingPiece pushed_by(const RingCut& cut, int rank, std::uint32_t step);
/// Returns the part of a rank's own input that its output gets in a step.
RingPiece kept_by(const RingCut& cut, int rank, std::uint32_t step);

}  // namespace plait::cuda
