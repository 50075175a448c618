// The one-hop shape of every collective.
#include "plan/direct_shape.hpp"

#include "plait/plan.hpp"

namespace plait {
namespace {

std::uint32_t only(int rank) { return 1u << rank; }

void stay(DirectShape& shape, std::uint64_t from, std::uint64_t to) {
  shape.own_from = from;
  shape.own_to = to;
  shape.own_bytes = shape.part_bytes;
}

/// Collectives without a reduction; `mine`: offset of this rank's block.
void shape_placement(DirectShape& shape, const Request& request, bool is_root, std::uint64_t mine) {
  const std::uint64_t bytes = shape.part_bytes;
  switch (request.collective) {
    case Collective::broadcast:
      shape.senders = only(request.root);
      shape.owners &= ~only(request.root);
      if (is_root) stay(shape, 0, 0);
      break;
    case Collective::all_gather:
      shape.place_stride = bytes;
      stay(shape, 0, mine);
      break;
    case Collective::all_to_all:
      shape.part_stride = shape.place_stride = bytes;
      stay(shape, mine, mine);
      break;
    case Collective::gather:
      shape.owners = only(request.root);
      shape.place_stride = bytes;
      if (is_root) stay(shape, 0, mine);
      break;
    case Collective::scatter:
      shape.senders = only(request.root);
      shape.part_stride = bytes;
      if (is_root) stay(shape, mine, 0);
      break;
    case Collective::send_recv:
      shape.shift = 1;
      if (request.ranks == 1) stay(shape, 0, 0);
      break;
    default:  // copy
      shape.senders = only(request.root);
      shape.owners = only(request.peer);
      if (request.root == request.peer && is_root) stay(shape, 0, 0);
  }
}

DirectShape shape_of_parts(const Request& request, int rank) {
  DirectShape shape{};
  shape.senders = shape.owners = static_cast<std::uint32_t>((1ull << request.ranks) - 1);
  shape.part_bytes = request.count * bytes_of(request.type);
  if (!reduces(request.collective)) {
    shape.handling = kPlaceParts;
    shape_placement(shape, request, rank == request.root,
                    shape.part_bytes * static_cast<std::uint64_t>(rank));
    return shape;
  }
  shape.handling = kReduceParts;
  if (request.collective == Collective::reduce) shape.owners = only(request.root);
  if (request.collective == Collective::reduce_scatter) shape.part_stride = shape.part_bytes;
  return shape;
}

}  // namespace

DirectShape direct_shape(const Request& request, int rank) {
  DirectShape shape = shape_of_parts(request, rank);
  shape.gives = shape.own_bytes != 0 ? 1 : 0;
  for (int k = 1; k < request.ranks; ++k) {
    const int peer = (rank + k) % request.ranks;
    if (sends(shape, request.ranks, rank, peer)) shape.gives |= 1u << k;
    if (sends(shape, request.ranks, peer, rank)) shape.takes |= 1u << k;
  }
  return shape;
}

}  // namespace plait
