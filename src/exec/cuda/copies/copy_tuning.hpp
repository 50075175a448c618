// How calls by copy engines are cut, from what may be tuned and the room there is: the same for
// calls that are made ready on a GPU and for their plans, and on all ranks. A share through host
// memory that is left to be chosen is none: what earlier calls took is not known here.
#pragma once
#include <cstdint>

#include "exec/cuda/copies/exchange_cut.hpp"
#include "exec/cuda/copies/ring_cut.hpp"
#include "exec/cuda/copies/rotation.hpp"
#include "exec/cuda/group.hpp"

namespace plait::cuda {

/// Of a piece, at most; 0 = chosen.
std::uint64_t wished_piece_bytes(const Tuning& tuning);

/// Whether an exchange's share through host memory is chosen where nobody asks for one; else there
/// is none.
bool may_share(const Group& group);
ExchangeCut exchange_cut(std::uint64_t part_bytes, const Group& group, const Tuning& tuning);
RotationCut rotation_cut(std::uint64_t part_bytes, const Group& group, const Tuning& tuning);
RingCut ring_cut(const Request& request, const Group& group, const Tuning& tuning);
/// What CPU cores take of an all_reduce.
HostCut cores_cut(std::uint64_t bytes, const Group& group, const Tuning& tuning);

}  // namespace plait::cuda
