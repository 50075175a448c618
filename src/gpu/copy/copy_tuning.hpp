// Cuts of calls by copy engines, from the tuning and the memory of the group. The cuts are the same
// for calls prepared on a GPU, for their plans, and on all ranks. A share through host memory that
// is left to be chosen counts as none, since the times of earlier calls are unknown here.
#pragma once
#include <cstdint>

#include "gpu/copy/exchange_cut.hpp"
#include "gpu/copy/ring_cut.hpp"
#include "gpu/copy/rotation.hpp"
#include "gpu/engine/group.hpp"

namespace plait::cuda {

/// Returns the most bytes of a piece that the tuning asks for; 0 = chosen.
std::uint64_t wished_piece_bytes(const Tuning& tuning);

/// True if an exchange's share through host memory may be chosen when the caller sets none.
/// is_long: the exchange has the long inbox.
bool may_share(const Group& group, bool is_long);
ExchangeCut exchange_cut(std::uint64_t part_bytes, const Group& group, const Tuning& tuning,
                         bool is_long);
/// Returns the cut of an exchange without a link. part_bytes: not 0.
HostCut host_exchange_cut(const Request& request, std::uint64_t part_bytes, const Group& group,
                          const Tuning& tuning);
/// Returns the cut of a message that CPU cores sum without a link. bytes: not 0.
HostCut host_cores_cut(std::uint64_t bytes, const Group& group, const Tuning& tuning);
RotationCut rotation_cut(std::uint64_t part_bytes, const Group& group, const Tuning& tuning);
RingCut ring_cut(const Request& request, const Group& group, const Tuning& tuning);
/// Returns the cut of an all_reduce of which CPU cores reduce a part.
HostCut cores_cut(std::uint64_t bytes, const Group& group, const Tuning& tuning);

}  // namespace plait::cuda
