// Cuts blocks into long pieces, since every copy costs some microseconds whatever the size.
#include "gpu/copy/ring_cut.hpp"

#include <algorithm>
#include <cmath>

#include "plan/blocks.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kGrain = 4096;

/// Returns the pieces of a block.
std::uint32_t pieces_of(const RingCut& cut) { return cut.steps / cut.hops; }

/// Returns a piece of the data that `owner` has for `to`.
RingPiece piece_of(const RingCut& cut, int owner, int to, std::uint64_t piece) {
  const Range range{piece * cut.piece_bytes, cut.piece_bytes};
  const Range sent = part_of(sent_block(cut.request, owner, to), range);
  return {owner, sent.offset, part_of(received_block(cut.request, owner, to), range).offset,
          sent.bytes};
}

/// Returns the piece of a broadcast in a step. Each rank pushes a piece on two steps after the rank
/// before.
RingPiece pushed_along(const RingCut& cut, int rank, std::uint32_t step) {
  const int root = cut.request.root, hop = (rank - root + cut.ranks()) % cut.ranks();
  const auto waits = static_cast<std::uint32_t>(2 * hop);
  if (hop == cut.ranks() - 1 || step < waits) return {};
  return piece_of(cut, root, root, step - waits);
}

}  // namespace

RingCut cut_ring(const Request& request, std::uint64_t most_bytes) {
  const std::uint64_t most = std::max(kGrain, most_bytes / kGrain * kGrain);
  const auto hops = request.collective == Collective::send_recv
                        ? 1u
                        : static_cast<std::uint32_t>(request.ranks - 1);
  const std::uint64_t block_bytes = request.count * bytes_of(request.type);  // the largest block
  const std::uint64_t pairs = std::max<std::uint64_t>(1, (block_bytes + 2 * most - 1) / (2 * most));
  const std::uint64_t even = (block_bytes + 2 * pairs - 1) / (2 * pairs);
  const std::uint64_t piece = std::max<std::uint64_t>(1, (even + kGrain - 1) / kGrain) * kGrain;
  return {request, std::min(most, piece), static_cast<std::uint32_t>(2 * pairs * hops), hops};
}

RingCut cut_chain(const Request& request, std::uint64_t most_bytes, std::uint64_t wished_bytes) {
  constexpr double kCopyBytes = 1.8e6;  // bytes copied in the time that a copy needs to begin
                                        // (E-0032, E-0336)
  const std::uint64_t bytes = request.count * bytes_of(request.type);
  const auto hops = static_cast<std::uint32_t>(request.ranks - 1);
  const auto waits = 2 * std::max(1u, hops - 1);
  const double best =
      std::sqrt(static_cast<double>(bytes) * kCopyBytes / static_cast<double>(waits));
  const std::uint64_t piece = wished_bytes != 0 ? wished_bytes : static_cast<std::uint64_t>(best);
  const std::uint64_t most = std::max(kGrain, std::min(piece, most_bytes) / kGrain * kGrain);
  const std::uint64_t pieces = std::max<std::uint64_t>(1, (bytes + most - 1) / most);
  return {request, most, static_cast<std::uint32_t>(pieces + 2 * (hops - 1)), hops};
}

int ranks_on(const RingCut& cut, std::uint32_t step) {
  if (cut.request.collective != Collective::all_to_all) return 1;
  return static_cast<int>(1 + step / pieces_of(cut));
}

/// In an all_to_all all pieces for a rank go before the pieces for the next. Otherwise two pieces
/// of each block take all hops, then the next two.
RingPiece pushed_by(const RingCut& cut, int rank, std::uint32_t step) {
  const int to = (rank + ranks_on(cut, step)) % cut.ranks();
  switch (cut.request.collective) {
    case Collective::broadcast: return pushed_along(cut, rank, step);
    case Collective::all_to_all: return piece_of(cut, rank, to, step % pieces_of(cut));
    default: break;
  }
  const auto hop = static_cast<int>(step / 2 % cut.hops);
  const int owner = (rank + cut.ranks() - hop) % cut.ranks();
  return piece_of(cut, owner, to, step / (2 * cut.hops) * 2 + step % 2);
}

RingPiece kept_by(const RingCut& cut, int rank, std::uint32_t step) {
  switch (cut.request.collective) {
    case Collective::send_recv: return {};
    case Collective::broadcast:
      return rank == cut.request.root ? pushed_along(cut, rank, step) : RingPiece{};
    default: break;
  }
  // Spread over all steps: taking a piece leaves time for that much.
  return step % cut.hops == 0 ? piece_of(cut, rank, rank, step / cut.hops) : RingPiece{};
}

}  // namespace plait::cuda
